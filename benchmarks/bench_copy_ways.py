"""One COPY into the table, or several into tables of the checkpoint:
``python benchmarks/bench_copy_ways.py``.

The same rows, in Parquet files as Spark stages them, go into tables of one shape (index on
``_eo_checkpoint`` and all) on an embedded PostgreSQL with durable settings, by several processes
at once where there are several. Each way ends with all rows visible by one transaction. Rounds
alternate; the median and the best of each are told.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pgpq
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from eo_pipeline.embedded.postgres import EmbeddedPostgres

COLUMNS = (
    "id bigint, name text, amount double precision, at timestamptz, "
    "_eo_checkpoint bigint, _eo_topic text, _eo_partition int, _eo_offset bigint"
)
LOGGED, UNLOGGED = "", "UNLOGGED"
NAMES = ", ".join(column.split()[0] for column in COLUMNS.split(", "))


def files_of(rows: int, files: int, folder: Path) -> list[Path]:
    """``rows`` dealt out to ``files``."""
    paths, each = [], rows // files
    for number in range(files):
        ids = np.arange(number * each, (number + 1) * each, dtype=np.int64)
        table = pa.table(
            {
                "id": ids,
                "name": [f"record {i} of a checkpoint of many" for i in ids.tolist()],
                "amount": ids * 0.37,
                "at": pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")),
                "_eo_checkpoint": np.full(each, 1, np.int64),
                "_eo_topic": ["a-topic"] * each,
                "_eo_partition": np.full(each, number, np.int32),
                "_eo_offset": ids,
            }
        )
        paths.append(folder / f"part-{number}.parquet")
        pq.write_table(table, paths[-1], compression="zstd")
    return paths


def copy(connection: psycopg.Connection[tuple[object, ...]], table: str, files: list[Path]) -> None:
    schema = pq.read_schema(files[0])
    encoder = pgpq.ArrowToPostgresBinaryEncoder(schema)
    statement = f"COPY {table} ({NAMES}) FROM STDIN WITH (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as stream:
        stream.write(encoder.write_header())
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(65_536):
                stream.write(encoder.write_batch(batch))
        stream.write(encoder.finish())


def loaded(dsn: str, table: str, kind: str, files: list[Path]) -> None:
    """A process's part, in a table of its own."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        # by which attaching it takes no look at its rows
        check = f"CHECK (_eo_partition IS NOT NULL AND _eo_partition IN ({values_of(files)}))"
        connection.execute(f"CREATE {kind} TABLE {table} ({COLUMNS}, {check})")
        copy(connection, table, files)
        if kind == LOGGED:
            connection.execute(f"CREATE INDEX ON {table} (_eo_checkpoint)")


def values_of(files: list[Path]) -> str:
    """What ``_eo_partition`` is in these."""
    return ", ".join(file.stem.partition("-")[2] for file in files)


def encoded_alone(_: str, files: list[Path]) -> None:
    """What this side costs: no server is spoken to."""
    encoder = pgpq.ArrowToPostgresBinaryEncoder(pq.read_schema(files[0]))
    encoder.write_header()
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(65_536):
            encoder.write_batch(batch)


def one_copy(dsn: str, files: list[Path]) -> None:
    """The sink's way."""
    with psycopg.connect(dsn) as connection:
        copy(connection, "target", files)


def by_insert(count: int) -> Callable[[str, list[Path]], None]:
    """``count`` unlogged tables, and INSERT ... SELECT of them all in one transaction."""

    def load(dsn: str, files: list[Path]) -> None:
        tables = [f"part_{n}" for n in range(count)]
        at_once(dsn, tables, UNLOGGED, files)
        with psycopg.connect(dsn) as connection:
            for table in tables:
                connection.execute(f"INSERT INTO target ({NAMES}) SELECT {NAMES} FROM {table}")
                connection.execute(f"DROP TABLE {table}")

    return load


def by_attach(count: int) -> Callable[[str, list[Path]], None]:
    """``count`` logged tables that become partitions of one in one transaction."""

    def load(dsn: str, files: list[Path]) -> None:
        tables = [f"part_{n}" for n in range(count)]
        at_once(dsn, tables, LOGGED, files)
        with psycopg.connect(dsn) as connection:
            for n, table in enumerate(tables):
                values = values_of(files[n::count])
                attach = f"ALTER TABLE parted ATTACH PARTITION {table} FOR VALUES IN ({values})"
                connection.execute(attach)

    return load


def at_once(dsn: str, tables: Sequence[str], kind: str, files: list[Path]) -> None:
    shares = [files[n :: len(tables)] for n in range(len(tables))]
    with ProcessPoolExecutor(len(tables)) as pool:
        futures = [
            pool.submit(loaded, dsn, table, kind, share)
            for table, share in zip(tables, shares, strict=True)
        ]
        for future in futures:
            future.result()


WAYS: dict[str, Callable[[str, list[Path]], None]] = {
    "encoding alone, no server": encoded_alone,
    "one COPY into the table (the sink's way)": one_copy,
    "2 COPY into unlogged tables, INSERT SELECT": by_insert(2),
    "4 COPY into unlogged tables, INSERT SELECT": by_insert(4),
    "2 COPY into logged tables, attached": by_attach(2),
    "4 COPY into logged tables, attached": by_attach(4),
}


def seconds(server: EmbeddedPostgres, way: str, files: list[Path]) -> float:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS target CASCADE")
        connection.execute(f"CREATE TABLE target ({COLUMNS})")
        connection.execute("CREATE INDEX ON target (_eo_checkpoint)")
        connection.execute("DROP TABLE IF EXISTS parted CASCADE")
        connection.execute(f"CREATE TABLE parted ({COLUMNS}) PARTITION BY LIST (_eo_partition)")
        connection.execute("CREATE INDEX ON parted (_eo_checkpoint)")
        connection.execute("CHECKPOINT")
    begun = time.perf_counter()
    WAYS[way](server.dsn, files)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eo-bench-copy-") as name:
        folder = Path(name)
        files = files_of(options.rows, 8, folder)
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        with EmbeddedPostgres(folder / "postgres") as server:
            for _ in range(options.rounds):
                for way, spent in found.items():
                    spent.append(seconds(server, way, files))
    for way, spent in found.items():
        median = statistics.median(spent)
        sys.stdout.write(
            f"{way:45} {median:6.2f} s (best {min(spent):5.2f}) "
            f"{options.rows / median:10,.0f} rows/s\n"
        )


if __name__ == "__main__":
    main()

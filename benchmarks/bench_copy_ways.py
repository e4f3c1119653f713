"""One COPY into the table, or several into tables of the checkpoint:
``python benchmarks/bench_copy_ways.py``.

The same rows, in Parquet files as Spark stages them, go into tables of one shape (index on
``_eo_checkpoint`` and all) on an embedded PostgreSQL with durable settings, by several processes
at once where there are several. Each way ends with all rows visible by one transaction. Rounds
alternate; the median and the best of each are told, and the CPU seconds of client and server.
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
from typing import NamedTuple

import numpy as np
import pgpq
import psutil
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


class Spent(NamedTuple):
    """Seconds, of the clock and of all processors."""

    wall: float
    cpu: float


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


def loaded(dsn: str, table: str, kind: str, files: list[Path]) -> float:
    """A process's part, in a table of its own; returns the seconds of its processor."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        # by which attaching it takes no look at its rows
        check = f"CHECK (_eo_partition IS NOT NULL AND _eo_partition IN ({values_of(files)}))"
        connection.execute(f"CREATE {kind} TABLE {table} ({COLUMNS}, {check})")
        copy(connection, table, files)
        if kind == LOGGED:
            connection.execute(f"CREATE INDEX ON {table} (_eo_checkpoint)")
    return time.process_time()


def values_of(files: list[Path]) -> str:
    """What ``_eo_partition`` is in these."""
    return ", ".join(file.stem.partition("-")[2] for file in files)


def encoded_alone(_: str, files: list[Path]) -> float:
    """What this side costs: no server is spoken to."""
    encoder = pgpq.ArrowToPostgresBinaryEncoder(pq.read_schema(files[0]))
    encoder.write_header()
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(65_536):
            encoder.write_batch(batch)
    return 0.0


def one_copy(dsn: str, files: list[Path]) -> float:
    """The sink's way."""
    with psycopg.connect(dsn) as connection:
        copy(connection, "target", files)
    return 0.0


def by_insert(count: int) -> Callable[[str, list[Path]], float]:
    """``count`` unlogged tables, and INSERT ... SELECT of them all in one transaction."""

    def load(dsn: str, files: list[Path]) -> float:
        tables = [f"part_{n}" for n in range(count)]
        spent = at_once(dsn, tables, UNLOGGED, files)
        with psycopg.connect(dsn) as connection:
            for table in tables:
                connection.execute(f"INSERT INTO target ({NAMES}) SELECT {NAMES} FROM {table}")
                connection.execute(f"DROP TABLE {table}")
        return spent

    return load


def by_attach(count: int) -> Callable[[str, list[Path]], float]:
    """``count`` logged tables that become partitions of one in one transaction."""

    def load(dsn: str, files: list[Path]) -> float:
        tables = [f"part_{n}" for n in range(count)]
        spent = at_once(dsn, tables, LOGGED, files)
        with psycopg.connect(dsn) as connection:
            for n, table in enumerate(tables):
                values = values_of(files[n::count])
                attach = f"ALTER TABLE parted ATTACH PARTITION {table} FOR VALUES IN ({values})"
                connection.execute(attach)
        return spent

    return load


def at_once(dsn: str, tables: Sequence[str], kind: str, files: list[Path]) -> float:
    shares = [files[n :: len(tables)] for n in range(len(tables))]
    with ProcessPoolExecutor(len(tables)) as pool:
        futures = [
            pool.submit(loaded, dsn, table, kind, share)
            for table, share in zip(tables, shares, strict=True)
        ]
        return sum(future.result() for future in futures)


WAYS: dict[str, Callable[[str, list[Path]], float]] = {
    "encoding alone, no server": encoded_alone,
    "one COPY into the table (the sink's way)": one_copy,
    "2 COPY into unlogged tables, INSERT SELECT": by_insert(2),
    "4 COPY into unlogged tables, INSERT SELECT": by_insert(4),
    "2 COPY into logged tables, attached": by_attach(2),
    "4 COPY into logged tables, attached": by_attach(4),
}


def measured(server: EmbeddedPostgres, way: str, files: list[Path]) -> Spent:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS target CASCADE")
        connection.execute(f"CREATE TABLE target ({COLUMNS})")
        connection.execute("CREATE INDEX ON target (_eo_checkpoint)")
        connection.execute("DROP TABLE IF EXISTS parted CASCADE")
        connection.execute(f"CREATE TABLE parted ({COLUMNS}) PARTITION BY LIST (_eo_partition)")
        connection.execute("CREATE INDEX ON parted (_eo_checkpoint)")
        connection.execute("CHECKPOINT")
    cpu, wall = of_server(server) + time.process_time(), time.perf_counter()
    others = WAYS[way](server.dsn, files)
    spent = time.perf_counter() - wall
    return Spent(spent, of_server(server) + time.process_time() + others - cpu)


def of_server(server: EmbeddedPostgres) -> float:
    """Of the server and of backends that have ended."""
    times = psutil.Process(server.pid).cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process(server.pid).children(recursive=True):
        try:
            more = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += more.user + more.system
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eo-bench-copy-") as name:
        folder = Path(name)
        files = files_of(options.rows, 8, folder)
        found: dict[str, list[Spent]] = {way: [] for way in WAYS}
        with EmbeddedPostgres(folder / "postgres") as server:
            for _ in range(options.rounds):
                for way, spent in found.items():
                    spent.append(measured(server, way, files))
    for way, spent in found.items():
        median = statistics.median(each.wall for each in spent)
        best, cpu = min(each.wall for each in spent), min(each.cpu for each in spent)
        rate = options.rows / median
        sys.stdout.write(
            f"{way:45} {median:6.2f} s (best {best:5.2f}) {rate:10,.0f} rows/s, cpu {cpu:5.1f} s\n"
        )


if __name__ == "__main__":
    main()

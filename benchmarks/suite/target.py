"""Where a run writes to, and how its output is read back: from outside, by other programs."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psycopg
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import json as arrow_json
from pyiceberg.exceptions import NoSuchTableError, RESTError

from benchmarks.suite import topic
from benchmarks.suite.bucket import Bucket
from benchmarks.suite.errors import MeasurementError
from benchmarks.suite.stores import Store
from benchmarks.suite.workloads.plain import PLAIN
from benchmarks.suite.workloads.workload import Workload
from eo_pipeline import DeltaSink
from eo_pipeline.errors import EoPipelineError

_OUTPUT_PARTITIONS = 8
#: What the readers of outputs raise.
_UNREADABLE = (
    psycopg.Error,
    DeltaError,
    pl.exceptions.PolarsError,
    pa.ArrowException,
    NoSuchTableError,
    RESTError,
    OSError,
)
_SILENCE_S = 30.0


@dataclass(frozen=True)
class Target:
    """An empty place of ``store``'s kind, for one peer; ``name`` is the table's or topic's.

    ``folder`` is for whatever the run needs or makes: staging, checkpoints, a lake table.
    """

    store: Store
    name: str
    folder: Path
    dsn: str
    bootstrap: str
    workload: Workload = PLAIN
    bucket: Bucket | None = None

    @property
    def lake(self) -> Path:
        """The folder of a Delta table or of Parquet files on this machine."""
        return self.folder / "table"

    @property
    def table(self) -> str:
        """The same, or its URI in the bucket."""
        return self.bucket.folder(f"{self.name}/table") if self.bucket else str(self.lake)

    @property
    def iceberg(self) -> str:
        """An Iceberg table's name in the catalog."""
        return f"lake.{self.name}"

    def make(self) -> None:
        """Empty, and with what every peer would find in production: a table, a topic."""
        self.folder.mkdir(parents=True)
        if self.store is Store.POSTGRES:
            with psycopg.connect(self.dsn, autocommit=True) as database:
                database.execute(f"CREATE TABLE {self.name} ({self.workload.postgres})".encode())
                # nobody pays for the pages that another one left dirty
                database.execute("CHECKPOINT")
        elif self.store is Store.KAFKA:
            topic.create(self.bootstrap, self.name, _OUTPUT_PARTITIONS)

    def remove(self) -> None:
        """All of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.store is Store.POSTGRES:
            with psycopg.connect(self.dsn, autocommit=True) as database:
                database.execute(f"DROP TABLE IF EXISTS {self.name} CASCADE".encode())
        elif self.store is Store.KAFKA:
            topic.delete_all(self.bootstrap, self.name)

    def rows(self) -> pl.DataFrame:
        """What is in it, in the types of the workload's columns.

        Raises:
            MeasurementError: it could not be read.
        """
        try:
            return typed(self._rows(), self.workload.columns)
        except _UNREADABLE as error:
            raise MeasurementError(f"its output could not be read: {error}") from error

    def _rows(self) -> pl.DataFrame:
        columns = self.workload.columns
        if self.store is Store.POSTGRES:
            return self._of_postgres()
        if self.store is Store.KAFKA:
            return parsed(list(_values(self.bootstrap, self.name)), columns)
        if self.store is Store.ICEBERG:
            assert self.bucket is not None, "Iceberg tables are in a bucket"
            return self.bucket.iceberg(self.iceberg, list(columns))
        files = self._files()
        if not files:
            raise MeasurementError(f"no files below {self.lake.name}")
        if self.bucket:
            return self.bucket.read(files, list(columns))
        if self.workload.raw:
            values = pl.read_parquet(files, columns=["value"])["value"].to_list()
            return parsed(values, columns)
        if self.workload.partition_by:
            return pl.read_parquet(files, hive_partitioning=True).select(*columns)
        return pl.read_parquet(files, columns=list(columns))

    def dead_letters(self) -> int:
        """How many eo-pipeline has put there.

        Raises:
            MeasurementError: they could not be read.
        """
        try:
            if self.store is Store.DELTA:
                return int(DeltaSink(path=str(self.lake)).dead_letters(self.name).num_rows)
            if self.store is Store.KAFKA:
                return sum(1 for _ in _values(self.bootstrap, f"{self.name}._dead_letters"))
            with psycopg.connect(self.dsn) as database:
                statement = f"SELECT count(*) FROM {self.name}_dead_letters"
                [count] = database.execute(statement.encode()).fetchone() or (0,)
                return int(count)
        except (psycopg.Error, DeltaError, EoPipelineError) as error:
            raise MeasurementError(f"its dead letters could not be read: {error}") from error

    def _files(self) -> list[str]:
        if self.store is Store.DELTA:
            options = dict(self.bucket.for_delta()) if self.bucket else None
            table = DeltaTable(self.table, storage_options=options)
            return [uri.removeprefix("file://") for uri in table.file_uris()]
        if self.bucket:
            return [*self.bucket.files(self.table)]
        return [
            str(file)
            for file in self.lake.rglob("*")
            if file.is_file() and not file.name.startswith((".", "_"))
        ]

    def _of_postgres(self) -> pl.DataFrame:
        text = io.BytesIO()
        columns = self.workload.columns
        wanted = ", ".join(_in_sql(name, kind) for name, kind in columns.items())
        statement = f"COPY (SELECT {wanted} FROM {self.name}) TO STDOUT (FORMAT csv)"
        types = {name: _in_csv(kind) for name, kind in columns.items()}
        with (
            psycopg.connect(self.dsn) as database,
            database.cursor() as cursor,
            cursor.copy(statement.encode()) as copy,
        ):
            for block in copy:
                text.write(block)
        if not text.tell():
            return pl.DataFrame(schema=types)
        text.seek(0)
        return pl.read_csv(text, has_header=False, schema=types)


def _values(bootstrap: str, name: str) -> Iterator[bytes]:
    """Every committed record of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    parts = consumer.list_topics(name, timeout=_SILENCE_S).topics[name].partitions
    consumer.assign([TopicPartition(name, part, OFFSET_BEGINNING) for part in parts])
    ended: set[int | None] = set()
    heard = time.monotonic()
    while len(ended) < len(parts):
        messages = consumer.consume(10_000, timeout=0.2)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > _SILENCE_S:
            raise MeasurementError(f"topic {name} gives no answer")
        for message in messages:
            fault = message.error()
            if fault is None:
                yield message.value() or b""
            elif fault.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise MeasurementError(str(fault))
    consumer.close()


def _in_sql(name: str, kind: pl.DataType) -> str:
    """A column as CSV has it: a time in microseconds, an array as JSON."""
    if isinstance(kind, pl.List) and not kind.inner.is_nested():
        return f"to_json({name}) AS {name}"
    if isinstance(kind, pl.Datetime):
        return f"(extract(epoch FROM {name}) * 1000000)::bigint AS {name}"
    return name


def _in_csv(kind: pl.DataType) -> pl.DataType:
    if kind.is_nested():
        return pl.String()
    return pl.Int64() if isinstance(kind, pl.Datetime) else kind


def _in_json(kind: pl.DataType) -> pl.DataType:
    return pl.String() if kind.is_temporal() else kind


def typed(frame: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The columns in the types in which they are compared, whatever a store made of them."""
    return frame.select(
        _typed(pl.col(name), frame.schema[name], kind).alias(name) for name, kind in columns.items()
    )


def _typed(column: pl.Expr, held: pl.DataType, kind: pl.DataType) -> pl.Expr:
    if isinstance(kind, pl.Datetime):
        if held == pl.String():
            # JSON: with a blank or a T, with or without a fraction
            zoned = column.str.replace(" ", "T", literal=True).str.strip_suffix("Z")
            column = zoned.str.strptime(pl.Datetime("us"), "%Y-%m-%dT%H:%M:%S%.f")
        elif isinstance(held, pl.Datetime) and held.time_zone is not None:
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return column.cast(pl.Datetime("us")).dt.replace_time_zone(kind.time_zone)
    if isinstance(kind, pl.Struct) and isinstance(held, pl.Map):
        return pl.struct(column.map.get(each.name).alias(each.name) for each in kind.fields)
    if kind.is_nested() and held == pl.String():
        return column.str.json_decode(kind)
    if isinstance(kind, pl.Date) and held == pl.String():
        return column.str.strptime(pl.Date(), "%Y-%m-%d")
    return column.cast(kind)


def parsed(values: list[bytes], columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """JSON records as columns; other fields are left out, times are texts."""
    types = {name: _in_json(kind) for name, kind in columns.items()}
    if not values:
        return pl.DataFrame(schema=types)
    if any(kind.is_nested() for kind in types.values()):
        return pl.read_ndjson(io.BytesIO(b"\n".join(values)), schema=types)
    schema = pl.DataFrame(schema=types).to_arrow().schema
    text = pa.py_buffer(b"\n".join(values))
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    table = arrow_json.read_json(pa.BufferReader(text), parse_options=options)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame.select(*columns)

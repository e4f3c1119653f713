"""A lake table with a folder for each day."""

from __future__ import annotations

import polars as pl

from benchmarks.suite.records import COLUMNS, SPARK_SCHEMA
from benchmarks.suite.stores import Store
from benchmarks.suite.workloads.plain import FLINK_COLUMNS, POSTGRES_SCHEMA, parsed
from benchmarks.suite.workloads.workload import FlinkJob, StreamingQuery, Workload, as_json

_DAYS = 10
#: What the field takes of the note's characters: a record is as long as a plain one.
_FIELD_BYTES = len(',"day":"2026-01-01"')
_SCHEMA = f"{SPARK_SCHEMA}, day DATE"
_FLINK_COLUMNS = f"{FLINK_COLUMNS}, `day` DATE"


def _records(frame: pl.DataFrame) -> pl.DataFrame:
    """A thousand records of a day, then of the next, again and again."""
    days = pl.duration(days=pl.col("id") // 1000 % _DAYS)
    return frame.with_columns(
        note=pl.col("note").str.head(-_FIELD_BYTES), day=pl.date(2026, 1, 1) + days
    )


PARTITIONED = Workload(
    key="partitioned",
    title=f"A table partitioned by {_DAYS} days, 8 partitions of the topic",
    text="`partition_by` a date.",
    columns={**COLUMNS, "day": pl.Date()},
    postgres=f"{POSTGRES_SCHEMA}, day date",
    topic="days",
    records=_records,
    values=as_json,
    source={"value_schema": _SCHEMA},
    sink={"partition_by": ["day"]},
    flink=FlinkJob(_FLINK_COLUMNS, _FLINK_COLUMNS, partition_by="day"),
    streaming=StreamingQuery(parsed(_SCHEMA), partition_by="day"),
    partition_by="day",
    stores=(Store.DELTA,),
)

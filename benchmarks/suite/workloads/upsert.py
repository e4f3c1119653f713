"""Rows that replace each other by a key."""

from __future__ import annotations

import polars as pl

from benchmarks.suite.records import COLUMNS, SPARK_SCHEMA, values
from benchmarks.suite.stores import Store
from benchmarks.suite.workloads.plain import FLINK_COLUMNS, POSTGRES_SCHEMA, parsed
from benchmarks.suite.workloads.workload import FlinkJob, StreamingQuery, Workload

#: Records in a turn, and how many of them are new. Both, and half a turn's way back, are multiples
#: of the partitions: a key stays in its partition, so that its newest record is known.
_TURN, _NEW, _BACK = 40, 32, 8


def _records(frame: pl.DataFrame) -> pl.DataFrame:
    """The last fifth of a turn has ids from halfway back in the topic."""
    number = pl.col("id")
    earlier = number - _BACK - _TURN * (number // (2 * _TURN))
    return frame.with_columns(id=pl.when(number % _TURN < _NEW).then(number).otherwise(earlier))


UPSERT = Workload(
    key="upsert",
    title="Upsert by a key, 8 partitions",
    text="A fifth of the records have the key of an earlier one, whose row they replace.",
    columns=COLUMNS,
    postgres=f"{POSTGRES_SCHEMA}, PRIMARY KEY (id)",
    topic="upsert",
    records=_records,
    values=values,
    source={"value_schema": SPARK_SCHEMA},
    sink={"mode": "upsert", "key": ["id"]},
    flink=FlinkJob(FLINK_COLUMNS, f"{FLINK_COLUMNS}, PRIMARY KEY (id) NOT ENFORCED"),
    streaming=StreamingQuery(
        parsed(SPARK_SCHEMA, "offset"),
        key="id",
    ),
    by_hand=True,
    stores=(Store.POSTGRES,),
)

"""One record of a hundred is cut."""

from __future__ import annotations

import polars as pl

from benchmarks.suite.records import COLUMNS, SPARK_SCHEMA, values
from benchmarks.suite.workloads.plain import FLINK_COLUMNS, POSTGRES_SCHEMA
from benchmarks.suite.workloads.workload import FlinkJob, StreamingQuery, Workload

_EVERY, _FIRST = 100, 37
_KEPT_BYTES = 150


def _values(frame: pl.DataFrame) -> list[bytes]:
    return [
        value[:_KEPT_BYTES] if bad else value
        for value, bad in zip(values(frame), frame["id"] % _EVERY == _FIRST, strict=True)
    ]


def _rows(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("id") % _EVERY != _FIRST)


def _bad(records: int) -> int:
    return len(range(_FIRST, records, _EVERY))


DEAD_LETTERS = Workload(
    key="dead-letters",
    title="One bad record of a hundred, 8 partitions",
    text=(
        "Cut JSON. eo-pipeline stores it as dead letters (`dead_letter_limit` raised), which are "
        "counted; the others skip it."
    ),
    columns=COLUMNS,
    postgres=POSTGRES_SCHEMA,
    topic="cut",
    values=_values,
    rows=_rows,
    bad=_bad,
    source={
        "value_schema": SPARK_SCHEMA,
        "on_bad_record": "dead_letter",
        "dead_letter_limit": 1_000_000,
    },
    flink=FlinkJob(
        FLINK_COLUMNS,
        FLINK_COLUMNS,
        source={
            "format": "json",
            "json.ignore-parse-errors": "true",
            # else a cut record becomes the row before it once more
            "json.decode.json-parser.enabled": "false",
        },
    ),
    streaming=StreamingQuery(
        f"SELECT {', '.join(COLUMNS)} FROM (SELECT r.* FROM ("
        f"SELECT from_json(CAST(value AS STRING), '{SPARK_SCHEMA}, bad STRING', "
        "map('columnNameOfCorruptRecord', 'bad')) AS r FROM kafka)) WHERE bad IS NULL"
    ),
)

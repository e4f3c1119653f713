"""JSON records as they are: each field a column, or the value's bytes in one column."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.suite.records import COLUMNS, SPARK_SCHEMA, values
from benchmarks.suite.workloads.workload import FlinkJob, StreamingQuery, Workload

POSTGRES_SCHEMA = (
    "id bigint, customer text, country text, amount double precision, at_ms bigint, note text"
)
FLINK_COLUMNS = (
    "id BIGINT, customer STRING, country STRING, amount DOUBLE, at_ms BIGINT, note STRING"
)


def parsed(schema: str, *more: str) -> str:
    """Return Spark's SQL for the records of the stream ``kafka``, and more of its columns."""
    columns = "".join(f", {name}" for name in more)
    value = f"from_json(CAST(value AS STRING), '{schema}') AS r"
    return f"SELECT r.*{columns} FROM (SELECT {value}{columns} FROM kafka)"


PLAIN_STREAM = StreamingQuery(parsed(SPARK_SCHEMA))

PLAIN = Workload(
    key="plain",
    title="A whole topic, 8 partitions",
    text="",
    columns=COLUMNS,
    postgres=POSTGRES_SCHEMA,
    values=values,
    source={"value_schema": SPARK_SCHEMA},
    flink=FlinkJob(FLINK_COLUMNS, FLINK_COLUMNS),
    streaming=PLAIN_STREAM,
    by_dlt=True,
    by_hand=True,
)

RAW = replace(
    PLAIN,
    key="raw",
    source={"value_format": "raw"},
    flink=FlinkJob("`value` BYTES", "`value` BYTES", source={"format": "raw"}),
    streaming=StreamingQuery("SELECT value FROM kafka"),
    by_dlt=False,
    by_hand=False,
    raw=True,
)

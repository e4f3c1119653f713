"""Keys of JSON, whose fields are columns too."""

from __future__ import annotations

import polars as pl

from benchmarks.suite.records import COLUMNS, SPARK_SCHEMA, values
from benchmarks.suite.workloads.plain import FLINK_COLUMNS, POSTGRES_SCHEMA
from benchmarks.suite.workloads.workload import FlinkJob, StreamingQuery, Workload, as_json

#: Whole names: this Flink's Kafka connector fails with a prefix.
_KEY_SCHEMA = "key_id BIGINT NOT NULL, key_shard STRING"
_FLINK_COLUMNS = f"{FLINK_COLUMNS}, key_id BIGINT, key_shard STRING"
_KEY_COLUMNS: dict[str, pl.DataType] = {"key_id": pl.Int64(), "key_shard": pl.String()}


def _records(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        key_id=pl.col("id"), key_shard=pl.format("shard-{}", pl.col("id") % 16)
    )


def _keys(frame: pl.DataFrame) -> list[bytes]:
    return as_json(frame.select(*_KEY_COLUMNS))


KEYS = Workload(
    key="keys",
    title="Keys of JSON, 8 partitions",
    text="The two fields of each record's key become columns, beside those of its value.",
    columns={**COLUMNS, **_KEY_COLUMNS},
    postgres=f"{POSTGRES_SCHEMA}, key_id bigint, key_shard text",
    topic="keys",
    records=_records,
    values=values,
    keys=_keys,
    source={
        "value_schema": SPARK_SCHEMA,
        "key_format": "json",
        "key_schema": _KEY_SCHEMA,
        "key_prefix": "",
    },
    flink=FlinkJob(
        _FLINK_COLUMNS,
        _FLINK_COLUMNS,
        source={
            "key.format": "json",
            "key.fields": "key_id;key_shard",
            "value.format": "json",
            "value.fields-include": "EXCEPT_KEY",
        },
    ),
    streaming=StreamingQuery(
        "SELECT r.*, k.* FROM ("
        f"SELECT from_json(CAST(value AS STRING), '{SPARK_SCHEMA}') AS r, "
        f"from_json(CAST(key AS STRING), '{_KEY_SCHEMA}') AS k FROM kafka)"
    ),
)

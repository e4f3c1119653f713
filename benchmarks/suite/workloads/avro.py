"""Avro behind a schema registry, by two writers' schemas."""

from __future__ import annotations

import io
import json

import fastavro
import polars as pl

from benchmarks.suite.jars import Jar
from benchmarks.suite.records import COLUMNS
from benchmarks.suite.workloads.plain import FLINK_COLUMNS, POSTGRES_SCHEMA
from benchmarks.suite.workloads.registered import (
    AVRO_NEW,
    AVRO_OLD,
    AVRO_SUBJECT,
    number,
    prefix,
)
from benchmarks.suite.workloads.workload import REGISTRY, FlinkJob, StreamingQuery, Workload

_FLINK_COLUMNS = f"{FLINK_COLUMNS}, channel STRING"


def _records(frame: pl.DataFrame) -> pl.DataFrame:
    """Every other turn of eight is of the newer writer: each partition has both."""
    newer = pl.col("id") // 8 % 2 == 1
    channel = pl.format("channel-{}", pl.col("id") % 5)
    return frame.with_columns(channel=pl.when(newer).then(channel))


def _values(frame: pl.DataFrame) -> list[bytes]:
    old, new = (fastavro.parse_schema(json.loads(each.text)) for each in (AVRO_OLD, AVRO_NEW))
    made = []
    for row in frame.iter_rows(named=True):
        is_new = row["channel"] is not None
        value = io.BytesIO()
        value.write(prefix(AVRO_NEW if is_new else AVRO_OLD))
        fastavro.schemaless_writer(value, new if is_new else old, row)
        made.append(value.getvalue())
    return made


AVRO = Workload(
    key="avro",
    title="Avro by two schemas of a registry, 8 partitions",
    text=(
        "The second writer's schema has one optional field more. Structured Streaming has no "
        "client for registries: both schemas are in its query."
    ),
    columns={**COLUMNS, "channel": pl.String()},
    postgres=f"{POSTGRES_SCHEMA}, channel text",
    topic="avro",
    records=_records,
    values=_values,
    source={
        "value_format": "avro",
        "registry": {"url": REGISTRY, "subject": AVRO_SUBJECT},
    },
    flink=FlinkJob(
        _FLINK_COLUMNS,
        _FLINK_COLUMNS,
        source={"format": "avro-confluent", "avro-confluent.url": REGISTRY},
        jars=[Jar("org.apache.flink", "flink-sql-avro-confluent-registry", "2.1.0")],
    ),
    streaming=StreamingQuery(
        f"SELECT r.* FROM (SELECT CASE WHEN substring(value, 2, 4) = X'{number(AVRO_OLD):08X}' "
        f"THEN from_avro(substring(value, 6), '{AVRO_OLD.text}', "
        f"map('avroSchema', '{AVRO_NEW.text}')) "
        f"ELSE from_avro(substring(value, 6), '{AVRO_NEW.text}', map()) END AS r FROM kafka)"
    ),
)

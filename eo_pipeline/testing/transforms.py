"""A frame like the one a transform receives, from plain dicts: to unit-test it without Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eo_pipeline.batch.decode import KAFKA_COLUMN, Decoded, decode
from eo_pipeline.config.settings import as_config_error
from eo_pipeline.errors import BadRecordError
from eo_pipeline.kafka.source import KafkaSource

#: Spark's Kafka columns.
_KAFKA_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_COORDINATES = ("key", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers")
_TIMESTAMP = datetime(2026, 1, 1, tzinfo=UTC)


def records_frame(
    spark: SparkSession,
    records: Iterable[Mapping[str, Any]],
    schema: str | StructType | None,
    *,
    topic: str = "topic",
) -> DataFrame:
    """Frame of ``records`` as the transform of a pipeline on ``topic`` receives it: the value's
    columns, and ``_kafka``.

    The records take the pipeline's own way, as JSON through its decoder, so that types and nulls
    are those of a real run.

    Args:
        records: the values, one dict each; of a date or time an ISO text is made, of what JSON
            does not know a text. A record's own ``_kafka`` dict says where it came from: ``key``,
            ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestamp_type``, ``headers``.
            What it leaves out: no key and headers, ``topic``, partition 0, offsets from 0 upwards.
        schema: the source's ``value_schema``; ``None`` for ``value_format: raw``, where a record
            is ``{"value": bytes}``.

    Raises:
        BadRecordError: a record would not reach the transform; names it.
        ConfigError: ``schema`` is not one.
        ValueError: ``_kafka`` has a field that Kafka does not know.
    """
    given = {
        "bootstrap_servers": "not.asked:9092",
        "topics": (topic,),
        "value_format": "json" if schema is not None else "raw",
        "value_schema": schema,
    }
    with as_config_error("the schema"):
        source = KafkaSource.model_validate(given)
    rows = [
        _row(record, topic, offset, raw=schema is None) for offset, record in enumerate(records)
    ]
    decoded = decode(spark.createDataFrame(rows, _KAFKA_COLUMNS), source)
    _refuse_bad(decoded)
    return decoded.good(decoded.all)


def _row(record: Mapping[str, Any], topic: str, offset: int, *, raw: bool) -> tuple[Any, ...]:
    given = dict(record.get(KAFKA_COLUMN, {}))
    unknown = sorted(given.keys() - set(_COORDINATES))
    if unknown:
        raise ValueError(f"{KAFKA_COLUMN} has no field {', '.join(unknown)}")
    value = {name: held for name, held in record.items() if name != KAFKA_COLUMN}
    return (
        given.get("key"),
        value["value"] if raw else json.dumps(value, default=_text).encode(),
        given.get("topic", topic),
        given.get("partition", 0),
        given.get("offset", offset),
        given.get("timestamp", _TIMESTAMP),
        given.get("timestamp_type", 0),
        given.get("headers"),
    )


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def _refuse_bad(decoded: Decoded) -> None:
    bad = decoded.dead_letters(0).select("offset", "value", "error").first()
    if bad is not None:
        shown = bytes(bad["value"]).decode(errors="replace") if bad["value"] is not None else "none"
        raise BadRecordError(
            f"the record at offset {bad['offset']} would not reach the transform: {bad['error']}; "
            f"its value: {shown}"
        )

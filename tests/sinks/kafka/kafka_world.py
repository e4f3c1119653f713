"""Topics of a Kafka sink, and somebody else who reads them: read_committed, from the beginning."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from eo_pipeline.testing.all_types import ALL_TYPES
from eo_pipeline.testing.odd import ODD_VALUES

#: Seconds without an answer after which a reader counts as hanging.
READ_SECONDS = 120.0

_READER = {
    "group.id": "observer",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
}


def read(bootstrap_servers: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Every record a reader gets at this moment, partition by partition."""
    settings = {"bootstrap.servers": bootstrap_servers, "isolation.level": isolation, **_READER}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    metadata = admin.list_topics(timeout=READ_SECONDS).topics.get(topic)
    open_partitions = set(metadata.partitions) if metadata else set()
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in open_partitions])
        found: list[Message] = []
        deadline = time.monotonic() + READ_SECONDS
        while open_partitions:
            message = consumer.poll(0.5)
            assert time.monotonic() < deadline, f"{topic}: partitions {open_partitions} hang"
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_partitions.discard(message.partition() or 0)
        return found
    finally:
        consumer.close()


def headers(message: Message) -> dict[str, bytes]:
    found: Any = message.headers() or []
    return dict(found)


def letters(messages: list[Message]) -> list[dict[str, Any]]:
    """Dead letters as the contract has them."""
    return [
        {
            "value": message.value(),
            "offset": int(headers(message)["_eo_offset"]),
            "error": headers(message)["_eo_error"].decode(),
        }
        for message in messages
    ]


def rows(messages: list[Message]) -> list[dict[str, Any]]:
    """JSON values as rows, as a reader with a schema has them: absent fields are null."""
    found = [_decoded(json.loads(m.value() or b"", parse_float=Decimal)) for m in messages]
    names = {name for row in found for name in row}
    return [{name: row.get(name) for name in names} for row in found]


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(value, _TYPES.get(name, pa.string())) for name, value in row.items()}


_TYPES: dict[str, pa.DataType] = {
    **{field.name: field.type for field in ALL_TYPES.schema},
    **{case.replace(" ", "_"): values.type for case, values in ODD_VALUES.items()},
    "amount": pa.decimal128(12, 2),
}


def _value(value: Any, data_type: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_list(data_type):
        return [_value(item, data_type.value_type) for item in value]
    for is_kind, convert in _CONVERSIONS:
        if is_kind(data_type):
            return convert(value)
    if pa.types.is_timestamp(data_type):
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if data_type.tz else moment
    return value


_CONVERSIONS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_decimal, Decimal),
    (pa.types.is_floating, float),
    (pa.types.is_binary, b64decode),
    (pa.types.is_date, date.fromisoformat),
)

"""Spark schema of JSON values, inferred from a sample of a topic.

A type that is too wide costs a cast later; one that is too narrow turns good records into bad ones.
So values of different types become a STRING, into which Spark reads any JSON value.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline.errors import SourceError, SourceUnavailableError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.client import silent_logger
from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.kafka.source import KafkaSource, librdkafka_settings
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.ledger.offsets import TopicPartition

VOID, STRING = "VOID", "STRING"
BIGINT, DECIMAL, DOUBLE = "BIGINT", "DECIMAL(38,0)", "DOUBLE"

_BIGINT_MAX = 2**63 - 1
_DECIMAL_MAX = 10**38 - 1

#: Wider type of two scalar types.
_WIDER = {
    frozenset({BIGINT, DOUBLE}): DOUBLE,
    frozenset({BIGINT, DECIMAL}): DECIMAL,
}

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: First byte of a value written by Confluent's serializers, and length of their header.
_REGISTRY_MAGIC, _REGISTRY_HEADER = b"\x00", 5


def _reserved() -> frozenset[str]:
    """Return the columns that the pipeline adds."""
    # here, because pyspark takes a sixth of a second to import
    from eo_pipeline.batch.decode import KAFKA_COLUMN, LINEAGE

    return frozenset({CHECKPOINT_COLUMN, KAFKA_COLUMN, *LINEAGE})


@dataclass(frozen=True)
class Struct:
    """Type of a JSON object: its fields in the order of their first appearance."""

    fields: Mapping[str, Type]


@dataclass(frozen=True)
class Array:
    """Type of a JSON array."""

    element: Type


#: A scalar is the name of its Spark type.
Type = str | Struct | Array


@dataclass
class InferredSchema:
    """Counts and types of a sample.

    ``records`` are all, ``tombstones`` those without a value, ``bad`` those that are not one JSON
    object, ``framed`` the bad ones with a schema registry's header. ``type`` is the type of the
    good ones, ``present`` the number of good ones with a non-null value of each field.
    """

    records: int = 0
    tombstones: int = 0
    bad: int = 0
    framed: int = 0
    type: Struct = Struct({})
    present: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> int:
        """Number of records that are one JSON object."""
        return self.records - self.tombstones - self.bad

    def add(self, value: bytes | None) -> None:
        """Add the value of a record."""
        self.records += 1
        if value is None:
            self.tombstones += 1
            return
        fields = _object(value)
        if fields is None:
            self.bad += 1
            self.framed += value[:1] == _REGISTRY_MAGIC and len(value) > _REGISTRY_HEADER
            return
        for name, item in fields.items():
            self.present[name] = self.present.get(name, 0) + (item is not None)
        merged = _merged(self.type, type_of(fields))
        assert isinstance(merged, Struct)
        self.type = merged

    def columns(self) -> dict[str, Type]:
        """Return the fields that can be columns; Spark's names are case-insensitive."""
        left_out = self.left_out()
        return {name: kind for name, kind in self.type.fields.items() if name not in left_out}

    def left_out(self) -> dict[str, str]:
        """Return the fields that cannot be columns, and the reasons."""
        reasons: dict[str, str] = {}
        taken: dict[str, str] = {}
        reserved = _reserved()
        for name in self.type.fields:
            first = taken.setdefault(name.lower(), name)
            if name.lower() in reserved:
                reasons[name] = "the pipeline makes a column of that name"
            elif first != name:
                reasons[name] = f"differs from {first} only in case"
            elif not name.strip():
                reasons[name] = "has no name"
        return reasons

    def unknown(self) -> list[str]:
        """Return the fields that were always null."""
        return [name for name, kind in self.columns().items() if kind == VOID]

    def ddl(self, *, not_null: bool = False) -> str:
        """Return the schema as Spark DDL, one field a line.

        Args:
            not_null: declare fields NOT NULL that every record of the sample has.
        """
        lines = (
            f"{quoted(name)} {type_text(kind)}"
            + (" NOT NULL" if not_null and self.present[name] == self.good else "")
            for name, kind in self.columns().items()
        )
        return ",\n".join(lines)


def infer_schema(values: Iterable[bytes | None]) -> InferredSchema:
    """Return the schema of a sample's values."""
    inferred = InferredSchema()
    for value in values:
        inferred.add(value)
    return inferred


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
        return None
    return parsed if isinstance(parsed, dict) else None


def type_of(value: Any) -> Type:
    """Return the narrowest type that holds a JSON value."""
    if isinstance(value, dict):
        return Struct({name: type_of(item) for name, item in value.items()})
    if isinstance(value, list):
        empty: Type = VOID
        return Array(reduce(_merged, map(type_of, value), empty))
    if value is None:
        return VOID
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return _integer(value)
    return "DOUBLE" if isinstance(value, float) else _text(value)


def _integer(value: int) -> Type:
    if -_BIGINT_MAX - 1 <= value <= _BIGINT_MAX:
        return BIGINT
    return DECIMAL if abs(value) <= _DECIMAL_MAX else STRING


def _text(value: str) -> Type:
    for pattern, name in ((_DATE, "DATE"), (_TIMESTAMP, "TIMESTAMP")):
        if pattern.fullmatch(value) and _exists(value):
            return name
    return STRING


def _exists(text: str) -> bool:
    """Return whether the date exists, unlike 2026-02-30."""
    try:
        datetime.fromisoformat(text[:16])
    except ValueError:
        return False
    return True


def _merged(one: Type, other: Type) -> Type:
    """Return the narrowest type that holds both."""
    if one == other or other == VOID:
        return one
    if one == VOID:
        return other
    if isinstance(one, Struct) and isinstance(other, Struct):
        return Struct(dict(_merged_fields(one, other)))
    if isinstance(one, Array) and isinstance(other, Array):
        return Array(_merged(one.element, other.element))
    if isinstance(one, str) and isinstance(other, str):
        return _WIDER.get(frozenset({one, other}), STRING)
    return STRING


def _merged_fields(one: Struct, other: Struct) -> Iterator[tuple[str, Type]]:
    for name in {**one.fields, **other.fields}:
        yield name, _merged(one.fields.get(name, VOID), other.fields.get(name, VOID))


def type_text(kind: Type) -> str:
    """Return a type in Spark's DDL. Unknown types and empty objects are a STRING."""
    if isinstance(kind, Array):
        return f"ARRAY<{type_text(kind.element)}>"
    if isinstance(kind, str):
        return STRING if kind == VOID else kind
    names = [name.lower() for name in kind.fields]
    if not names or len(set(names)) < len(names):
        return STRING
    inside = (f"{quoted(name)}: {type_text(item)}" for name, item in kind.fields.items())
    return f"STRUCT<{', '.join(inside)}>"


def quoted(name: str) -> str:
    """Return a field's name for DDL."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    return f"`{name.replace('`', '``')}`"


#: Maximum number of records of all partitions together; a topic may have 10,000 partitions.
RECORDS_MAX = 20_000

_BATCH = 1_000
_POLL_SECONDS = 1.0

#: No commits, and no pause of a second between fetches, by which librdkafka saves memory.
_SETTINGS = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": 10,
}


@dataclass(frozen=True)
class Sample:
    """Values and keys of the oldest and newest records of each partition, and the cluster's
    state.
    """

    cluster: Cluster
    values: list[bytes | None]
    keys: list[bytes | None]


def sample(source: KafkaSource, count: int) -> Sample:
    """Read at most ``count`` records of every partition, half of them the oldest, half the
    newest; fewer if that exceeds :data:`RECORDS_MAX` in all.

    Raises:
        SourceError: no such topic.
        SourceUnavailableError: the cluster does not answer.
    """
    cluster = KafkaAdmin(source).cluster()
    if not cluster.bounds:
        raise SourceError(
            f"no topic {', '.join(source.topics)} on {source.bootstrap_servers}. Create it, or "
            "correct the name."
        )
    count = max(1, min(count, RECORDS_MAX // len(cluster.bounds)))
    pairs: list[_Pair] = []
    for window in _windows(cluster.bounds, count):
        pairs += _read(source, window)
    return Sample(cluster, [value for _, value in pairs], [key for key, _ in pairs])


#: Key and value of a record.
_Pair = tuple[bytes | None, bytes | None]

#: First and end offset to read of each partition.
_Window = Mapping[TopicPartition, tuple[int, int]]


def _windows(bounds: Mapping[TopicPartition, Bounds], count: int) -> Iterator[_Window]:
    half = (count + 1) // 2
    old = {tp: (b.beginning, min(b.end, b.beginning + half)) for tp, b in bounds.items()}
    yield _filled(old)
    yield _filled(
        {tp: (max(old[tp][1], b.end - (count - half)), b.end) for tp, b in bounds.items()}
    )


def _filled(window: _Window) -> _Window:
    return {tp: span for tp, span in window.items() if span[0] < span[1]}


def _read(source: KafkaSource, window: _Window) -> Iterator[_Pair]:
    """Yield keys and values in ``window``; transactions and compaction may leave fewer."""
    if not window:
        return
    group = {"group.id": f"eo-init-{uuid.uuid4().hex}"}
    consumer = Consumer(librdkafka_settings(source) | _SETTINGS | group, logger=silent_logger())
    try:
        consumer.assign(
            [
                ClientTopicPartition(tp.topic, tp.partition, start)
                for tp, (start, _) in window.items()
            ]
        )
        yield from _pairs(consumer, source, window)
    except KafkaException as error:
        raise _unavailable(source, error.args[0]) from error
    finally:
        consumer.close()


def _pairs(consumer: Consumer, source: KafkaSource, window: _Window) -> Iterator[_Pair]:
    waiting = set(window)
    deadline = time.monotonic() + source.request_timeout
    while waiting and time.monotonic() < deadline:
        for message in consumer.consume(_BATCH, _POLL_SECONDS):
            tp = _partition(message)
            if _ended(source, message):
                waiting.discard(tp)
            elif (message.offset() or 0) < window[tp][1]:
                deadline = time.monotonic() + source.request_timeout
                yield message.key(), message.value()
            if (message.offset() or 0) + 1 >= window[tp][1]:
                waiting.discard(tp)
    if waiting:
        raise SourceUnavailableError(
            f"{min(waiting)} on {source.bootstrap_servers} gave no records within "
            f"{source.request_timeout:g} s. Nothing was written."
        )


def _partition(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)


def _ended(source: KafkaSource, message: Message) -> bool:
    """Return whether the message is the end of a partition instead of a record."""
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    raise _unavailable(source, error)


def _unavailable(source: KafkaSource, error: KafkaError) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"Kafka at {source.bootstrap_servers} could not be read: {error.str()}. Nothing was "
        "written. Check the address, and --client's credentials."
    )

"""What is in a topic, from some of its values: a Spark schema for JSON. Pure, no I/O.

A guess that is too wide costs a cast later; one that is too narrow makes good records bad ones.
So whatever does not agree is a STRING, into which Spark reads any JSON value.
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

#: Two scalar types that one wider type holds.
_WIDER = {
    frozenset({BIGINT, DOUBLE}): DOUBLE,
    frozenset({BIGINT, DECIMAL}): DECIMAL,
}

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: The first byte of a value that Confluent's serializers wrote, and how long their header is.
_REGISTRY_MAGIC, _REGISTRY_HEADER = b"\x00", 5


def _reserved() -> frozenset[str]:
    """Columns the pipeline makes itself."""
    # here, because pyspark takes a sixth of a second to import
    from eo_pipeline.batch.decode import KAFKA_COLUMN, LINEAGE

    return frozenset({CHECKPOINT_COLUMN, KAFKA_COLUMN, *LINEAGE})


@dataclass(frozen=True)
class Struct:
    """A JSON object's type: its fields in the order they were met."""

    fields: Mapping[str, Type]


@dataclass(frozen=True)
class Array:
    """A JSON array's type."""

    element: Type


#: A scalar is the name of its Spark type.
Type = str | Struct | Array


@dataclass
class InferredSchema:
    """What a sample held.

    ``records`` all of them, ``tombstones`` without a value, ``bad`` not one JSON object,
    ``framed`` of those with a schema registry's header. ``type`` is that of the good ones,
    ``present`` how many of them have each field, and not null.
    """

    records: int = 0
    tombstones: int = 0
    bad: int = 0
    framed: int = 0
    type: Struct = Struct({})
    present: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> int:
        """Records that are one JSON object."""
        return self.records - self.tombstones - self.bad

    def add(self, value: bytes | None) -> None:
        """One more record's value."""
        self.records += 1
        if value is None:
            self.tombstones += 1
            return
        found = _object(value)
        if found is None:
            self.bad += 1
            self.framed += value[:1] == _REGISTRY_MAGIC and len(value) > _REGISTRY_HEADER
            return
        for name, item in found.items():
            self.present[name] = self.present.get(name, 0) + (item is not None)
        merged = _merged(self.type, type_of(found))
        assert isinstance(merged, Struct)
        self.type = merged

    def columns(self) -> dict[str, Type]:
        """The fields that can be columns: Spark's names do not tell upper from lower case."""
        left_out = self.left_out()
        return {name: kind for name, kind in self.type.fields.items() if name not in left_out}

    def left_out(self) -> dict[str, str]:
        """Fields that cannot be columns, and why."""
        found: dict[str, str] = {}
        taken: dict[str, str] = {}
        reserved = _reserved()
        for name in self.type.fields:
            first = taken.setdefault(name.lower(), name)
            if name.lower() in reserved:
                found[name] = "the pipeline makes a column of that name"
            elif first != name:
                found[name] = f"differs from {first} only in case"
            elif not name.strip():
                found[name] = "has no name"
        return found

    def unknown(self) -> list[str]:
        """Fields that were never anything but null."""
        return [name for name, kind in self.columns().items() if kind == VOID]

    def ddl(self, *, not_null: bool = False) -> str:
        """The schema as Spark DDL, one field a line.

        Args:
            not_null: declare NOT NULL what every record of the sample had.
        """
        lines = (
            f"{quoted(name)} {type_text(kind)}"
            + (" NOT NULL" if not_null and self.present[name] == self.good else "")
            for name, kind in self.columns().items()
        )
        return ",\n".join(lines)


def infer_schema(values: Iterable[bytes | None]) -> InferredSchema:
    """What the values of a sample have in common."""
    inferred = InferredSchema()
    for value in values:
        inferred.add(value)
    return inferred


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
        return None
    return found if isinstance(found, dict) else None


def type_of(value: Any) -> Type:
    """The narrowest type that holds one JSON value."""
    if isinstance(value, dict):
        return Struct({name: type_of(item) for name, item in value.items()})
    if isinstance(value, list):
        nothing: Type = VOID
        return Array(reduce(_merged, map(type_of, value), nothing))
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
    """2026-02-30 looks like a day and is none."""
    try:
        datetime.fromisoformat(text[:16])
    except ValueError:
        return False
    return True


def _merged(one: Type, other: Type) -> Type:
    """The narrowest type that holds both."""
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
    """A type in Spark's DDL. What was never seen, and an empty object, is a STRING."""
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
    """A field's name as DDL takes it."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    return f"`{name.replace('`', '``')}`"


#: The most records of all partitions together; a topic may have 10,000 of them.
RECORDS_MAX = 20_000

_BATCH = 1_000
_POLL_SECONDS = 1.0

#: Without a commit, and without the second librdkafka waits between fetches to save memory.
_SETTINGS = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": 10,
}


@dataclass(frozen=True)
class Sample:
    """``values`` and ``keys`` of the oldest and the newest records of each partition; ``cluster``
    then.
    """

    cluster: Cluster
    values: list[bytes | None]
    keys: list[bytes | None]


def sample(source: KafkaSource, each: int) -> Sample:
    """At most ``each`` records of every partition, half of them the oldest, half the newest; fewer
    where that would make more than :data:`RECORDS_MAX`.

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
    each = max(1, min(each, RECORDS_MAX // len(cluster.bounds)))
    found: list[_Pair] = []
    for window in _windows(cluster.bounds, each):
        found += _read(source, window)
    return Sample(cluster, [value for _, value in found], [key for key, _ in found])


#: A record's key and its value.
_Pair = tuple[bytes | None, bytes | None]

#: What to read of each partition: from, to.
_Window = Mapping[TopicPartition, tuple[int, int]]


def _windows(bounds: Mapping[TopicPartition, Bounds], each: int) -> Iterator[_Window]:
    half = (each + 1) // 2
    old = {tp: (b.beginning, min(b.end, b.beginning + half)) for tp, b in bounds.items()}
    yield _filled(old)
    yield _filled({tp: (max(old[tp][1], b.end - (each - half)), b.end) for tp, b in bounds.items()})


def _filled(window: _Window) -> _Window:
    return {tp: span for tp, span in window.items() if span[0] < span[1]}


def _read(source: KafkaSource, window: _Window) -> Iterator[_Pair]:
    """Keys and values in ``window``; fewer where transactions or compaction left holes."""
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
    """Whether this is the end of a partition, and no record."""
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

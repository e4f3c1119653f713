"""A small batch, fetched by this process: one consumer, one request for all partitions of a broker.

Spark's connector has a consumer for each partition, and each asks its broker several things, one
after the other. That is nothing where each partition has much; of a thousand partitions with a
record each it is all there is to do.

Nothing is decided here. A batch that cannot be had at once and whole, for whatever reason, is left
to Spark's connector, which looks again and says what is wrong.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.source.client_options import silent_logger
from eo_pipeline.source.clients import librdkafka_settings
from eo_pipeline.source.config import KafkaSource

#: The most that is fetched here, in bytes of values: it goes to Spark with the plan.
FETCHED_BYTES_MAX = 16 * 1024 * 1024

#: Seconds without a record until it is left to Spark; milliseconds of a look at what came.
PATIENCE_S = 5.0
_LOOK_S = 0.005
_AT_ONCE = 10_000

#: ``source.client`` goes before them. A broker need not hold back what it has nothing for.
TUNING = {"fetch.wait.max.ms": "1"}

#: Nothing but the offsets that were planned, and nothing that is not as it was written.
DECIDED = {
    "auto.offset.reset": "error",
    "check.crcs": "true",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "queued.max.messages.kbytes": str(FETCHED_BYTES_MAX // 1024),
}

#: Columns and types of Spark's Kafka connector.
_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)

log = logging.getLogger(__name__)

_Place = tuple[str, int]


class Fetched(NamedTuple):
    """All ``records`` of some ranges, in Spark's Kafka columns and the order of each partition; and
    the ``runs`` of offsets that they have, which are the ranges unless those have holes.
    """

    records: pa.Table
    runs: tuple[OffsetRange, ...]


class NotFetchedError(Exception):
    """It could not be had at once and whole."""


def fetched(source: KafkaSource, ranges: Sequence[OffsetRange], pipeline: str) -> Fetched | None:
    """The records of ``ranges``; None: Spark's connector should read them.

    It also should where ``source.spark_options`` says how to.
    """
    if source.spark_options or not ranges:
        return None
    try:
        return _table(_messages(source, ranges, pipeline))
    except (KafkaException, UnicodeDecodeError, NotFetchedError) as error:
        log.info("%s: Spark reads what could not be fetched: %s", pipeline, error)
        return None


def _messages(
    source: KafkaSource, ranges: Sequence[OffsetRange], pipeline: str
) -> Mapping[_Place, Sequence[Message]]:
    """Of each partition the records of its range, by their offsets."""
    consumer = Consumer(_settings(source, ranges, pipeline), logger=silent_logger())
    try:
        return collected(consumer, ranges)
    finally:
        consumer.close()


def collected(consumer: Consumer, ranges: Sequence[OffsetRange]) -> Mapping[_Place, list[Message]]:
    """Of each partition the records of its range, by their offsets. It must not end beyond the
    last stable offset.

    Raises:
        NotFetchedError: a partition cannot be read, or does not answer; or they are too much.
    """
    waiting = {(each.topic, each.partition): each for each in ranges}
    found: dict[_Place, list[Message]] = defaultdict(list)
    left, size = sum(each.span for each in ranges), 0
    consumer.assign([ClientTopicPartition(r.topic, r.partition, r.start) for r in ranges])
    heard = time.monotonic()
    while waiting:
        # a look ends with as many as were asked for, or with its time
        for message in consumer.consume(min(max(left, 1), _AT_ONCE), _LOOK_S):
            place, offset = _place(message)
            if (range_ := waiting.get(place)) is None:
                continue
            heard = time.monotonic()
            if message.error() is None and range_.start <= offset < range_.end:
                found[place].append(message)
                left -= 1
                size += len(message.value() or b"")
            # the end of the log is heard of as the offset of the next record
            if offset >= range_.end - (message.error() is None):
                del waiting[place]
        # not so what tells of no partition, a broker that is away, say, again and again
        if waiting and time.monotonic() - heard > PATIENCE_S:
            raise NotFetchedError(f"{len(waiting)} partitions did not answer")
        if size > FETCHED_BYTES_MAX:
            raise NotFetchedError(f"more than {FETCHED_BYTES_MAX} bytes")
    return found


def _settings(source: KafkaSource, ranges: Sequence[OffsetRange], pipeline: str) -> dict[str, Any]:
    ahead = {"queued.min.messages": str(max(each.span for each in ranges))}
    return {
        **TUNING,
        **librdkafka_settings(source),
        **DECIDED,
        **ahead,
        "group.id": f"eo-{pipeline}-fetch",
        "isolation.level": source.isolation,
    }


def _place(message: Message) -> tuple[_Place, int]:
    """Where ``message`` is from. One that tells of no partition is from none that is waited for: a
    connection that was lost, or a consumer group that we may not ask for and do not need.

    Raises:
        NotFetchedError: a partition cannot be read.
    """
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    error = message.error()
    if topic is None or partition is None or offset is None:
        return ("", -1), OFFSET_INVALID
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise NotFetchedError(f"{topic}[{partition}]: {error}")
    return (topic, partition), offset


def _table(found: Mapping[_Place, Sequence[Message]]) -> Fetched:
    messages = [message for place in sorted(found) for message in found[place]]
    if not messages:
        raise NotFetchedError("there is no record")
    records = _records(messages)
    return Fetched(records, tuple(_runs(*map(records.column, ("topic", "partition", "offset")))))


def _records(messages: Sequence[Message]) -> pa.Table:
    times = [message.timestamp() for message in messages]
    if any(kind == TIMESTAMP_NOT_AVAILABLE for kind, _ in times):
        raise NotFetchedError("a record has no timestamp")
    columns: Mapping[str, list[Any]] = {
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "topic": [message.topic() for message in messages],
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        "timestamp": [milliseconds * 1000 for _, milliseconds in times],
        # Java counts from zero
        "timestampType": [kind - 1 for kind, _ in times],
        "headers": [message.headers() or None for message in messages],
    }
    return pa.table(columns, schema=_SCHEMA)


def _runs(*columns: pa.ChunkedArray) -> Iterator[OffsetRange]:
    """Ranges without holes, of records by topic, partition and offset."""
    places = zip(*(column.to_pylist() for column in columns), strict=True)
    topic, partition, start = next(places)
    end = start + 1
    for place in places:
        if place == (topic, partition, end):
            end += 1
            continue
        if place < (topic, partition, end):
            raise NotFetchedError(f"{topic}[{partition}]: offset {end - 1} came twice")
        yield OffsetRange(topic, partition, start, end)
        topic, partition, start = place
        end = start + 1
    yield OffsetRange(topic, partition, start, end)

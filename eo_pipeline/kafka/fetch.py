"""Fetch of a small batch by this process: one consumer, one request for all partitions of a broker.

Spark's connector has a consumer for each partition, and each sends its broker several requests in
sequence. That overhead is negligible where each partition has many records; for a thousand
partitions with one record each it is nearly all the work.

Nothing is decided here. A batch that cannot be fetched at once and whole, for whatever reason, is
left to Spark's connector, which reads it again and reports the error.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline._lazy import pa
from eo_pipeline.errors import SetupError
from eo_pipeline.kafka.client import silent_logger
from eo_pipeline.kafka.source import KafkaSource, librdkafka_settings
from eo_pipeline.ledger.offsets import OffsetRange

#: The most that is fetched here, in bytes of values, keys and headers: it goes to Spark with the
#: plan.
FETCHED_BYTES_MAX = 16 * 1024 * 1024

#: The same of what nobody but this process can read; see :func:`is_of_odd_times`.
ODD_BYTES_MAX = 512 * 1024 * 1024

#: Milliseconds since 1970 of the first moment of year 1, and of the last of year 9999.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999

#: What Spark says of a record's timestamp that is in nanoseconds, say.
_ODD_TIME = re.compile(r"ArithmeticException: long overflow[\s\S]*KafkaRecordToRowConverter")

#: Seconds without a record until it is left to Spark; milliseconds of a look at what came.
PATIENCE_S = 5.0
_LOOK_S = 0.001
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


def is_of_odd_times(text: str | None) -> bool:
    """Return whether a job failed, by the ``text`` of its error, because a record's timestamp is
    beyond the times of Spark's connector. Here it is null.
    """
    return bool(_ODD_TIME.search(text or ""))


def fetched_alone(source: KafkaSource, ranges: Sequence[OffsetRange], pipeline: str) -> Fetched:
    """The records of ``ranges``, at which Spark's connector gives up.

    Raises:
        SetupError: they cannot be had by this process either.
    """
    records = fetched(source, ranges, pipeline, ODD_BYTES_MAX)
    if records is None:
        raise SetupError(
            f"Pipeline {pipeline!r}: a record has a timestamp (in nanoseconds, say) at which "
            "Spark's connector fails, and this process could not fetch the batch itself: it is "
            f"larger than {ODD_BYTES_MAX >> 20} MiB, or source.spark_options is set. "
            "Nothing was committed. To get past it, set source.max_bytes to 100000000 and remove "
            "source.spark_options meanwhile."
        )
    return records


def fetched(
    source: KafkaSource,
    ranges: Sequence[OffsetRange],
    pipeline: str,
    bytes_max: int | None = None,
) -> Fetched | None:
    """The records of ``ranges``; None: Spark's connector should read them, since they are more than
    so many bytes (:data:`FETCHED_BYTES_MAX`), or cannot be had at once.

    It also should where ``source.spark_options`` says how to.
    """
    if source.spark_options or not ranges:
        return None
    try:
        return _table(_messages(source, ranges, pipeline, bytes_max or FETCHED_BYTES_MAX))
    except (KafkaException, UnicodeDecodeError, NotFetchedError) as error:
        log.info(
            "%s: the direct fetch failed, so Spark's Kafka reader is used: %s", pipeline, error
        )
        return None


def _messages(
    source: KafkaSource, ranges: Sequence[OffsetRange], pipeline: str, bytes_max: int
) -> Mapping[_Place, Sequence[Message]]:
    """Of each partition the records of its range, by their offsets."""
    consumer = Consumer(_settings(source, ranges, pipeline), logger=silent_logger())
    try:
        return collected(consumer, ranges, bytes_max)
    finally:
        consumer.close()


def collected(
    consumer: Consumer, ranges: Sequence[OffsetRange], bytes_max: int = FETCHED_BYTES_MAX
) -> Mapping[_Place, list[Message]]:
    """Of each partition the records of its range, by their offsets. It must not end beyond the
    last stable offset.

    Raises:
        NotFetchedError: a partition cannot be read, or does not answer; or they are too much.
    """
    waiting = {
        (offset_range.topic, offset_range.partition): offset_range for offset_range in ranges
    }
    messages: dict[_Place, list[Message]] = defaultdict(list)
    left, size = sum(offset_range.span for offset_range in ranges), 0
    consumer.assign([ClientTopicPartition(r.topic, r.partition, r.start) for r in ranges])
    heard = time.monotonic()
    while waiting:
        done = []
        # a look ends with as many as were asked for, or with its time
        for message in consumer.consume(min(max(left, 1), _AT_ONCE), _LOOK_S):
            place, offset = _place(message)
            if (range_ := waiting.get(place)) is None:
                continue
            heard = time.monotonic()
            if message.error() is None and range_.start <= offset < range_.end:
                messages[place].append(message)
                left -= 1
                size += _size(message)
            # the end of the log is heard of as the offset of the next record
            if offset >= range_.end - (message.error() is None):
                del waiting[place]
                done.append(ClientTopicPartition(*place))
        if done and waiting:
            # the rest of its batches, which the client has already unpacked, is dropped
            consumer.incremental_unassign(done)
        # not so what tells of no partition, a broker that is away, say, again and again
        if waiting and time.monotonic() - heard > PATIENCE_S:
            raise NotFetchedError(f"{len(waiting)} partitions did not answer")
        if size > bytes_max:
            raise NotFetchedError(f"more than {bytes_max} bytes")
    return messages


def _size(message: Message) -> int:
    """Its bytes, as they are without compression."""
    headers: Any = message.headers() or ()
    of_headers = sum(len(name) + len(value or b"") for name, value in headers)
    return len(message.value() or b"") + len(message.key() or b"") + of_headers


def _settings(source: KafkaSource, ranges: Sequence[OffsetRange], pipeline: str) -> dict[str, Any]:
    ahead = {"queued.min.messages": str(max(offset_range.span for offset_range in ranges))}
    return {
        **TUNING,
        **librdkafka_settings(source),
        **DECIDED,
        **ahead,
        "group.id": f"eo-{pipeline}-fetch",
        "isolation.level": source.isolation,
    }


def _place(message: Message) -> tuple[_Place, int]:
    """Return the partition of ``message``. One without a partition belongs to no range: a
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


def _table(messages_by_partition: Mapping[_Place, Sequence[Message]]) -> Fetched:
    messages = [
        message
        for place in sorted(messages_by_partition)
        for message in messages_by_partition[place]
    ]
    if not messages:
        raise NotFetchedError("there is no record")
    records = _records(messages)
    return Fetched(records, tuple(_runs(*map(records.column, ("topic", "partition", "offset")))))


def _schema() -> pa.Schema:
    """Return the columns and types of Spark's Kafka connector."""
    return pa.schema(
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
        "timestamp": [_micros(milliseconds) for _, milliseconds in times],
        # Java counts from zero
        "timestampType": [kind - 1 for kind, _ in times],
        "headers": [message.headers() or None for message in messages],
    }
    return pa.table(columns, schema=_schema())


def _micros(milliseconds: int) -> int | None:
    """Null of a timestamp outside the years 1 to 9999."""
    return milliseconds * 1000 if _FIRST_MS <= milliseconds <= _LAST_MS else None


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

"""A sample of a topic's records, read without leaving a trace in Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline.errors import SourceError, SourceUnavailableError
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.client_options import silent_logger
from eo_pipeline.source.clients import librdkafka_settings
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.discovery import Bounds, Cluster

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

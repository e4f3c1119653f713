"""The ledger as a Kafka topic: one partition, one record a version, never deleted.

Versions rise with offsets, but every transaction also leaves a marker, and an aborted one leaves
records nobody is shown: the offset of a version cannot be computed. The head is found by reading
the last few offsets, and a few more if all of those were aborted; an older version by halving.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline.checkpoint import LedgerEntry
from eo_pipeline.errors import ConfigError, LedgerBehindError, SinkUnavailableError
from eo_pipeline.kafka_clients import silent_logger
from eo_pipeline.sinks.kafka.cluster import Cluster, Place
from eo_pipeline.sinks.kafka.errors import error_of, while_asking

#: What the topic is created with. The broker's clock stamps the entries (committed_at).
LEDGER_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": "10485760",
}

#: Settings under which a ledger loses entries.
_NEEDED = ("cleanup.policy", "retention.ms", "retention.bytes")

#: Offsets read at the end to find the head: eight versions with their markers.
_TAIL = 16

#: Entries read at a time by :meth:`LedgerTopic.history`.
_PAGE = 256

_CONSUMER = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # a search reads a handful of records at a time, and waits for each answer
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
    "max.partition.fetch.bytes": 65536,
}


class Found(NamedTuple):
    """An entry and where it lies in the topic."""

    offset: int
    entry: LedgerEntry


def check_settings(topic: str, config: Mapping[str, str]) -> None:
    """Refuse a ledger topic that would forget.

    Raises:
        ConfigError: names the settings.
    """
    needed = {key: LEDGER_SETTINGS[key] for key in _NEEDED}
    wrong = [key for key, value in needed.items() if config.get(key, value) != value]
    if wrong:
        wanted = ", ".join(f"{key}={needed[key]}" for key in wrong)
        raise ConfigError(
            f"the ledger topic {topic!r} would lose entries: set {wanted} on it. A ledger that "
            "forgets its head makes a pipeline start again and publish every record twice."
        )


class LedgerTopic:
    """Reads one pipeline's ledger. Sees what is committed, and nothing else.

    Raises (all methods):
        SinkUnavailableError: the cluster does not answer.
    """

    def __init__(
        self, cluster: Cluster, settings: Mapping[str, Any], topic: str, pipeline: str
    ) -> None:
        self.place = Place(topic, 0)
        self._cluster = cluster
        self._pipeline = pipeline
        # assigned by hand, commits nothing: the group is a name that must be there
        group = {"group.id": f"eo-ledger-{pipeline}"}
        self._consumer = Consumer({**settings, **_CONSUMER, **group}, logger=silent_logger())

    def close(self) -> None:
        self._consumer.close()

    def head(self) -> LedgerEntry | None:
        """The newest entry.

        Raises:
            LedgerBehindError: records of the ledger were deleted, and none is left.
        """
        tail = self._tail()
        return tail[-1].entry if tail else None

    def entry(self, version: int) -> LedgerEntry | None:
        tail = self._tail()
        if not tail or version > tail[-1].entry.version:
            return None
        if version < tail[0].entry.version:
            tail = self._around(version, tail[0].offset)
        return next((found.entry for found in tail if found.entry.version == version), None)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        end = self._end()
        offset = self._lower_bound(since, end)
        while page := self._read(offset, end, _PAGE):
            yield from (found.entry for found in page if found.entry.version >= since)
            offset = page[-1].offset + 1

    def wait_until_settled(self) -> None:
        """Wait until no transaction is open here, so that the last entry shown is the last.

        To be called after ``init_transactions``, which ends those of this pipeline.
        """
        end = self._cluster.ends([self.place], committed=False)
        if not self._cluster.wait_until_readable(end, self._cluster.timeout):
            raise SinkUnavailableError(
                f"{self.place.topic}: a producer that is not this pipeline's holds a transaction "
                "open in the ledger. Nothing was published. kafka-transactions.sh "
                "find-hanging shows it; abort it there."
            )

    def _end(self) -> int:
        return self._cluster.ends([self.place], committed=True)[self.place]

    def _tail(self) -> list[Found]:
        """The last entries, oldest first; empty only for an empty ledger."""
        end, size = self._end(), _TAIL
        while not (found := self._read(max(0, end - size), end)):
            if size >= end:
                self._refuse_emptied()
                return []
            size *= 4
        return found

    def _around(self, version: int, stop: int) -> list[Found]:
        start = self._lower_bound(version, stop)
        return self._read(start, min(stop, start + _TAIL))

    def _lower_bound(self, version: int, stop: int) -> int:
        """An offset at or before that of ``version``, less than a tail away from it or from the
        entry before; found by halving.
        """
        low, high = 0, stop
        while high - low > _TAIL:
            middle = (low + high) // 2
            first = self._read(middle, high, 1)
            if not first or first[0].entry.version > version:
                high = middle
            else:
                low = first[0].offset
                if first[0].entry.version == version:
                    break
        return low

    def _read(self, start: int, stop: int, limit: int | None = None) -> list[Found]:
        """At most ``limit`` entries in ``[start, stop)``; ``stop`` must be readable by now."""
        found: list[Found] = []
        if start >= stop:
            return found
        self._consumer.assign([ClientTopicPartition(*self.place, start)])
        try:
            for message in self._messages(stop):
                found.append(self._found(message))
                if len(found) == limit:
                    break
        except KafkaException as error:
            raise while_asking(error_of(error), self.place.topic) from error
        finally:
            self._consumer.unassign()
        return found

    def _messages(self, stop: int) -> Iterator[Message]:
        deadline = time.monotonic() + self._cluster.timeout
        while True:
            message = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise SinkUnavailableError(
                    f"{self.place.topic}: the ledger could not be read in time"
                )
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if (message.offset() or 0) >= stop:
                return
            # an end before ``stop`` is that of a leader that does not know better yet (KIP-207)
            if error is None:
                yield message

    def _found(self, message: Message) -> Found:
        raw = json.loads(message.value() or b"")
        if raw["pipeline"] != self._pipeline:
            raise ConfigError(
                f"sink.ledger_topic: {self.place.topic!r} is the ledger of the pipeline "
                f"{raw['pipeline']!r}; every pipeline needs one of its own"
            )
        moment = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
        return Found(
            message.offset() or 0, replace(LedgerEntry.from_json(raw), committed_at=moment)
        )

    def _refuse_emptied(self) -> None:
        beginning = self._cluster.beginning(self.place)
        if beginning > 0:
            raise LedgerBehindError(
                f"{self.place.topic}: every entry of the ledger was deleted (its first offset is "
                f"{beginning}). Nothing was read or written. The topic must keep its records for "
                "ever (retention.ms=-1, retention.bytes=-1, cleanup.policy=delete)."
            )


def to_record(entry: LedgerEntry) -> bytes:
    """The entry as its record's value; ``committed_at`` is the record's own timestamp."""
    return json.dumps(entry.to_json()).encode()

"""Single records of logs, fetched to tell logs apart, and transactions that are open."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.kafka.client import silent_logger
from eo_pipeline.kafka.fetch import DECIDED, PATIENCE_S, TUNING, NotFetchedError, collected
from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.kafka.source import KafkaSource, librdkafka_settings
from eo_pipeline.ledger.offsets import OffsetRange, Offsets, TopicPartition

#: Bytes of a partition in one answer. One batch is enough, and most are smaller: with less than a
#: batch the broker answers for one partition at a time, with more it sends what nobody looks at.
#: Once it has more the client pauses, a whole second by default, which outlives an assignment.
_FEW = {
    "fetch.message.max.bytes": str(64 * 1024),
    "queued.min.messages": "1",
    "fetch.queue.backoff.ms": "2",
}

_LOOK_S = 0.001

#: How librdkafka ends the text of an error of KIP-320; its code is that of any offset to reset.
_TRUNCATION = "truncation detected"


class LastRecord(NamedTuple):
    """Position and contents of a record."""

    offset: int
    digest: str


class LogReader(Protocol):
    """Queries of logs, for the comparison with marks."""

    def last_records(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, LastRecord]:
        """The last record of each range, of those that have one; no range is beyond what its
        partition holds.
        """

    def truncated(self, below: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        """Partitions whose leader's epoch, the second number, ended below an offset, the first."""


class Logs:
    """The logs of one source, read by one consumer that is made when it is needed.

    Raises (all methods):
        SourceUnavailableError: a partition cannot be read now, or not by this user.
    """

    def __init__(self, source: KafkaSource) -> None:
        self._source = source

    @cached_property
    def _consumer(self) -> Consumer:
        return self._made(self._source.isolation)

    def _made(self, isolation: str) -> Consumer:
        settings = {
            **TUNING,
            **librdkafka_settings(self._source),
            **DECIDED,
            **_FEW,
            "group.id": "eo-marks",
            "isolation.level": isolation,
        }
        return Consumer(settings, logger=silent_logger())

    def last_records(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, LastRecord]:
        """See :class:`LogReader`; one request for all partitions of a broker."""
        records = self._collected(self._consumer, ranges) if ranges else {}
        return {
            TopicPartition(*place): LastRecord(_int(messages[-1].offset()), digest(messages[-1]))
            for place, messages in records.items()
        }

    def times(self, offsets: Offsets) -> Mapping[TopicPartition, datetime]:
        """Return when the records at these offsets were written, those of open transactions too."""
        ranges = [OffsetRange(*tp, offset, offset + 1) for tp, offset in offsets.items()]
        records = self._collected(self._made("read_uncommitted"), ranges) if ranges else {}
        return {
            TopicPartition(*place): datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            for place, (message, *_) in records.items()
        }

    def _collected(
        self, consumer: Consumer, ranges: Sequence[OffsetRange]
    ) -> Mapping[tuple[str, int], list[Message]]:
        try:
            records = collected(consumer, ranges)
            consumer.unassign()
        except (KafkaException, NotFetchedError) as error:
            raise self._unavailable(error) from error
        return records

    def truncated(self, below: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        """See :class:`LogReader`: librdkafka asks OffsetsForLeaderEpoch before it fetches."""
        if not below:
            return set()
        waiting, truncated = {*below}, set()
        try:
            self._consumer.assign(
                [
                    ClientTopicPartition(tp.topic, tp.partition, offset, leader_epoch=epoch)
                    for tp, (offset, epoch) in below.items()
                ]
            )
            heard = time.monotonic()
            while waiting and time.monotonic() - heard < PATIENCE_S:
                told = []
                for message in self._consumer.consume(len(waiting), _LOOK_S):
                    tp = TopicPartition(message.topic() or "", _int(message.partition()))
                    error = message.error()
                    if tp in waiting:
                        # whatever else is said of a partition comes after its epoch was compared
                        waiting.remove(tp)
                        told.append(ClientTopicPartition(*tp))
                        truncated |= {tp} if error and _TRUNCATION in error.str() else set()
                        heard = time.monotonic()
                if told and waiting:
                    self._consumer.incremental_unassign(told)
            self._consumer.unassign()
        except KafkaException as error:
            raise self._unavailable(error) from error
        if waiting:
            raise self._unavailable(f"{len(waiting)} partitions did not answer")
        return truncated

    def _unavailable(self, why: object) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"Kafka at {self._source.bootstrap_servers} could not be read: {why}. It is not known "
            "whether its logs are those that were read before, so nothing was read. Check that the "
            "partitions have leaders, and that this user may read the topics; then run again."
        )


def digest(message: Message) -> str:
    """Digest of a record in 16 hexadecimal digits: partition, offset, time, key and value. Where
    one record stands in place of another they differ, but for one case in 2 ** 64.
    """
    hashed = hashlib.blake2b(digest_size=8)
    hashed.update(repr((message.partition(), message.offset(), message.timestamp())).encode())
    for part in (message.key(), message.value()):
        data = b"" if part is None else bytes(part)
        hashed.update(f"{-1 if part is None else len(data)}:".encode())
        hashed.update(data)
    return hashed.hexdigest()


def _int(value: int | None) -> int:
    return -1 if value is None else value


#: Producers end a transaction within milliseconds; the broker ends it after this, by default.
USUAL = timedelta(seconds=60)


@dataclass(frozen=True)
class OpenTransaction:
    """The first open transaction of a partition: its first record's ``offset`` and time (None: not
    known), and the offsets that wait until it ends, its own among them.
    """

    topic: str
    partition: int
    offset: int
    waiting: int
    since: datetime | None

    @property
    def is_unusual(self) -> bool:
        """Return whether it is older than a transaction should be, or may be."""
        return self.since is None or datetime.now(UTC) - self.since > USUAL

    @property
    def remedy(self) -> str:
        """Commands that name its producer and end it."""
        return (
            "To find its producer: `kafka-transactions.sh describe-producers --topic "
            f"{self.topic} --partition {self.partition}`. If it outlives the producer's "
            f"transaction.timeout.ms, end it with its `abort --start-offset {self.offset}`."
        )

    def __str__(self) -> str:
        since = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else "by a producer"
        return (
            f"{self.topic}[{self.partition}]: {self.waiting:,} offsets wait behind a transaction "
            f"open {since}, from offset {self.offset:,} on"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "since": self.since.isoformat() if self.since else None}


def open_transactions(cluster: Cluster, logs: Logs) -> tuple[OpenTransaction, ...]:
    """Those of ``cluster`` behind which something waits, the oldest first."""
    firsts = {tp: bounds.end for tp, bounds in cluster.bounds.items() if bounds.unstable}
    times = _times(logs, firsts)
    transactions = [
        OpenTransaction(*tp, offset, cluster.bounds[tp].unstable, times.get(tp))
        for tp, offset in sorted(firsts.items())
    ]
    return tuple(sorted(transactions, key=_age))


def _times(logs: Logs, firsts: Offsets) -> Mapping[TopicPartition, datetime]:
    """Add the age of open transactions where it can be had, without delaying the rest."""
    try:
        return logs.times(firsts)
    except SourceUnavailableError:
        return {}


def _age(transaction: OpenTransaction) -> datetime:
    return transaction.since or datetime.now(UTC)


def said_of(transactions: Sequence[OpenTransaction]) -> str:
    """The oldest, in a clause, and how many there are besides."""
    more = len(transactions) - 1
    return f"{transactions[0]}{f'; and {more} more open transactions' if more else ''}"

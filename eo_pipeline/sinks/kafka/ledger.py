"""The ledger as a Kafka topic: one partition, one record a version, never deleted.

With several shards there is also a marker for each that followed. An entry
counts from the moment on at which all of them are there: until then it is nobody's parent, and
nobody deletes its staged files.

Versions rise with offsets, but every transaction also leaves a marker, and an aborted one leaves
records nobody is shown: the offset of a version cannot be computed. The head is found by reading
the last few offsets, and a few more if all of those were aborted; an older version by halving.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline.errors import ConfigError, FencedError, LedgerBehindError, SinkUnavailableError
from eo_pipeline.kafka.client import silent_logger
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.sinks.kafka.broker import KafkaStore, error_of, wait_until, while_asking

#: In the record of an entry: its producers' ids are those of no other pipeline.
_APART = "apart"

#: Value, key and partition of a ledger record.
LedgerRecord = tuple[bytes, bytes, int]


@dataclass(frozen=True)
class ShardCounts:
    """Division of one version among the shards.

    ``rows``: how many rows each shard publishes, from shard 0 on. ``producers``: how many shards
    the next version may use; no transactional id beyond has a transaction open. ``is_apart``: the
    producers have ids of their own; see :meth:`KafkaSink.earlier_transactional_id`.
    """

    rows: tuple[int, ...] = (0,)
    producers: int = 1
    is_apart: bool = True

    @property
    def followers(self) -> frozenset[int]:
        """The shards that publish rows after shard 0 decided."""
        return frozenset(shard for shard, rows in enumerate(self.rows) if shard and rows)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> Self:
        """Parse a record's shards; a record of before there were shards has none."""
        if raw is None:
            return cls(is_apart=False)
        return cls(tuple(raw["rows"]), raw["producers"], raw.get("ids") == _APART)


@dataclass(frozen=True)
class DecidedEntry:
    """An entry that shard 0 committed, where it lies, and the followers whose marker is there."""

    offset: int
    entry: LedgerEntry
    shards: ShardCounts
    landed: frozenset[int] = frozenset()

    @property
    def missing(self) -> frozenset[int]:
        """The shards whose rows are not visible yet. While there are any, there is no child."""
        return self.shards.followers - self.landed

    def with_marker(self, marker: Marker) -> DecidedEntry:
        """With what ``marker`` says, if it is about this entry."""
        if marker.id != self.entry.id:
            return self
        return replace(self, landed=self.landed | {marker.shard})

    def completed(self) -> DecidedEntry:
        """An entry that has a child: all of it landed, whether its markers were read or not."""
        return replace(self, landed=self.shards.followers)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], offset: int, moment: datetime) -> DecidedEntry:
        entry = LedgerEntry.from_json({**raw, "committed_at": moment.isoformat()})
        return cls(offset, entry, ShardCounts.from_json(raw.get("publication")))


@dataclass(frozen=True)
class Marker:
    """A follower's rows of one entry are visible."""

    id: EntryId
    shard: int

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Marker | None:
        """None for the record of an entry."""
        if "shard" not in raw:
            return None
        return cls(EntryId(raw["version"], raw["transaction_id"]), raw["shard"])


def entry_record(entry: LedgerEntry, shards: ShardCounts) -> LedgerRecord:
    """``committed_at`` is not in it: that is the record's own timestamp."""
    header = {"rows": list(shards.rows), "producers": shards.producers, "ids": _APART}
    raw = {**entry.to_json(), "publication": header}
    return json.dumps(raw).encode(), entry.pipeline.encode(), 0


def marker_record(entry: LedgerEntry, shard: int) -> LedgerRecord:
    """Record that a follower's transaction leaves in the ledger."""
    raw = {"pipeline": entry.pipeline, **entry.id._asdict(), "shard": shard}
    return json.dumps(raw).encode(), f"{entry.pipeline}/{shard}".encode(), 0


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

#: Seconds to watch the ledger after a producer was fenced: whoever did it has rows to send.
RIVAL_SECONDS = 5.0

#: Offsets read at the end to find the head: eight versions with their transaction markers.
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


def open_ledger(store: KafkaStore, topic: str, pipeline: str) -> LedgerTopic:
    """The ledger of ``pipeline``; its topic is created if it is not there.

    Raises:
        ConfigError: the topic cannot hold a ledger.
    """
    partitions = store.counts([topic])[topic]
    if not partitions:
        store.create(topic, LEDGER_SETTINGS)
    elif partitions > 1:
        raise ConfigError(f"sink.ledger_topic: {topic!r} has {partitions} partitions, not one")
    _check_settings(topic, store.config(topic))
    return LedgerTopic(store, topic, pipeline)


def _check_settings(topic: str, config: Mapping[str, str]) -> None:
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

    def __init__(self, store: KafkaStore, topic: str, pipeline: str) -> None:
        self.topic = topic
        self.partition = TopicPartition(topic, 0)
        self._store = store
        self._pipeline = pipeline
        # assigned by hand, commits nothing: the group is a name that must be there
        group = {"group.id": f"eo-ledger-{pipeline}"}
        self._consumer = Consumer({**store.settings, **_CONSUMER, **group}, logger=silent_logger())

    def close(self) -> None:
        self._consumer.close()

    def head(self) -> LedgerEntry | None:
        """The newest entry whose rows are all visible.

        Raises:
            LedgerBehindError: records of the ledger were deleted, and none is left.
        """
        newest = self.newest()
        if newest is None or not newest.missing:
            return newest.entry if newest else None
        return self.entry(newest.entry.version - 1)

    def entry(self, version: int) -> LedgerEntry | None:
        """The entry at ``version`` if its rows are all visible."""
        decided = self.decided(version)
        return None if decided is None or decided.missing else decided.entry

    def newest(self) -> DecidedEntry | None:
        """The newest entry, though shards of it may still be missing."""
        tail = self._tail()
        return tail[-1] if tail else None

    def decided(self, version: int) -> DecidedEntry | None:
        """The entry at ``version``, and what is missing of it if it is the newest."""
        tail = self._tail()
        if not tail or version > tail[-1].entry.version:
            return None
        if version == tail[-1].entry.version:
            return tail[-1]
        if version < tail[0].entry.version:
            tail = self._around(version, tail[0].offset)
        return next(
            (decided.completed() for decided in tail if decided.entry.version == version), None
        )

    def is_decided(self, entry: LedgerEntry) -> bool:
        """True if ``entry`` is in the ledger; shards of it may be missing.

        Raises:
            FencedError: another one has its version.
        """
        held = self.decided(entry.version)
        if held is not None and held.entry.id != entry.id:
            raise FencedError(entry.pipeline, entry.version, winner=held.entry.transaction_id)
        return held is not None

    def is_decided_soon(self, entry: LedgerEntry) -> bool:
        """:meth:`is_decided`, watched for a moment."""
        return wait_until(lambda: self.is_decided(entry), RIVAL_SECONDS)

    def missing(self, entry: LedgerEntry) -> frozenset[int]:
        """The shards of a decided ``entry`` that are not there."""
        held = self.decided(entry.version)
        return frozenset() if held is None else held.missing

    def is_complete_soon(self, entry: LedgerEntry) -> bool:
        """True if no shard of a decided ``entry`` is missing, watched for a moment."""
        return wait_until(lambda: not self.missing(entry), RIVAL_SECONDS)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        """Entries from ``since`` on whose rows are all visible, oldest first."""
        head, end = self.head(), self._end()
        offset = self._lower_bound(since, end)
        while head is not None and (page := self._read(offset, end, _PAGE)):
            wanted = range(since, head.version + 1)
            yield from (decided.entry for decided in page if decided.entry.version in wanted)
            offset = page[-1].offset + 1

    def wait_for_open_transactions(self) -> None:
        """Wait until no transaction is open here, so that the last entry shown is the last.

        To be called after ``init_transactions``, which ends those of this pipeline.
        """
        end = self._store.ends([self.partition], committed=False)
        if not self._store.wait_until_readable(end, self._store.timeout):
            raise SinkUnavailableError(
                f"{self.topic}: a producer that is not this pipeline's holds a transaction "
                "open in the ledger. Nothing was published. kafka-transactions.sh "
                "find-hanging shows it; abort it there."
            )

    def _end(self) -> int:
        return self._store.ends([self.partition], committed=True)[self.partition]

    def _tail(self) -> list[DecidedEntry]:
        """The last entries, oldest first; empty only for an empty ledger."""
        end, size = self._end(), _TAIL
        while not (page := self._read(max(0, end - size), end)):
            if size >= end:
                self._refuse_emptied()
                return []
            size *= 4
        return page

    def _around(self, version: int, stop: int) -> list[DecidedEntry]:
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

    def _read(self, start: int, stop: int, limit: int | None = None) -> list[DecidedEntry]:
        """At most ``limit`` entries in ``[start, stop)``, with the markers that follow them but
        for those of the last one if there is a limit; ``stop`` must be readable by now.
        """
        entries: list[DecidedEntry] = []
        if start >= stop:
            return entries
        self._consumer.assign([ClientTopicPartition(*self.partition, start)])
        try:
            for message in self._messages(stop):
                self._note(message, entries)
                if len(entries) == limit:
                    break
        except KafkaException as error:
            raise while_asking(error_of(error), self.topic) from error
        finally:
            self._consumer.unassign()
        return entries

    def _messages(self, stop: int) -> Iterator[Message]:
        deadline = time.monotonic() + self._store.timeout
        while True:
            message = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise SinkUnavailableError(f"{self.topic}: the ledger could not be read in time")
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if (message.offset() or 0) >= stop:
                return
            # an end before ``stop`` is that of a leader that does not know better yet (KIP-207)
            if error is None:
                yield message

    def _note(self, message: Message, entries: list[DecidedEntry]) -> None:
        """Add the entry to ``entries``, or the marker to the entry that is there."""
        raw = json.loads(message.value() or b"")
        self._refuse_strangers(raw["pipeline"])
        marker = Marker.from_json(raw)
        if marker is None:
            moment = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            entries.append(DecidedEntry.from_json(raw, message.offset() or 0, moment))
        elif entries:
            entries[-1] = entries[-1].with_marker(marker)

    def _refuse_strangers(self, pipeline: str) -> None:
        if pipeline != self._pipeline:
            raise ConfigError(
                f"sink.ledger_topic: {self.topic!r} is the ledger of the pipeline "
                f"{pipeline!r}; every pipeline needs one of its own"
            )

    def _refuse_emptied(self) -> None:
        beginning = self._store.beginning(self.partition)
        if beginning > 0:
            raise LedgerBehindError(
                f"{self.topic}: every entry of the ledger was deleted (its first offset is "
                f"{beginning}). Nothing was read or written. The topic must keep its records for "
                "ever (retention.ms=-1, retention.bytes=-1, cleanup.policy=delete)."
            )

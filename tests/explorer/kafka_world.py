"""A Kafka that is an adversary: a small model of topics, and everything that may happen to them.

Pure and seeded. What a pipeline is shown are the values its real functions take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.kafka.logs import LastRecord
from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition

NAMES = ("a", "b")
_PARTITIONS_MAX = 2
_SNAPSHOTS_MAX = 6

#: (the topic's UUID, partition, offset, number): what a record is, and where it is.
Record = tuple[str, int, int, int]


class Written(NamedTuple):
    """A record of a log: its own number, and the epoch of the leader that wrote it."""

    number: int
    epoch: int


@dataclass
class Log:
    """One partition: records ``[begin, high)``, those from ``stable`` on in an open transaction.

    Retention has announced to delete those below ``doomed``. ``written`` are all records that were
    not truncated, by offset, those below ``begin`` too; ``epoch`` is the leader's.
    """

    begin: int = 0
    stable: int = 0
    high: int = 0
    doomed: int = 0
    shown: bool = True
    epoch: int = 0
    written: list[Written] = field(default_factory=list)


@dataclass
class Topic:
    """A topic that exists. Each has a UUID of its own, whatever its name."""

    uuid: str
    logs: list[Log]
    shown: bool = True


@dataclass
class World:
    """All topics by name, and what stale brokers may still answer."""

    random: Random
    topics: dict[str, Topic] = field(default_factory=dict)
    stale: list[dict[str, Topic]] = field(default_factory=list)
    born: int = 0
    records: int = 0
    #: what the last look was at, until the next step
    looked_at: dict[str, Topic] = field(default_factory=dict)

    def step(self) -> str:
        """One thing happens. Returns what, in words."""
        self.stale = [*self.stale, deepcopy(self.topics)][-_SNAPSHOTS_MAX:]
        name = self.random.choice(NAMES)
        topic = self.topics.get(name)
        if topic is None:
            return self._create(name)
        what = self.random.choices(
            ("log", "hide", "show", "grow", "replace", "delete"), (16, 2, 4, 1, 1, 1)
        )[0]
        if what in ("hide", "show"):
            topic.shown = what == "show"
        elif what == "grow" and len(topic.logs) < _PARTITIONS_MAX:
            topic.logs.append(Log())
        elif what in ("replace", "delete"):
            del self.topics[name]
            return f"{self._create(name)} anew" if what == "replace" else f"delete {name}"
        else:
            number = self.random.randrange(len(topic.logs))
            return f"{self._log_step(topic.logs[number])} {name}[{number}]"
        return f"{what} {name}"

    def _create(self, name: str) -> str:
        self.born += 1
        logs = [Log() for _ in range(self.random.randint(1, _PARTITIONS_MAX))]
        self.topics[name] = Topic(f"U{self.born}", logs)
        return f"create {name} as U{self.born}"

    def _log_step(self, log: Log) -> str:
        what = self.random.choices(
            ("write", "open", "commit", "doom", "expire", "truncate", "grow again", "hide", "show"),
            (8, 2, 3, 1, 2, 1, 1, 1, 2),
        )[0]
        if what == "write":
            self._write(log, self.random.randint(1, 3))
            log.stable = log.high
        elif what == "open":
            self._write(log, 1)
        elif what == "commit":
            log.stable = log.high
        elif what == "doom":
            log.doomed = self.random.randint(log.begin, log.stable)
        elif what == "expire":
            log.begin = max(log.begin, log.doomed, self.random.randint(log.begin, log.stable))
        elif what == "truncate":
            self._truncate(log)
        elif what == "grow again":
            before = log.high
            self._truncate(log)
            self._write(log, before - log.high + self.random.randint(0, 2))
            log.stable = log.high
        else:
            log.shown = what == "show"
        return what

    def _write(self, log: Log, count: int) -> None:
        numbers = range(self.records, self.records + count)
        self.records += count
        log.written += [Written(number, log.epoch) for number in numbers]
        log.high = len(log.written)

    def _truncate(self, log: Log) -> None:
        """By an election, after which another leader writes; or by a cluster that was restored as a
        whole, whose epochs may be those that it had.
        """
        log.high = self.random.randint(log.begin, log.high)
        log.stable = min(log.stable, log.high)
        log.doomed = min(log.doomed, log.high)
        del log.written[log.high :]
        log.epoch += self.random.choice((0, 1, 1))

    def calm_down(self) -> None:
        """All is shown and every transaction over: what is there now can be read."""
        for topic in self.topics.values():
            topic.shown = True
            for log in topic.logs:
                log.shown, log.stable = True, log.high

    def look(self, *, committed: bool, stale: bool = False) -> Cluster:
        """What a broker answers, as it is or as it was once, by the isolation."""
        topics = self.random.choice(self.stale) if stale and self.stale else self.topics
        self.looked_at = topics
        bounds = {
            TopicPartition(name, number): Bounds(
                log.begin, log.stable if committed else log.high, log.high, log.epoch
            )
            for name, topic in topics.items()
            if topic.shown
            for number, log in enumerate(topic.logs)
            if log.shown
        }
        shown = {tp.topic for tp in bounds}
        return Cluster(bounds, {name: topics[name].uuid for name in shown})

    def read(self, ranges: tuple[OffsetRange, ...]) -> list[Record] | None:
        """The records that are there now, whoever they belong to; None if the job fails."""
        found: list[Record] = []
        for r in ranges:
            topic = self.topics.get(r.topic)
            if topic is None or not topic.shown or r.partition >= len(topic.logs):
                return None
            log = topic.logs[r.partition]
            if not log.begin <= r.start <= r.end <= log.high:
                return None
            found += [
                (topic.uuid, r.partition, offset, log.written[offset].number)
                for offset in range(r.start, r.end)
            ]
        return found

    def last_records(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, LastRecord]:
        """Of what was looked at last."""
        found = {}
        for r in ranges:
            log = self.looked_at[r.topic].logs[r.partition]
            assert r.start < r.end <= log.high, "nobody would ever answer"
            if r.start < log.begin:
                raise SourceUnavailableError(f"{r} is not there")
            number = log.written[r.end - 1].number
            found[r.topic_partition] = LastRecord(r.end - 1, str(number))
        return found

    def truncated(self, below: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        """As a broker answers OffsetsForLeaderEpoch, of what was looked at last."""
        return {
            tp
            for tp, (offset, epoch) in below.items()
            if sum(
                each.epoch <= epoch for each in self.looked_at[tp.topic].logs[tp.partition].written
            )
            < offset
        }

    def floors(self) -> Mapping[TopicPartition, int]:
        """What retention has announced to delete."""
        return {
            TopicPartition(name, number): log.doomed
            for name, topic in self.topics.items()
            for number, log in enumerate(topic.logs)
            if log.doomed > log.begin
        }

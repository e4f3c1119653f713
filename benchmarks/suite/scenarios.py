"""What is measured: a whole topic into something empty, and a few records at a topic's end."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.suite import topic as topics
from benchmarks.suite.errors import MeasurementError
from benchmarks.suite.peers.peer import Peer
from benchmarks.suite.results import Measurement
from benchmarks.suite.room import Room
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from benchmarks.suite.verify import Expected, compare, expected
from benchmarks.suite.workloads.workload import Workload

#: After so many failures in a row a peer is not tried again.
_FAILURES_MAX = 2
#: Seconds for reading the last output back and for the page.
_RESERVE_S = 20.0

Record = Callable[[Measurement], None]


_EXPECTED: dict[tuple[str, int], Expected] = {}
#: Topics whose rows are kept in memory.
_EXPECTED_MOST = 4


def wanted(workload: Workload, records: int) -> Expected:
    """Made once for all the outputs of one topic."""
    known = _EXPECTED.get((workload.key, records))
    if known is None:
        if len(_EXPECTED) >= _EXPECTED_MOST:
            _EXPECTED.pop(next(iter(_EXPECTED)))
        known = _EXPECTED[workload.key, records] = expected(workload, records)
    return known


def check(topic: Topic, target: Target) -> None:
    """Read the output back and compare.

    Raises:
        MeasurementError: it does not hold every record exactly once.
    """
    workload = topic.workload
    verdict = compare(target.rows(), wanted(workload, topic.records), workload)
    if not verdict.exact:
        raise MeasurementError(f"its output is not exact: {verdict}")


def say(line: str) -> None:
    """Tell at once how far it is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass
class Scenario(ABC):
    """One table of the page."""

    key: str
    room: Room
    peers: Sequence[Peer]
    record: Record
    #: seconds that a round takes on two cores, about: with less time left none is begun
    least: float
    #: what it is a part of, for ``--only``
    group: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self._lasted: dict[Peer, float] = {}
        self._failures: dict[Peer, int] = {}

    @abstractmethod
    def round(self, number: int) -> None:
        """Everybody in turn, beginning with another one each time."""

    def in_turn(self, number: int) -> Sequence[Peer]:
        """Those that are still in, and for whom there is time."""
        first = number % len(self.peers) if self.peers else 0
        order = [*self.peers[first:], *self.peers[:first]]
        return [peer for peer in order if self._failures.get(peer, 0) < _FAILURES_MAX]

    def has_time(self, peer: Peer) -> bool:
        """Whether its run should end before the end, by what it took before."""
        return self.room.left - _RESERVE_S > 1.3 * self._lasted.get(peer, 5.0)

    def attempt(self, peer: Peer, number: int, records: int, work: Callable[[], float]) -> None:
        """Do ``work``, and note its seconds or its fault."""
        started = time.monotonic()
        seconds, fault = None, ""
        try:
            seconds = work()
        except MeasurementError as error:
            fault = str(error)
        self._lasted[peer] = time.monotonic() - started
        self._failures[peer] = self._failures.get(peer, 0) + 1 if fault else 0
        self.tell(measured(self.key, peer, number, records, seconds, fault))

    def tell(self, entry: Measurement) -> None:
        """One line on the screen, one entry in the results."""
        if entry.fault and self.room.left < _RESERVE_S:
            say(f"  {entry.scenario:<12} {entry.peer}: the time was over")
            return
        self.record(entry)
        told = f"failed: {entry.fault}" if entry.seconds is None else f"{entry.seconds:8.2f} s"
        turn = f"round {entry.round + 1}"
        say(f"  {entry.scenario:<12} {turn:<9} {entry.peer:<36} {entry.mode:<7} {told}")


@dataclass
class Bulk(Scenario):
    """A whole topic into an empty store; ``warmups`` runs of each warm peer count for nothing."""

    topic: Topic
    warmups: int = 0
    repeats: int = 1

    def round(self, number: int) -> None:
        self.topic.filled()
        for turn in range(-self.warmups, self.repeats):
            for peer in self.in_turn(number + turn):
                if turn >= 0 and not peer.ready:
                    self._one(peer, number, counts=False)
                if self.has_time(peer):
                    self._one(peer, number * self.repeats + turn, counts=turn >= 0)
        self.room.end_programs()

    def _one(self, peer: Peer, number: int, *, counts: bool) -> None:
        target = self.room.target(peer.store, peer.workload)

        def work() -> float:
            if not peer.ready:
                raise MeasurementError("it did not get warm: its first run failed")
            seconds = peer.run(self.topic, target)
            if peer.store is not Store.NOWHERE:
                check(self.topic, target)
                peer.check(self.topic, target)
            return seconds

        try:
            if counts:
                self.attempt(peer, number, self.topic.records, work)
            else:
                self._warm_up(peer, lambda: peer.run(self.topic, target))
        finally:
            target.remove()

    def _warm_up(self, peer: Peer, work: Callable[[], float]) -> None:
        """A failure shows again, and is noted, when it counts."""
        try:
            work()
        except MeasurementError as error:
            say(f"  {self.key:<12} warm-up  {peer.name:<36} {peer.mode:<7} failed: {error}")


@dataclass
class AtTheEnd(Scenario):
    """New records at the end of a topic that was read to its end; and nothing new.

    ``key`` is for the first, ``idle_key`` for the second.
    """

    topic: Topic
    idle_key: str
    new: int
    steps: int
    #: steps before them that count for nothing
    warmups: int = 0

    def round(self, number: int) -> None:
        """A topic of its own, and for each peer one target for all the steps."""
        name = f"{self.topic.name}-{int(time.time())}"
        topic = replace(self.topic, name=name, records=0)
        topics.create(topic.bootstrap, name, topic.partitions)
        topic = topic.appended(self.topic.records)
        targets = {
            peer: self.room.target(peer.store, peer.workload) for peer in self.in_turn(number)
        }
        ready = [peer for peer in targets if self._first(peer, topic, targets[peer])]
        found: list[tuple[Peer, Measurement]] = []
        for step in range(-self.warmups, self.steps if ready else -self.warmups):
            if self.room.left < 2 * _RESERVE_S:
                break
            topic = topic.appended(self.new)
            turn, first = number * self.steps + step, step % len(ready)
            for key, records in ((self.key, self.new), (self.idle_key, 0)):
                for peer in ready[first:] + ready[:first]:
                    took = self._step(key, peer, turn, records, topic, targets[peer])
                    if step >= 0:
                        found.append((peer, took))
        for peer in ready:
            fault = self._fault(topic, targets[peer])
            for each in (took for owner, took in found if owner is peer):
                self.tell(replace(each, seconds=None, fault=fault) if fault else each)
        for target in targets.values():
            target.remove()
        topics.delete(topic.bootstrap, name)
        self.room.end_programs()

    def _first(self, peer: Peer, topic: Topic, target: Target) -> bool:
        """What lay there before; it counts for nothing."""
        try:
            peer.run(topic, target)
        except MeasurementError as error:
            self.tell(measured(self.key, peer, 0, 0, None, str(error)))
            return False
        return True

    def _step(
        self, key: str, peer: Peer, turn: int, records: int, topic: Topic, target: Target
    ) -> Measurement:
        try:
            return measured(key, peer, turn, records, peer.run(topic, target))
        except MeasurementError as error:
            return measured(key, peer, turn, records, None, str(error))

    def _fault(self, topic: Topic, target: Target) -> str:
        """All the steps at once: what they left is exact only if each of them was."""
        try:
            check(topic, target)
        except MeasurementError as error:
            return str(error)
        return ""


def measured(
    key: str, peer: Peer, turn: int, records: int, seconds: float | None, fault: str = ""
) -> Measurement:
    """An entry of the results."""
    return Measurement(key, peer.name, peer.store, peer.mode, turn, records, seconds, fault)

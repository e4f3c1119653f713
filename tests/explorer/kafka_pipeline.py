"""A pipeline upon the adversary: its real pure functions, a ledger in memory, and what must hold.

Only the ledger is simpler than in life: who commits is settled elsewhere in this folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any, cast

from eo_pipeline.errors import DataLossError, GoingBackError
from eo_pipeline.kafka import losses, marks, partitions, planner
from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import START_VERSION, Identity, LedgerEntry, Operation
from eo_pipeline.ledger.history import checkpoints, contiguity_errors, live_branch
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.operations import change_plan
from eo_pipeline.operations.rewind import RewindPlan
from eo_pipeline.runs import runner
from tests.explorer.kafka_world import Record, World

#: A position's owner: the topic's UUID, and the partition by its name and number.
Owner = tuple[str, TopicPartition]


class ViolationError(AssertionError):
    """The invariant does not hold."""


def _source(pattern: str, policy: str) -> KafkaSource:
    return KafkaSource.model_validate(
        {
            "bootstrap_servers": "nowhere:1",
            "topic_pattern": pattern,
            "value_format": "raw",
            **dict.fromkeys(("on_retention", "on_recreated", "on_vanished"), policy),
        }
    )


_SOURCES = {
    (pattern, policy): _source(pattern, policy)
    for pattern in ("a|b", "a")
    for policy in ("fail", "continue")
}


class _Admin:
    """What a rewind asks of Kafka."""

    def __init__(self, world: World) -> None:
        self._world = self.logs = world

    def offsets_kept_for(
        self, partitions: Iterable[TopicPartition], _: timedelta
    ) -> dict[TopicPartition, int]:
        asked, floors = set(partitions), self._world.floors()
        return {tp: floor for tp, floor in floors.items() if tp in asked}

    def compacted(self, _: Collection[str]) -> set[str]:
        return set()


@dataclass
class Explored:
    """One walk: a pipeline that is told this and that of Kafka, and everything it committed."""

    world: World
    random: Random
    pattern: str = "a|b"
    committed: bool = True
    ledger: list[LedgerEntry] = field(default_factory=list)
    reads: dict[int, list[Record]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    @property
    def head(self) -> LedgerEntry:
        return self.ledger[-1]

    def step(self) -> None:
        """One event: mostly of Kafka, else of whoever runs the pipeline."""
        what = self.random.choices(
            ("kafka", "run", "accept", "rewind", "isolation", "subscribe"), (24, 14, 3, 2, 1, 1)
        )[0]
        if what == "kafka":
            self.events.append(self.world.step())
        elif what == "isolation":
            self.committed = not self.committed
        elif what == "subscribe":
            self.pattern = "a" if self.pattern == "a|b" else "a|b"
        elif what == "run":
            self.run(self.random.choice(("fail", "continue")), stale=self.random.random() < 0.2)
        elif what == "accept" and self.ledger:
            self.accept_losses(self.random.choice(("a", "b", None)))
        elif what == "rewind" and self.ledger:
            self.rewind(self.random.choice(live_branch(self.ledger)))
        if what != "kafka":
            self.events.append(f"{what}, at {self.head.version if self.ledger else None}")
        self.check()

    def look(self, *, stale: bool = False) -> Cluster:
        shown = self.world.look(committed=self.committed, stale=stale)
        asked = _SOURCES[self.pattern, "fail"].matches
        return Cluster(
            {tp: bounds for tp, bounds in shown.bounds.items() if asked(tp.topic)},
            {name: uuid for name, uuid in shown.topic_ids.items() if asked(name)},
        )

    def _validated(self, at: LedgerEntry | None = None) -> Cluster:
        return marks.validated(self.look(), at or self.head, self.world)

    def run(self, policy: str, *, stale: bool = False, disturbed: bool = True) -> None:
        """A run of one checkpoint, as :class:`eo_pipeline.runs.runner.Runner` goes about it."""
        source, cluster = _SOURCES[self.pattern, policy], self.look(stale=stale)
        if not self.ledger:
            return self._start(cluster)
        cluster = marks.validated(cluster, self.head, self.world)
        found = losses.losses_of(self.head, cluster, source)
        if any(source.policy(kind) == "fail" for kind, _ in found.values()):
            return None
        if found:
            self._commit(runner.entry_past_losses(self.head, found, cluster, "run", {}))
        positions = partitions.positions_of(self.head, cluster)
        limit = self.random.choice((None, None, 1))
        batch = planner.plan(positions, cluster, limit=limit, turn=self.head.version)
        if batch.is_empty:
            return None
        entry = runner.entry_of_batch(self.head, batch, cluster, "run")
        entry = marks.marked(entry, cluster, self.world)
        self._check_same_logs(entry)
        if disturbed and self.random.random() < 0.3:
            self.events.append(f"meanwhile {self.world.step()}")
        read = self.world.read(entry.ranges)
        now = self.look()
        try:
            if read is None or any(
                now.topic_ids.get(r.topic) != entry.topic_ids.get(r.topic) for r in entry.ranges
            ):
                losses.refuse_lost_ranges(entry, now)
        except DataLossError:
            return None
        if read is not None:
            self._commit(entry, read)
        return None

    def accept_losses(self, topic: str | None, *, disturbed: bool = True) -> None:
        """Somebody looks at what is lost, of one topic or of all, and accepts it a while later."""
        source = _SOURCES[self.pattern, "fail"]
        found = losses.losses_of(self.head, self._validated(), source)
        chosen = {tp: loss for tp, loss in found.items() if topic in (None, tp.topic)}
        if disturbed:
            self.world.step()
        cluster = self._validated()
        now = losses.losses_of(self.head, cluster, source)
        if accepted := runner.still_lost(chosen, now):
            entry = runner.entry_past_losses(self.head, accepted, cluster, "run", {})
            self._commit(entry)

    def rewind(self, target: LedgerEntry) -> None:
        """Back to ``target``, if what leaves the table can be read again."""
        later = self.ledger[target.version + 1 :]
        ranges = change_plan.ranges_since(target, self.head, later)
        ids, cluster = change_plan.first_topic_ids([target, *later]), self._validated(target)
        found = checkpoints(later)
        source, admin = _SOURCES[self.pattern, "fail"], cast(Any, _Admin(self.world))
        check = change_plan.Rereading("p", source, admin, cluster)
        try:
            if ranges:
                check.check("the rewind", ranges, ids, found, accept_compacted=False)
        except GoingBackError:
            return
        removed = set(self._records()) - set(self._records(target.version))
        rewind = RewindPlan(
            pipeline="p",
            open_context=cast(Any, None),
            head=self.head,
            target=target,
            checkpoints=found,
            ranges=ranges,
            topic_ids=ids,
        )
        self._commit(rewind._entry("run", {}))
        self._check_readable(removed, source)

    def settle(self) -> None:
        """Kafka keeps still, and all that is lost is accepted: everything there is gets read."""
        self.world.calm_down()
        self.pattern, self.committed = "a|b", True
        self.run("continue", disturbed=False)
        for _ in range(3):
            self.accept_losses(None, disturbed=False)
        for _ in range(20):
            before = self.head.version
            self.run("continue", disturbed=False)
            if self.head.version == before:
                break
        self.check()
        cluster = self.look()
        positions = partitions.positions_of(self.head, cluster)
        for tp, bounds in cluster.bounds.items():
            kept = partitions.kept_position(self.head.identity.past_topics, cluster.topic_ids, tp)
            if positions.get(tp) != bounds.end and not (kept or 0) > bounds.end:
                raise ViolationError(
                    f"{tp} is never read to its end {bounds.end}: {positions.get(tp)}"
                )

    def check(self) -> None:
        """Every record at most once, and each that was skipped in a loss that was told."""
        records = [(uuid, number, offset) for uuid, number, offset, _ in self._records()]
        if len(records) != len(set(records)):
            raise ViolationError("a record was read twice")
        if said := contiguity_errors(self.ledger):
            raise ViolationError(said[0])
        covered: dict[Owner, set[int]] = defaultdict(set)
        for entry in live_branch(self.ledger):
            self._cover(entry, covered)
        for owner, position in self._positions():
            if gap := set(range(position)) - covered[owner]:
                raise ViolationError(f"{owner} skipped {sorted(gap)} below {position}, untold")

    def _check_same_logs(self, entry: LedgerEntry) -> None:
        """What ``entry`` is about to read goes on where the logs hold what was read of them before,
        as they were looked at; but for what an accepted loss says was truncated.
        """
        accepted = self._truncated()
        for r in entry.ranges:
            topic, tp = self.world.looked_at[r.topic], r.topic_partition
            log, since = topic.logs[r.partition], accepted.get((topic.uuid, tp), 0)
            for uuid, partition, offset, number in self._records():
                ours = (uuid, partition) == (topic.uuid, r.partition)
                there = ours and max(since, log.begin) <= offset < r.start
                if there and log.written[offset].number != number:
                    raise ViolationError(f"{r} is read of another log than {offset} was")

    def _truncated(self) -> dict[Owner, int]:
        """Up to where somebody accepted that logs were truncated."""
        found: dict[Owner, int] = {}
        for entry in live_branch(self.ledger):
            for hole in entry.details.get("holes", []):
                tp = TopicPartition(hole["topic"], hole["partition"])
                if hole["cause"].startswith("the log was truncated"):
                    found[entry.topic_ids[tp.topic], tp] = hole["expected"]
        return found

    def _start(self, cluster: Cluster) -> None:
        if cluster.bounds:
            self.ledger.append(
                LedgerEntry(
                    pipeline="p",
                    ledger_id="l",
                    version=START_VERSION,
                    transaction_id="t0",
                    parent=None,
                    operation=Operation.START,
                    offsets=cluster.beginnings(),
                    topic_ids=cluster.topic_ids,
                    identity=Identity(marks=marks.start_marks(cluster.beginnings(), cluster)),
                )
            )

    def _commit(self, entry: LedgerEntry, read: list[Record] | None = None) -> None:
        self.ledger.append(replace(entry, transaction_id=f"t{entry.version}"))
        self.reads[entry.version] = read or []

    def _records(self, last: int | None = None) -> list[Record]:
        """What is in the table, or was at version ``last``."""
        entries = self.ledger if last is None else self.ledger[: last + 1]
        return [r for entry in live_branch(entries) for r in self.reads.get(entry.version, [])]

    def _cover(self, entry: LedgerEntry, covered: dict[Owner, set[int]]) -> None:
        """Add the offsets that ``entry`` accounts for."""
        if entry.operation is Operation.START:
            for tp, offset in entry.offsets.items():
                covered[entry.topic_ids[tp.topic], tp].update(range(offset))
        for r in entry.ranges:
            owner = (entry.topic_ids[r.topic], r.topic_partition)
            covered[owner].update(range(r.start, r.end))
        for hole in entry.details.get("holes", []):
            tp = TopicPartition(hole["topic"], hole["partition"])
            before = self.ledger[entry.version - 1]
            same = before.topic_ids.get(tp.topic) == entry.topic_ids.get(tp.topic)
            if hole["resumed_at"] is not None:
                told = range(hole["expected"] if same else 0, hole["resumed_at"])
                covered[entry.topic_ids[tp.topic], tp].update(told)

    def _positions(self) -> Iterable[tuple[Owner, int]]:
        if not self.ledger:
            return
        for tp, offset in self.head.offsets.items():
            if tp.topic not in self.head.topic_ids:
                raise ViolationError(f"the ledger does not say whose position {tp} is")
            yield (self.head.topic_ids[tp.topic], tp), offset
        for uuid, positions in self.head.identity.past_topics.items():
            for tp, offset in positions.items():
                yield (uuid, tp), offset

    def _check_readable(self, records: Collection[Record], source: KafkaSource) -> None:
        floors = self.world.floors()
        there = {
            (topic.uuid, number, offset, log.written[offset].number)
            for name, topic in self.world.topics.items()
            if source.matches(name)
            for number, log in enumerate(topic.logs)
            for offset in range(
                max(log.begin, floors.get(TopicPartition(name, number), 0)), log.high
            )
        }
        if lost := set(records) - there:
            raise ViolationError(f"a rewind removed {sorted(lost)}, which cannot be read again")


def walk(seed: int, steps: int = 60) -> Explored:
    """One walk, the same for the same ``seed``.

    Raises:
        ViolationError: it found one; its text begins with the events that led there.
    """
    random = Random(seed)
    explored = Explored(World(random), random)
    try:
        for _ in range(steps):
            explored.step()
        if explored.ledger:
            explored.settle()
    except ViolationError as found:
        events = "\n  ".join(explored.events)
        raise ViolationError(f"seed {seed}:\n  {events}\n{found}") from None
    return explored

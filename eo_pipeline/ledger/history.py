"""The ledger as a sequence of entries: hash chain, live branch, contiguity and costs. No I/O.

Each entry holds its own hash and its parent's. An entry of an earlier release has no hash; the
chain begins, unverified, with the last of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from eo_pipeline.errors import LedgerDamagedError
from eo_pipeline.ledger.entry import START_VERSION, Counts, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition


class Damage(NamedTuple):
    """A fault of the entry at ``version``; the text goes after its number."""

    version: int
    text: str


_CHANGED = "was changed after it was committed: its content does not fit its hash"


def damages(entries: Iterable[LedgerEntry], since: int = START_VERSION) -> Iterator[Damage]:
    """Yield the damage of a ledger from version ``since`` on, oldest entry first; in bounded
    memory.
    """
    before: LedgerEntry | None = None
    expected = since
    for entry in entries:
        if entry.version > expected:
            yield from _missing(expected, entry)
        elif before is not None and not entry.is_child_of(before):
            yield _misfit(entry, before)
        if entry.is_altered:
            yield Damage(entry.version, _CHANGED)
        before, expected = entry, entry.version + 1


def follow(entries: Iterable[LedgerEntry], since: int) -> Iterator[LedgerEntry]:
    """Yield the ``entries`` of one ledger from version ``since`` on while they are intact.

    Raises:
        LedgerDamagedError: one is missing, was changed, or does not stand on the one before.
    """
    before: LedgerEntry | None = None
    for entry in entries:
        pair = (entry,) if before is None else (before, entry)
        _refuse(entry.pipeline, damages(pair, since if before is None else before.version))
        yield entry
        before = entry


def verify_head(head: LedgerEntry, parent: LedgerEntry | None) -> None:
    """Check that ``head`` is unchanged since its commit, and the child of ``parent``.

    Raises:
        LedgerDamagedError: it is not, or ``parent`` is missing or was changed.
    """
    if head.parent is None:
        _refuse(head.pipeline, damages([head]))
    elif parent is None:
        _refuse(head.pipeline, _missing(head.parent.version, head))
    else:
        _refuse(head.pipeline, damages([parent, head], parent.version))


def _refuse(pipeline: str, all_damage: Iterator[Damage]) -> None:
    damage = next(all_damage, None)
    if damage is not None:
        raise LedgerDamagedError(pipeline, *damage)


def _missing(first: int, next_one: LedgerEntry) -> Iterator[Damage]:
    for version in range(first, next_one.version):
        yield Damage(version, f"is missing, and version {next_one.version} is there")


def _misfit(entry: LedgerEntry, before: LedgerEntry) -> Damage:
    if entry.parent == before.id:
        seen = "it is not as it was when version"
        return Damage(
            before.version, f"was changed: {seen} {entry.version} was committed on top of it"
        )
    return Damage(entry.version, f"is not a child of version {before.version}")


@dataclass(frozen=True)
class Checkpoint:
    """One live checkpoint with rows in the table: ``entry`` read its ranges first, ``written``
    published the rows that are there now (the same entry, or the latest replay).
    """

    entry: LedgerEntry
    written: LedgerEntry

    @property
    def version(self) -> int:
        """The number its rows carry."""
        return self.entry.version

    @property
    def counts(self) -> Counts:
        """Of the rows that are there now."""
        return self.written.counts


def live_branch(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the live entries of ``entries``, oldest first.

    Args:
        entries: a stretch of one ledger without a gap, oldest first, that ends at the head.
    """
    live: list[LedgerEntry] = []
    for entry in entries:
        if entry.operation is Operation.REWIND and entry.target is not None:
            target = entry.target
            live = [e for e in live if e.version <= target]
        live.append(entry)
    return live


def checkpoints(entries: Sequence[LedgerEntry]) -> tuple[Checkpoint, ...]:
    """Return the live checkpoints of ``entries`` that read something, oldest first; see
    :func:`live_branch`. A rewind never undoes the replay of a checkpoint it spares.
    """
    replays = {e.target: e for e in entries if e.operation is Operation.REPLAY}
    return tuple(
        Checkpoint(entry, replays.get(entry.version, entry))
        for entry in live_branch(entries)
        if entry.operation is Operation.FORWARD and entry.ranges
    )


def spans(live: Iterable[Checkpoint]) -> tuple[OffsetRange, ...]:
    """Return the first to the last offset that ``live`` read, one range per Kafka partition."""
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    for r in (r for checkpoint in live for r in checkpoint.entry.ranges):
        start, end = bounds.get(r.topic_partition, (r.start, r.end))
        bounds[r.topic_partition] = min(start, r.start), max(end, r.end)
    return tuple(
        OffsetRange(tp.topic, tp.partition, start, end)
        for tp, (start, end) in sorted(bounds.items())
    )


def records_per_second(live: Sequence[Checkpoint], newest: int = 20) -> float | None:
    """Return the rate of the ``newest`` checkpoints, from plan to commit; None if unknown."""
    timed = [
        (entry.counts.records, entry.committed_at - entry.started_at)
        for entry in (checkpoint.written for checkpoint in live[-newest:])
        if entry.committed_at is not None
    ]
    records = sum(count for count, spent in timed if spent > timedelta())
    seconds = sum(spent.total_seconds() for _, spent in timed if spent > timedelta())
    return records / seconds if records and seconds else None


def contiguity_errors(entries: Sequence[LedgerEntry], since: int | None = None) -> list[str]:
    """Return the faults of a stretch of one ledger, oldest entry first.

    Every entry must be the child of the one before it, in the same ledger. A forward entry must
    have read each Kafka partition from exactly where the ledger stood, up to exactly where it
    says it stands now, and must have left the other partitions alone. A rewind must stand where
    its target stood, and a replay where its parent did, having read its target's ranges. And each
    must be what was committed, see :mod:`eo_pipeline.ledger.history`. No two live checkpoints may
    have read the same offset of the same topic, by its UUID.

    Args:
        entries: the stretch.
        since: the version it should begin with, if that is known.
    """
    by_version = {entry.version: entry for entry in entries}
    since = since if since is not None or not entries else entries[0].version
    damaged = (f"version {number} {text}" for number, text in damages(entries, since or 0))
    following = (
        text
        for parent, entry in pairwise(entries)
        if parent.id == entry.parent
        for text in _between(parent, entry, by_version.get(_target(entry)))
    )
    return [*damaged, *following, *_read_twice(checkpoints(entries))]


def _read_twice(live: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield the overlaps of ranges of live checkpoints. Topics are compared by UUID, since a name
    can be given to another topic.
    """
    read: dict[tuple[str, TopicPartition], list[tuple[int, int, int]]] = defaultdict(list)
    for checkpoint in live:
        for r in checkpoint.entry.ranges:
            topic = checkpoint.entry.topic_ids.get(r.topic, "")
            read[topic, r.topic_partition].append((r.start, r.end, checkpoint.version))
    for (_, tp), ranges in sorted(read.items()):
        # earlier range with the highest end: a range that overlaps any earlier one overlaps it
        furthest = (0, 0, 0)
        for start, end, version in sorted(ranges):
            if start < furthest[1]:
                both = OffsetRange(*tp, start, min(end, furthest[1]))
                one, two = sorted((version, furthest[2]))
                yield f"versions {one} and {two} both stand, and both read {both}"
            furthest = max(furthest, (start, end, version), key=lambda span: span[1])


def _target(entry: LedgerEntry) -> int:
    return -1 if entry.target is None else entry.target


def _between(parent: LedgerEntry, entry: LedgerEntry, target: LedgerEntry | None) -> Iterator[str]:
    """``target`` is None if the entry has none, or it lies before the stretch."""
    if entry.ledger_id != parent.ledger_id:
        yield f"version {entry.version} belongs to another ledger"
    if entry.operation is Operation.FORWARD:
        yield from _ranges(parent, entry)
    if entry.operation is Operation.REWIND and target and entry.offsets != target.offsets:
        yield f"version {entry.version} is a rewind and does not stand where {target.version} stood"
    if entry.operation is Operation.REPLAY:
        yield from _replay(parent, entry, target)


def _replay(parent: LedgerEntry, entry: LedgerEntry, target: LedgerEntry | None) -> Iterator[str]:
    if entry.offsets != parent.offsets:
        yield f"version {entry.version} is a replay and moved the offsets"
    if target and entry.ranges != target.ranges:
        yield f"version {entry.version} replayed other ranges than those of {target.version}"


def _ranges(parent: LedgerEntry, entry: LedgerEntry) -> Iterator[str]:
    expected = dict(parent.offsets)
    for r in entry.ranges:
        # a partition the ledger did not know starts where it was put aside, or at its beginning
        kept = parent.identity.past_topics.get(entry.topic_ids.get(r.topic, ""), {})
        stood = expected.get(r.topic_partition, kept.get(r.topic_partition, r.start))
        if r.start != stood:
            yield f"version {entry.version} read {r}, the ledger stood at {stood}"
        expected[r.topic_partition] = r.end
    for tp in sorted(expected.keys() | entry.offsets.keys()):
        if expected.get(tp) != entry.offsets.get(tp):
            yield (
                f"version {entry.version} says {tp} stands at {entry.offsets.get(tp)}, "
                f"by its ranges it stands at {expected.get(tp)}"
            )


@dataclass
class Spent:
    """Sums over ``versions`` entries. Bytes in are of values and keys, out of what was staged; wall
    time is from plan to commit, of which a version that was staged ahead has a part in common with
    the one before. ``measured`` entries say what they cost, and
    ``spark_measured`` of them what their Spark did: the other sums leave the rest out.
    """

    versions: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    wall: timedelta = timedelta()
    cpu: timedelta = timedelta()
    spark_cpu: timedelta = timedelta()
    measured: int = 0
    spark_measured: int = 0

    def add(self, entry: LedgerEntry) -> None:
        """Add the costs of ``entry``, live or not."""
        counts, costs = entry.counts, entry.counts.costs
        self.versions += 1
        self.records += counts.records
        self.rows += counts.rows
        self.dead_letters += counts.dead_letters
        self.bytes_in += counts.bytes + (counts.key_bytes or 0)
        if entry.committed_at is not None:
            # by two clocks: the store's may be behind
            self.wall += max(timedelta(), entry.committed_at - entry.started_at)
        if costs is not None:
            self.measured += 1
            self.bytes_out += costs.bytes_out
            self.cpu += timedelta(milliseconds=costs.cpu_ms)
            if costs.spark_cpu_ms is not None:
                self.spark_measured += 1
                self.spark_cpu += timedelta(milliseconds=costs.spark_cpu_ms)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, times in seconds; None for a sum that no entry has a value of."""
        return {
            "versions": self.versions,
            "records": self.records,
            "rows": self.rows,
            "dead_letters": self.dead_letters,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out if self.measured else None,
            "wall_seconds": round(self.wall.total_seconds(), 3),
            "cpu_seconds": _seconds(self.cpu, self.measured),
            "cpu_measured_versions": self.measured,
            "spark_cpu_seconds": _seconds(self.spark_cpu, self.spark_measured),
            "spark_cpu_measured_versions": self.spark_measured,
        }


def _seconds(spent: timedelta, measured: int) -> float | None:
    return round(spent.total_seconds(), 3) if measured else None


def day_of(entry: LedgerEntry) -> str:
    """Return the day of its commit in UTC, in ISO 8601."""
    return (entry.committed_at or entry.started_at).astimezone(UTC).date().isoformat()

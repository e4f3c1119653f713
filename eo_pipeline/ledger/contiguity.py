"""Whether ledger entries follow each other without a gap: pure, no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from eo_pipeline.ledger.branch import Checkpoint, checkpoints
from eo_pipeline.ledger.chain import damages
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition


def contiguity_errors(entries: Sequence[LedgerEntry], since: int | None = None) -> list[str]:
    """What is wrong with a stretch of one ledger, oldest entry first; empty if nothing is.

    Every entry must be the child of the one before it, in the same ledger. A forward entry must
    have read each Kafka partition from exactly where the ledger stood, up to exactly where it
    says it stands now, and must have left the other partitions alone. A rewind must stand where
    its target stood, and a replay where its parent did, having read its target's ranges. And each
    must be what was committed, see :mod:`eo_pipeline.ledger.chain`. No two live checkpoints may
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


def _read_twice(found: Sequence[Checkpoint]) -> Iterator[str]:
    """Ranges of live checkpoints that overlap; a topic's name is not enough to tell."""
    read: dict[tuple[str, TopicPartition], list[tuple[int, int, int]]] = defaultdict(list)
    for each in found:
        for r in each.entry.ranges:
            topic = each.entry.topic_ids.get(r.topic, "")
            read[topic, r.topic_partition].append((r.start, r.end, each.version))
    for (_, tp), ranges in sorted(read.items()):
        # the range that reaches furthest of those before: whatever overlaps one, overlaps it
        furthest = (0, 0, 0)
        for start, end, version in sorted(ranges):
            if start < furthest[1]:
                both = OffsetRange(*tp, start, min(end, furthest[1]))
                one, two = sorted((version, furthest[2]))
                yield f"versions {one} and {two} both stand, and both read {both}"
            furthest = max(furthest, (start, end, version), key=lambda each: each[1])


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

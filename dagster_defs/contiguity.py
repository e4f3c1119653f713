"""Whether ledger entries follow each other without a gap: pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from eo_pipeline.checkpoint import LedgerEntry, Operation


def breaks(entries: Sequence[LedgerEntry]) -> list[str]:
    """What is wrong with a stretch of one ledger, oldest entry first; empty if nothing is.

    Every entry must be the child of the one before it, in the same ledger. A forward entry must
    have read each Kafka partition from exactly where the ledger stood, up to exactly where it
    says it stands now, and must have left the other partitions alone.
    """
    return [text for parent, entry in pairwise(entries) for text in _between(parent, entry)]


def _between(parent: LedgerEntry, entry: LedgerEntry) -> Iterator[str]:
    if not entry.is_child_of(parent):
        yield f"version {entry.version} is not a child of version {parent.version}"
    if entry.ledger_id != parent.ledger_id:
        yield f"version {entry.version} belongs to another ledger"
    if entry.operation is Operation.FORWARD:
        yield from _ranges(parent, entry)


def _ranges(parent: LedgerEntry, entry: LedgerEntry) -> Iterator[str]:
    expected = dict(parent.offsets)
    for r in entry.ranges:
        # a partition the ledger did not know starts at its beginning, wherever that is
        stood = expected.get(r.topic_partition, r.start)
        if r.start != stood:
            yield f"version {entry.version} read {r}, the ledger stood at {stood}"
        expected[r.topic_partition] = r.end
    for tp in sorted(expected.keys() | entry.offsets.keys()):
        if expected.get(tp) != entry.offsets.get(tp):
            yield (
                f"version {entry.version} says {tp} stands at {entry.offsets.get(tp)}, "
                f"by its ranges it stands at {expected.get(tp)}"
            )

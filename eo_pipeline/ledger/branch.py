"""Which checkpoints still stand after rewinds and replays: pure, no I/O.

After v3 = rewind to 1, version 2 is dead: its rows left the table, and nobody may aim at it any
more. The *live branch* is what is left: the versions whose state can be had back by taking later
rows away. Replayed rows keep their checkpoint's number, so a later rewind that spares the
checkpoint spares its replayed rows too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition


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
    """The live ones of ``entries``, oldest first.

    Args:
        entries: a stretch of one ledger without a gap, oldest first, that ends at the head.
    """
    live: list[LedgerEntry] = []
    for entry in entries:
        if entry.operation is Operation.REWIND and entry.target is not None:
            target = entry.target
            live = [each for each in live if each.version <= target]
        live.append(entry)
    return live


def checkpoints(entries: Sequence[LedgerEntry]) -> tuple[Checkpoint, ...]:
    """The live checkpoints among ``entries`` that read something, oldest first; see
    :func:`live_branch`. A rewind never undoes the replay of a checkpoint it spares.
    """
    replays = {e.target: e for e in entries if e.operation is Operation.REPLAY}
    return tuple(
        Checkpoint(entry, replays.get(entry.version, entry))
        for entry in live_branch(entries)
        if entry.operation is Operation.FORWARD and entry.ranges
    )


def spans(found: Iterable[Checkpoint]) -> tuple[OffsetRange, ...]:
    """From the first to the last offset these checkpoints read, one range a Kafka partition."""
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    for r in (r for checkpoint in found for r in checkpoint.entry.ranges):
        start, end = bounds.get(r.topic_partition, (r.start, r.end))
        bounds[r.topic_partition] = min(start, r.start), max(end, r.end)
    return tuple(
        OffsetRange(tp.topic, tp.partition, start, end)
        for tp, (start, end) in sorted(bounds.items())
    )


def records_per_second(found: Sequence[Checkpoint], newest: int = 20) -> float | None:
    """How fast the ``newest`` of these checkpoints were, from plan to commit; None if not known."""
    timed = [
        (each.written.counts.records, each.written.committed_at - each.written.started_at)
        for each in found[-newest:]
        if each.written.committed_at is not None
    ]
    records = sum(count for count, spent in timed if spent > timedelta())
    seconds = sum(spent.total_seconds() for _, spent in timed if spent > timedelta())
    return records / seconds if records and seconds else None

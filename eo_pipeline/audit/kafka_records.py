"""Holes in Kafka: those that were always there told apart from compaction and from loss. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from eo_pipeline.audit.compare import Tally
from eo_pipeline.audit.ranges import Coverage
from eo_pipeline.audit.report import Holes
from eo_pipeline.ledger.branch import Checkpoint


@dataclass(frozen=True)
class RecordCounts:
    """Kafka records of one checkpoint: ``found`` now, None if none of it can be read.

    ``fewer`` and ``more`` compare with what was counted at commit, ``beyond`` is what was counted
    there beyond one record an offset, which never was; all 0 where a part of the ranges is gone.
    ``holes`` says why there are fewer records than offsets.
    """

    found: int | None
    fewer: int
    more: int
    holes: Holes
    beyond: int = 0

    @property
    def as_counted(self) -> bool:
        """Whether every record that was counted is there to be looked at again, and no other."""
        known = self.found is not None and self.holes is not Holes.UNKNOWN
        return known and not (self.fewer or self.more or self.beyond)


def records_of(
    checkpoint: Checkpoint,
    coverage: Coverage,
    tallies: Iterable[Tally],
    compacted: Collection[str],
) -> RecordCounts:
    """Compare one checkpoint's records with the ledger's count of them."""
    version = checkpoint.version
    if not coverage.readable[version]:
        return RecordCounts(None, 0, 0, Holes.UNKNOWN)
    found = sum(tally.records for tally in tallies)
    if coverage.gone[version]:
        return RecordCounts(found, 0, 0, Holes.UNKNOWN)
    offsets = coverage.readable[version]
    beyond = max(0, checkpoint.counts.records - offsets)
    fewer = max(0, checkpoint.counts.records - beyond - found)
    more = max(0, found - checkpoint.counts.records)
    holes = _holes(offsets - found, fewer, coverage.topics[version], compacted)
    return RecordCounts(found, fewer, more, holes, beyond)


def _holes(absent: int, fewer: int, topics: set[str], compacted: Collection[str]) -> Holes:
    if not absent:
        return Holes.NONE
    if not fewer:
        # there were no more when it was read; of a compacted topic nobody can tell why
        return Holes.MARKERS
    return Holes.COMPACTION if topics & set(compacted) else Holes.LOSS

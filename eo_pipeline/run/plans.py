"""What going back would change, before it does: values only, for people to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eo_pipeline.ledger.branch import Checkpoint, records_per_second
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, ranges_to_json


@dataclass(frozen=True)
class ChangePlan:
    """A rewind, a replay or a fork that passed every check; nothing has changed yet.

    ``operation`` is REWIND, REPLAY or FORK. ``head`` is the ledger's head it was planned from.
    ``target`` is the entry gone back to; ``None`` for a replay. ``checkpoints`` are those whose
    rows leave (rewind) or are replaced (replay), oldest first; for a fork those that the new
    pipeline reads again. ``ranges`` is what will be read again. ``warnings`` is what was accepted.
    """

    pipeline: str
    operation: Operation
    head: LedgerEntry
    target: LedgerEntry | None
    checkpoints: tuple[Checkpoint, ...]
    ranges: tuple[OffsetRange, ...]
    warnings: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Rows that leave, are replaced, or will be written again."""
        return sum(checkpoint.counts.rows for checkpoint in self.checkpoints)

    @property
    def records(self) -> int:
        """Kafka records to read again, by what the checkpoints counted."""
        return sum(checkpoint.entry.counts.records for checkpoint in self.checkpoints)

    @property
    def seconds(self) -> float | None:
        """Estimated time of reading again, from what these checkpoints took; None: not known."""
        speed = records_per_second(self.checkpoints)
        return self.records / speed if speed else None

    def to_json(self) -> dict[str, Any]:
        """Plain values; seconds are rounded to tenths."""
        return {
            "pipeline": self.pipeline,
            "operation": self.operation.value,
            "head": self.head.version,
            "target": self.target.version if self.target else None,
            "checkpoints": [
                {
                    "version": each.version,
                    "rows": each.counts.rows,
                    "records": each.entry.counts.records,
                    "ranges": ranges_to_json(each.entry.ranges),
                }
                for each in self.checkpoints
            ],
            "rows": self.rows,
            "records": self.records,
            "ranges": ranges_to_json(self.ranges),
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class ChangeReport:
    """What was done: the ``plan`` and the ledger ``entries`` it led to, oldest first."""

    plan: ChangePlan
    entries: tuple[LedgerEntry, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan's values, and ``entries``."""
        return {**self.plan.to_json(), "entries": [entry.to_json() for entry in self.entries]}

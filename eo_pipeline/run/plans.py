"""Changes to look at before they are made: a plan, what applying it takes, and what was done.

Each kind of change has a plan of its own beside what it does: rewind, replay, fork, accept_loss,
adopt. Making a plan makes every check and changes nothing; applying it makes the checks again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from eo_pipeline.ledger.branch import Checkpoint, records_per_second
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, ranges_to_json
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.reports import CheckpointReport
from eo_pipeline.spark import SparkProvider

OnCheckpoint = Callable[[CheckpointReport], None]


class OpenSteps(Protocol):
    """Connects to one pipeline's sink; closes it at the end."""

    def __call__(
        self,
        run_id: str | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        spark: SparkProvider | None = None,
        operation: str | None = None,
    ) -> AbstractContextManager[Steps]:
        """The arguments are those of :meth:`ChangePlan.apply`, and the ``operation`` of a run that
        others are told of; None: nobody is.
        """


@dataclass(frozen=True, kw_only=True)
class ChangePlan(ABC):
    """A change that passed every check; nothing has changed yet. ``str()`` says it in a line."""

    operation: ClassVar[Operation]

    pipeline: str
    open_steps: OpenSteps = field(repr=False, compare=False)

    def apply(
        self,
        *,
        reason: str = "",
        asked_by: str = "",
        run_id: str | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        spark: SparkProvider | None = None,
    ) -> ChangeReport:
        """Make the change, exactly this one, on condition that the ledger has not moved since.

        What a run that died had promised is committed first; if there was such a promise the
        ledger has moved, and the plan must be made anew.

        Args:
            reason: kept in the ledger, for people; so is asked_by.
            run_id: stored with every entry; made up if absent.
            on_checkpoint: called after each commit, those of a dead run's promises included.
            spark: a session to use instead of the pipeline's own; asked for only if needed.

        Raises:
            StalePlanError: the ledger has moved on; nothing was changed.
            FencedError: a run was faster at the last moment.
            EoPipelineError: another of its kinds; what was reported as committed stays.
        """
        with self.open_steps(run_id, on_checkpoint, spark, self.operation.value) as steps:
            entries = self._apply(steps, {"reason": reason, "asked_by": asked_by})
        return ChangeReport(self, entries)

    @abstractmethod
    def _apply(self, steps: Steps, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        """The entries that were committed, oldest first."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain values."""


@dataclass(frozen=True, kw_only=True)
class RereadingPlan(ChangePlan):
    """A change after which offsets are read again: a rewind, a replay or a fork.

    ``head`` is the ledger's head it was planned from. ``checkpoints`` are those whose rows leave
    (rewind) or are replaced (replay), oldest first; for a fork those that the new pipeline reads
    again. ``ranges`` is what will be read again, of topics that had the UUIDs ``topic_ids``.
    ``warnings`` is what was accepted.
    """

    head: LedgerEntry
    checkpoints: tuple[Checkpoint, ...]
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str] = field(repr=False)
    accept_compacted: bool = False
    warnings: tuple[str, ...] = ()

    @abstractmethod
    def check(self, steps: Steps) -> tuple[str, ...]:
        """Ask the sink and Kafka whether it can be done. Returns the warnings.

        Raises:
            RefusedError: the sink cannot take or replace these rows.
            RangesGoneError, CompactedError: Kafka cannot be read again.
        """

    @property
    def target_version(self) -> int | None:
        """The version gone back to, or begun from; None where there is no single one."""
        return None

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
            "target": self.target_version,
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

    def _rows_of_checkpoints(self) -> str:
        """``200 rows of 2 checkpoints``."""
        return f"{counted(self.rows, 'row')} of {counted(len(self.checkpoints), 'checkpoint')}"


@dataclass(frozen=True)
class ChangeReport:
    """What was done: the ``plan`` and the ledger ``entries`` it led to, oldest first."""

    plan: ChangePlan
    entries: tuple[LedgerEntry, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan's values, and ``entries``."""
        return {**self.plan.to_json(), "entries": [entry.to_json() for entry in self.entries]}


def counted(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

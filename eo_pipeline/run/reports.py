"""What a run tells its caller. Values only; Dagster's metadata and the demo's summary read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.protocol import CommitOutcome


@dataclass(frozen=True)
class CheckpointReport:
    """One ledger entry this run committed.

    ``recovered``: staged by a run that died, committed by this one. ``lag_before`` and
    ``lag_after`` are offsets (an upper bound on records), ``None`` where Kafka was not asked.
    ``seconds`` is per phase: recover, plan, stage, pre_commit, commit. ``columns`` is the table's
    columns as staged, name to the store's type, ``None`` for an entry without rows.
    """

    entry: LedgerEntry
    outcome: CommitOutcome
    recovered: bool
    lag_before: int | None
    lag_after: int | None
    seconds: Mapping[str, float]
    columns: Mapping[str, str] | None = None

    @property
    def records_per_second(self) -> float | None:
        """Records read, over the seconds from plan to commit; None if nothing was timed."""
        total = sum(self.seconds.values())
        return self.entry.counts.records / total if total else None


@dataclass(frozen=True)
class RunReport:
    """One run: the ``head`` it left, its checkpoints in order, and the ``lag`` that remains
    (offsets that arrived while it ran, or that ``max_checkpoints`` left).
    """

    pipeline: str
    run_id: str
    head: LedgerEntry
    checkpoints: tuple[CheckpointReport, ...]
    lag: int

    @property
    def records(self) -> int:
        return sum(report.entry.counts.records for report in self.checkpoints)

    @property
    def rows(self) -> int:
        return sum(report.entry.counts.rows for report in self.checkpoints)

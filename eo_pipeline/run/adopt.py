"""Adopt: the sink's present, older state becomes the head, after a restored backup or a failover.

Runs refuse a ledger that lacks a commit this staging area saw confirmed. Adopting writes an entry
on top of what the ledger holds now, and forgets what it lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from eo_pipeline.errors import LedgerDamagedError, NothingToDoError
from eo_pipeline.ledger.entry import START_VERSION, EntryId, LedgerEntry, Operation
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.plans import ChangePlan, OpenSteps
from eo_pipeline.run.recover import Recovery
from eo_pipeline.run.targets import refuse_stale, stale
from eo_pipeline.sinks.identity import LATER_ROWS
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.staging.witness import Witness


@dataclass(frozen=True, kw_only=True)
class AdoptPlan(ChangePlan):
    """To go on from ``head`` (``None``: the ledger is empty) without the ``lost`` commits."""

    operation: ClassVar = Operation.ADOPT

    head: LedgerEntry | None
    lost: tuple[EntryId, ...]

    @property
    def lost_versions(self) -> list[int]:
        """Versions that were committed and that the ledger lacks, oldest first."""
        return [each.version for each in self.lost]

    def __str__(self) -> str:
        stands = f"at version {self.head.version}" if self.head else "empty"
        versions = ", ".join(map(str, self.lost_versions))
        return (
            f"adopt in {self.pipeline}: the ledger is {stands}, and lacks versions that were "
            f"committed: {versions}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "operation": self.operation.value,
            "head": self.head.version if self.head else None,
            "lost": self.lost_versions,
        }

    def _apply(self, steps: Steps, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        """No entry if the ledger is empty: the next run starts anew."""
        head = steps.session.verified(steps.session.recover())
        confirmed = steps.recovery.witnesses(head)
        refuse_stale(self.pipeline, self.head, head)
        if _ids(steps.recovery.lost(head, confirmed)) != self.lost:
            raise stale(self.pipeline, self.head, head)
        entry = adopt_head(steps.recovery, head, confirmed, steps.run_id, remarks)
        return (entry,) if entry is not None else ()


def _ids(lost: Sequence[Witness]) -> tuple[EntryId, ...]:
    return tuple(each.id for each in lost)


def plan_adopt(open_steps: OpenSteps) -> AdoptPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_adopt`."""
    with open_steps() as steps:
        head = steps.session.verified(steps.session.head())
        lost = _ids(steps.recovery.lost(head, steps.recovery.witnesses(head)))
        if not lost:
            raise NothingToDoError(
                f"Pipeline {steps.pipeline!r}: the ledger did not go backwards; nothing to adopt."
            )
        _refuse_later_rows(steps.session, head)
        return AdoptPlan(pipeline=steps.pipeline, open_steps=open_steps, head=head, lost=lost)


def _refuse_later_rows(session: SinkSession, head: LedgerEntry | None) -> None:
    """A table that is newer than its ledger did not come back with it: what its later checkpoints
    read would be read once more.
    """
    following = head.version + 1 if head else START_VERSION
    if session.holds_rows(following):
        raise LedgerDamagedError(session.pipeline, following, LATER_ROWS)


def adopt_head(
    recovery: Recovery,
    head: LedgerEntry | None,
    confirmed: Sequence[Witness],
    run_id: str,
    remarks: Mapping[str, str],
) -> LedgerEntry | None:
    """Write an entry on top of ``head``, then forget the commits ``confirmed`` before."""
    entry = None
    if head is not None:
        child = head.child(Operation.ADOPT, run_id, head.offsets)
        entry = replace(child, details=dict(remarks))
        recovery.session.publish(entry, StagedOutput())
        recovery.staging.witnesses.remember(entry)
    # only now, and only those: were the process to die before this line, runs go on refusing and
    # adopt is simply called again
    recovery.staging.witnesses.forget(confirmed)
    return entry

"""Adopt: the sink's present, older state becomes the head, after a restored backup or a failover.

Runs refuse a ledger that lacks a commit this staging area saw confirmed. Adopting writes an entry
on top of what the ledger holds now, and forgets what it lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from eo_pipeline.errors import LedgerDamagedError, ManifestDamagedError, NothingToDoError
from eo_pipeline.ledger.entry import START_VERSION, EntryId, LedgerEntry, Operation
from eo_pipeline.operations.change_plan import ChangePlan, OpenContext, counted, refuse_stale, stale
from eo_pipeline.runs.checkpoint import RunContext
from eo_pipeline.runs.recovery import Recovery
from eo_pipeline.sinks.session import LATER_ROWS, SinkSession
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.markers import CommitReceipt
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.paths import Place


@dataclass(frozen=True, kw_only=True)
class AdoptPlan(ChangePlan):
    """Adopt ``head`` (``None``: the ledger is empty) without the ``lost`` commits."""

    operation: ClassVar = Operation.ADOPT

    head: LedgerEntry | None
    lost: tuple[EntryId, ...]

    @property
    def lost_versions(self) -> list[int]:
        """Versions that were committed and that the ledger lacks, oldest first."""
        return [receipt.version for receipt in self.lost]

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

    def _apply(self, context: RunContext, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        """Commit the entry; none if the ledger is empty: the next run starts anew."""
        head = context.session.verified(context.session.recover())
        confirmed = context.recovery.witnesses(head)
        refuse_stale(self.pipeline, self.head, head)
        if _ids(context.recovery.lost(head, confirmed)) != self.lost:
            raise stale(self.pipeline, self.head, head)
        entry = adopt_head(context.recovery, head, confirmed, context.run_id, remarks)
        return (entry,) if entry is not None else ()


def _ids(lost: Sequence[CommitReceipt]) -> tuple[EntryId, ...]:
    return tuple(receipt.id for receipt in lost)


def plan_adopt(open_context: OpenContext) -> AdoptPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_adopt`."""
    with open_context() as context:
        head = context.session.verified(context.session.head())
        lost = _ids(context.recovery.lost(head, context.recovery.witnesses(head)))
        if not lost:
            raise NothingToDoError(
                f"Pipeline {context.pipeline!r}: the ledger did not go backwards; nothing to adopt."
            )
        _refuse_later_rows(context.session, head)
        return AdoptPlan(pipeline=context.pipeline, open_context=open_context, head=head, lost=lost)


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
    confirmed: Sequence[CommitReceipt],
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
    # last, and these alone: if the process dies before this line, runs still refuse, and adopt can
    # be called again
    recovery.staging.witnesses.forget(confirmed)
    return entry


@dataclass(frozen=True, kw_only=True)
class SetAsidePlan:
    """Damaged manifests on top of ``head``, each with its file and its fault."""

    pipeline: str
    head: LedgerEntry
    damages: tuple[ManifestDamagedError, ...]
    open_context: OpenContext = field(repr=False, compare=False)

    def __str__(self) -> str:
        named = ", ".join(damage.path for damage in self.damages)
        return (
            f"set aside in {self.pipeline}: the manifest of version {self.head.version + 1}, "
            f"{named}; the ledger is at version {self.head.version} and does not have it"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "pipeline": self.pipeline,
            "operation": "set_aside",
            "head": self.head.version,
            "manifests": [damage.path for damage in self.damages],
        }

    def apply(self) -> tuple[Place, ...]:
        """Rename the manifests. Returns their new paths.

        Raises:
            StalePlanError: the ledger has moved on since, so that there may be none any more.
        """
        with self.open_context() as context:
            refuse_stale(self.pipeline, self.head, context.session.verified(context.session.head()))
            return tuple(damage.set_aside() for damage, _ in context.recovery.damaged(self.head))


def damaged_promises(
    recovery: Recovery, head: LedgerEntry | None
) -> tuple[ManifestDamagedError, ...]:
    """Damaged manifests on top of ``head``, which stop the next run before it reads anything."""
    return tuple(error for _, error in recovery.damaged(head))


def plan_set_aside(open_context: OpenContext) -> SetAsidePlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_set_aside`."""
    with open_context() as context:
        head = context.session.verified(context.session.head())
        damages = damaged_promises(context.recovery, head)
        if head is None or not damages:
            raise NothingToDoError(
                f"Pipeline {context.pipeline!r}: every staged batch can be read; there is nothing "
                "to set aside."
            )
        return SetAsidePlan(
            pipeline=context.pipeline, open_context=open_context, head=head, damages=damages
        )


@dataclass(frozen=True, kw_only=True)
class ResetPlan:
    """A reset: ``drops`` has a line for each thing; ``head`` is ``None`` without a ledger."""

    pipeline: str
    head: LedgerEntry | None
    drops: tuple[str, ...]
    open_context: OpenContext = field(repr=False, compare=False)

    def __str__(self) -> str:
        stands = f"at version {self.head.version}" if self.head else "without a ledger"
        return f"reset of {self.pipeline}, {stands}: drops {', '.join(self.drops) or 'nothing'}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "pipeline": self.pipeline,
            "operation": "reset",
            "head": self.head.version if self.head else None,
            "drops": list(self.drops),
        }

    def apply(self) -> None:
        """Drop rows, dead letters and ledger in the store, then the staged attempts.

        Raises:
            StalePlanError: the ledger has moved on since; nothing was dropped.
            SinkError: the store failed; the staged attempts are still there.
        """
        with self.open_context() as context:
            head, staging = context.session.head(), context.recovery.staging
            refuse_stale(self.pipeline, self.head, head)
            context.session.reset(dry_run=False)
            for attempt in _staged(context.recovery, head):
                attempt.delete()
            staging.witnesses.forget(context.recovery.witnesses(head))
            staging.failures.forget()


def plan_reset(open_context: OpenContext) -> ResetPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_reset`."""
    with open_context() as context:
        head = context.session.head()
        return ResetPlan(
            pipeline=context.pipeline,
            open_context=open_context,
            head=head,
            drops=(
                *context.session.reset(dry_run=True),
                *_counted(_staged(context.recovery, head)),
            ),
        )


def _staged(recovery: Recovery, head: LedgerEntry | None) -> list[Attempt]:
    """Return the attempts at this ledger, and at those that staging saw in this place before."""
    seen = {receipt.ledger_id for receipt in recovery.witnesses(head)}
    ledgers = filter(None, {*seen, head.ledger_id if head else None})
    return [attempt for ledger in ledgers for attempt in recovery.staging.attempts_at(ledger)]


def _counted(attempts: list[Attempt]) -> list[str]:
    return [counted(len(attempts), "staged attempt")] if attempts else []

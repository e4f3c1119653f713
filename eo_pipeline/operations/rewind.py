"""Rewind: the rows of later checkpoints leave, and the ledger stands where an old version stood.

One transaction, a new ledger version, through the sink's compare-and-swap like any run: of a rewind
and a run that race one wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

from eo_pipeline.errors import NothingToDoError, some_of
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.history import checkpoints, live_branch
from eo_pipeline.operations.change_plan import (
    OpenContext,
    RereadingPlan,
    check_rereading,
    current_head,
    find_live_entry,
    first_topic_ids,
    ranges_since,
    refuse_stale,
)
from eo_pipeline.runs.checkpoint import RunContext, commit_alone, recover


@dataclass(frozen=True, kw_only=True)
class RewindPlan(RereadingPlan):
    """A rewind to the entry ``target``; the next run reads ``ranges`` again."""

    operation: ClassVar = Operation.REWIND

    target: LedgerEntry

    @property
    def target_version(self) -> int:
        return self.target.version

    def __str__(self) -> str:
        return (
            f"rewind of {self.pipeline} from version {self.head.version} to {self.target.version}: "
            f"removes {self._rows_of_checkpoints()}"
        )

    def check(self, context: RunContext) -> tuple[str, ...]:
        context.session.check_going_back(self._entry(context.run_id, {}))
        return check_rereading(
            context,
            f"the rewind to {self.target.version}",
            self.ranges,
            self.topic_ids,
            self.checkpoints,
            accept_compacted=self.accept_compacted,
            target=self.target,
        )

    def _apply(self, context: RunContext, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        refuse_stale(self.pipeline, self.head, recover(context))
        self.check(context)
        done = commit_alone(context, self._entry(context.run_id, remarks))
        context.recovery.delete_decided_attempts(done)
        return (done,)

    def _entry(self, run_id: str, remarks: Mapping[str, str]) -> LedgerEntry:
        child = self.head.child(Operation.REWIND, run_id, self.target.offsets)
        target_identity = self.target.identity
        return replace(
            child,
            topic_ids=self.target.topic_ids,
            identity=replace(
                child.identity, past_topics=target_identity.past_topics, marks=target_identity.marks
            ),
            target=self.target.version,
            counts=self.head.counts.totals(*(c.counts for c in self.checkpoints)),
            details={
                **remarks,
                "rows_removed": self.rows,
                "checkpoints_removed": len(self.checkpoints),
            },
        )


def plan_rewind(
    open_context: OpenContext, to: int | datetime, *, accept_compacted: bool
) -> RewindPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_rewind`."""
    with open_context() as context:
        head = current_head(context.session)
        target, later = find_live_entry(context.session, head, to)
        if _undoes_nothing(head, later):
            raise NothingToDoError(
                f"Pipeline {head.pipeline!r} stands at version {target.version} already (its head "
                f"is {head.version}): no row came after it. Nothing was changed."
            )
        plan = RewindPlan(
            pipeline=context.pipeline,
            open_context=open_context,
            head=head,
            target=target,
            checkpoints=checkpoints(later),
            ranges=ranges_since(target, head, later),
            topic_ids=first_topic_ids([target, *later]),
            accept_compacted=accept_compacted,
        )
        return replace(plan, warnings=(*plan.check(context), *_kept_replays(target, later)))


def _kept_replays(target: LedgerEntry, later: Sequence[LedgerEntry]) -> Iterator[str]:
    """Name the replays after ``target`` of checkpoints that stay: their rows stay as replayed."""
    replays = {
        entry.target: entry.version
        for entry in later
        if entry.operation is Operation.REPLAY
        and entry.target is not None
        and entry.target <= target.version
    }
    if replays:
        named = some_of([f"{of} (version {by})" for of, by in sorted(replays.items())], NAMED_MAX)
        yield (
            f"Not undone: later replays of checkpoints that stay, {named}. Their rows stay as the "
            "replay wrote them."
        )


#: Replays named in a warning; further ones are counted.
NAMED_MAX = 20

#: Operations that neither remove nor add rows of the version they follow: the rows of a replay
#: belong to the checkpoint it replayed.
_ROW_NEUTRAL = frozenset({Operation.REWIND, Operation.REPLAY, Operation.ADOPT, Operation.PRUNE})


def _undoes_nothing(head: LedgerEntry, later: Sequence[LedgerEntry]) -> bool:
    """Return whether nothing of the entries ``later`` than the target would be taken back."""
    if not later:
        return True
    return later[-1].id == head.id and all(
        entry.operation in _ROW_NEUTRAL for entry in live_branch(later)
    )

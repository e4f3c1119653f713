"""Accepted losses: a ledger version records that Kafka no longer holds the next records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from eo_pipeline.errors import Loss, NothingToDoError
from eo_pipeline.kafka.losses import Losses, losses_of
from eo_pipeline.kafka.marks import validated
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.operations.change_plan import (
    ChangePlan,
    OpenContext,
    counted,
    current_head,
    refuse_stale,
)
from eo_pipeline.runs.checkpoint import RunContext, commit_alone, recover
from eo_pipeline.runs.runner import entry_past_losses, still_lost


@dataclass(frozen=True, kw_only=True)
class AcceptLossPlan(ChangePlan):
    """To go on without what ``found`` names, per Kafka partition; ``head`` was planned from."""

    operation: ClassVar = Operation.ACCEPT_LOSS

    head: LedgerEntry
    losses_by_partition: Losses

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Losses that would be accepted, one for each Kafka partition."""
        return tuple(loss for _, loss in self.losses_by_partition.values())

    def __str__(self) -> str:
        return (
            f"accept-loss in {self.pipeline} at version {self.head.version}: goes on past what "
            f"Kafka lost in {counted(len(self.losses_by_partition), 'partition')}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "operation": self.operation.value,
            "head": self.head.version,
            "losses": [str(loss) for loss in self.losses],
        }

    def _apply(self, context: RunContext, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        """Accept the planned losses as they are now: one may have grown; another kind is not."""
        refuse_stale(self.pipeline, self.head, recover(context))
        cluster = validated(context.admin.cluster(), self.head, context.admin.logs)
        now = losses_of(self.head, cluster, context.source)
        accepted = still_lost(self.losses_by_partition, now)
        if not accepted:
            raise _nothing_lost(self.pipeline, None)
        entry = entry_past_losses(self.head, accepted, cluster, context.run_id, remarks)
        return (commit_alone(context, entry),)


def plan_accept_loss(open_context: OpenContext, topics: Collection[str] | None) -> AcceptLossPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_accept_loss`."""
    with open_context() as context:
        head = current_head(context.session)
        cluster = validated(context.admin.cluster(), head, context.admin.logs)
        losses = losses_of(head, cluster, context.source)
        selected = {tp: loss for tp, loss in losses.items() if topics is None or tp.topic in topics}
        if not selected:
            raise _nothing_lost(context.pipeline, topics)
        return AcceptLossPlan(
            pipeline=context.pipeline,
            open_context=open_context,
            head=head,
            losses_by_partition=selected,
        )


def _nothing_lost(pipeline: str, topics: Collection[str] | None) -> NothingToDoError:
    where = f"in {', '.join(sorted(topics))} " if topics else ""
    return NothingToDoError(
        f"Pipeline {pipeline!r}: Kafka {where}holds everything that comes next; there is no loss "
        "to accept. Nothing was changed."
    )

"""Going on past what Kafka no longer holds, knowingly: the hole is a ledger version of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from eo_pipeline.errors import Loss, NothingToDoError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.plans import ChangePlan, OpenSteps, counted
from eo_pipeline.run.targets import current_head, refuse_stale
from eo_pipeline.source.discovery import Cluster
from eo_pipeline.source.losses import Losses, losses_of, move_past_losses
from eo_pipeline.source.marks import validated


@dataclass(frozen=True, kw_only=True)
class AcceptLossPlan(ChangePlan):
    """To go on without what ``found`` names, per Kafka partition; ``head`` was planned from."""

    operation: ClassVar = Operation.ACCEPT_LOSS

    head: LedgerEntry
    found: Losses

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What would be accepted, a Kafka partition each."""
        return tuple(loss for _, loss in self.found.values())

    def __str__(self) -> str:
        return (
            f"accept-loss in {self.pipeline} at version {self.head.version}: goes on past what "
            f"Kafka lost in {counted(len(self.found), 'partition')}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "operation": self.operation.value,
            "head": self.head.version,
            "losses": [str(loss) for loss in self.losses],
        }

    def _apply(self, steps: Steps, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        """A hole may have grown since it was looked at; one of another kind was not looked at."""
        refuse_stale(self.pipeline, self.head, steps.recover())
        cluster = validated(steps.admin.cluster(), self.head, steps.admin.logs)
        now = losses_of(self.head, cluster, steps.source)
        accepted = still_lost(self.found, now)
        if not accepted:
            raise _nothing_lost(self.pipeline, None)
        entry = entry_past_losses(self.head, accepted, cluster, steps.run_id, remarks)
        return (steps.publish_alone(entry),)


def plan_accept_loss(open_steps: OpenSteps, topics: Collection[str] | None) -> AcceptLossPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_accept_loss`."""
    with open_steps() as steps:
        head = current_head(steps)
        cluster = validated(steps.admin.cluster(), head, steps.admin.logs)
        losses = losses_of(head, cluster, steps.source)
        found = {tp: loss for tp, loss in losses.items() if topics is None or tp.topic in topics}
        if not found:
            raise _nothing_lost(steps.pipeline, topics)
        return AcceptLossPlan(
            pipeline=steps.pipeline, open_steps=open_steps, head=head, found=found
        )


def still_lost(looked_at: Losses, now: Losses) -> Losses:
    """What is lost ``now`` of what somebody ``looked_at``, for the same reason."""
    return {tp: now[tp] for tp, (kind, _) in looked_at.items() if tp in now and now[tp][0] is kind}


def entry_past_losses(
    head: LedgerEntry, losses: Losses, cluster: Cluster, run_id: str, remarks: Mapping[str, str]
) -> LedgerEntry:
    """The entry that goes on past ``losses``, which it names for ever."""
    moved = move_past_losses(head, {tp: kind for tp, (kind, _) in losses.items()}, cluster)
    holes = [_hole(loss, moved.offsets.get(tp)) for tp, (_, loss) in losses.items()]
    child = head.child(Operation.ACCEPT_LOSS, run_id, moved.offsets)
    return replace(
        child,
        topic_ids=moved.topic_ids,
        details={**remarks, "holes": holes},
        identity=replace(child.identity, past_topics=moved.past_topics, marks=moved.marks),
    )


def _hole(loss: Loss, resumed_at: int | None) -> dict[str, Any]:
    """A loss as the ledger keeps it: its fields, where reading went on (None: nowhere for now),
    and all of it in words.
    """
    return {**asdict(loss), "resumed_at": resumed_at, "text": str(loss)}


def _nothing_lost(pipeline: str, topics: Collection[str] | None) -> NothingToDoError:
    where = f"in {', '.join(sorted(topics))} " if topics else ""
    return NothingToDoError(
        f"Pipeline {pipeline!r}: Kafka {where}holds everything that comes next; there is no loss "
        "to accept. Nothing was changed."
    )

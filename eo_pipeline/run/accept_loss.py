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
from eo_pipeline.source.losses import Losses, losses_of, offsets_past_losses


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
        refuse_stale(self.head, steps.recover())
        cluster = steps.admin.cluster()
        now = losses_of(self.head, cluster, steps.source)
        accepted = {
            tp: now[tp] for tp, (kind, _) in self.found.items() if tp in now and now[tp][0] is kind
        }
        if not accepted:
            raise _nothing_lost(self.pipeline, None)
        entry = entry_past_losses(self.head, accepted, cluster, steps.run_id, remarks)
        return (steps.publish_alone(entry),)


def plan_accept_loss(open_steps: OpenSteps, topics: Collection[str] | None) -> AcceptLossPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_accept_loss`."""
    with open_steps() as steps:
        head = current_head(steps)
        losses = losses_of(head, steps.admin.cluster(), steps.source)
        found = {tp: loss for tp, loss in losses.items() if topics is None or tp.topic in topics}
        if not found:
            raise _nothing_lost(steps.pipeline, topics)
        return AcceptLossPlan(
            pipeline=steps.pipeline, open_steps=open_steps, head=head, found=found
        )


def entry_past_losses(
    head: LedgerEntry, losses: Losses, cluster: Cluster, run_id: str, remarks: Mapping[str, str]
) -> LedgerEntry:
    """The entry that goes on past ``losses``, which it names for ever."""
    kinds = {tp: kind for tp, (kind, _) in losses.items()}
    moved = offsets_past_losses(head.offsets, kinds, cluster)
    now = {tp.topic: cluster.topic_ids.get(tp.topic) for tp in losses}
    topics = {tp.topic for tp in moved}
    known = {topic: now.get(topic) or uuid for topic, uuid in head.topic_ids.items()}
    holes = [_hole(loss, moved.get(tp)) for tp, (_, loss) in losses.items()]
    return replace(
        head.child(Operation.ACCEPT_LOSS, run_id, moved),
        topic_ids={topic: uuid for topic, uuid in known.items() if topic in topics},
        details={**remarks, "holes": holes},
    )


def _hole(loss: Loss, resumed_at: int | None) -> dict[str, Any]:
    """A loss as the ledger keeps it: its fields, where reading went on, and all of it in words."""
    return {**asdict(loss), "resumed_at": resumed_at, "text": str(loss)}


def _nothing_lost(pipeline: str, topics: Collection[str] | None) -> NothingToDoError:
    where = f"in {', '.join(sorted(topics))} " if topics else ""
    return NothingToDoError(
        f"Pipeline {pipeline!r}: Kafka {where}holds everything that comes next; there is no loss "
        "to accept. Nothing was changed."
    )

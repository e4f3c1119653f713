"""Going on past what Kafka no longer holds, knowingly: the hole is a ledger version of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from eo_pipeline.errors import Loss, NothingToDoError, UnknownCheckpointError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.source.discovery import Cluster
from eo_pipeline.source.losses import Losses, losses_of, offsets_past_losses


def accept_loss(
    steps: Steps, topics: Collection[str] | None, remarks: Mapping[str, str]
) -> LedgerEntry:
    """See :meth:`eo_pipeline.pipeline.Pipeline.accept_loss`."""
    head = steps.recover()
    if head is None:
        raise UnknownCheckpointError(
            f"Pipeline {steps.pipeline!r} has no ledger yet: nothing was ever committed. Run it "
            "first."
        )
    cluster = steps.admin.cluster()
    found = losses_of(head, cluster, steps.source)
    chosen = {tp: loss for tp, loss in found.items() if topics is None or tp.topic in topics}
    if not chosen:
        where = f"in {', '.join(sorted(topics))} " if topics else ""
        raise NothingToDoError(
            f"Pipeline {steps.pipeline!r}: Kafka {where}holds everything that comes next; there is "
            "no loss to accept."
        )
    return steps.publish_alone(entry_past_losses(head, chosen, cluster, steps.run_id, remarks))


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

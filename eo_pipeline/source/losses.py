"""Holes between the ledger and Kafka: found, refused, or accepted knowingly."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from eo_pipeline.errors import Loss
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.discovery import (
    Cluster,
    LossKind,
    describe_loss,
    discover,
    past_losses,
)

log = logging.getLogger(__name__)

#: What is lost, per Kafka partition, and why.
Losses = Mapping[TopicPartition, tuple[LossKind, Loss]]


def losses_of(head: LedgerEntry, cluster: Cluster, source: KafkaSource) -> Losses:
    """What ``head`` says comes next and Kafka no longer holds; empty if nothing."""
    subscribed = frozenset(
        topic
        for topic in {*cluster.topic_ids, *(tp.topic for tp in head.offsets)}
        if source.matches(topic)
    )
    found = discover(head.offsets, head.topic_ids, cluster, subscribed)
    if found.fresh:
        log.info("%s: new partitions: %s", head.pipeline, ", ".join(map(str, found.fresh)))
    if found.unsubscribed:
        topics = sorted({tp.topic for tp in found.unsubscribed})
        log.warning("%s: no longer subscribed, offsets kept: %s", head.pipeline, topics)
    return {
        tp: (kind, describe_loss(tp, kind, head.offsets[tp], cluster))
        for tp, kind in sorted(found.losses.items())
    }


def accepted(
    head: LedgerEntry, losses: Losses, cluster: Cluster, run_id: str, remarks: Mapping[str, str]
) -> LedgerEntry:
    """The entry that goes on past ``losses``, which it names for ever."""
    moved = past_losses(head.offsets, {tp: kind for tp, (kind, _) in losses.items()}, cluster)
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

"""What changed in Kafka since the ledger's head: pure comparison, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from eo_pipeline.errors import Loss
from eo_pipeline.ledger.offsets import OffsetRange, Offsets, TopicPartition


@dataclass(frozen=True)
class Bounds:
    """The offsets one partition holds now: ``[beginning, end)``.

    ``end`` is the last stable offset under read_committed, the high watermark otherwise.
    """

    beginning: int
    end: int


@dataclass(frozen=True)
class Cluster:
    """The subscribed topics as the broker describes them at one moment."""

    bounds: Mapping[TopicPartition, Bounds]
    topic_ids: Mapping[str, str]

    def ends(self) -> dict[TopicPartition, int]:
        """Where reading may stop, per partition."""
        return {tp: bounds.end for tp, bounds in self.bounds.items()}


class LossKind(StrEnum):
    """Why the next record cannot be had; each has its own policy in the source."""

    RETENTION = "retention"  # the broker deleted records before they were read
    TRUNCATED = "truncated"  # the log ends before the ledger's offset
    RECREATED = "recreated"  # the topic has another UUID (KIP-516)
    VANISHED = "vanished"  # the topic or partition is gone


_CAUSES = {
    LossKind.RETENTION: "retention deleted records that were not read yet",
    LossKind.TRUNCATED: "the log was truncated (unclean leader election or restored broker?)",
    LossKind.RECREATED: "the topic was deleted and created again",
    LossKind.VANISHED: "the topic or partition was deleted",
}


@dataclass(frozen=True)
class Discovery:
    """``fresh``: partitions the ledger does not know. ``losses``: what cannot be read as planned.
    ``unsubscribed``: in the ledger, no longer asked for; their offsets are kept.
    """

    fresh: tuple[TopicPartition, ...]
    losses: Mapping[TopicPartition, LossKind]
    unsubscribed: tuple[TopicPartition, ...]


def discover(
    offsets: Offsets, topic_ids: Mapping[str, str], cluster: Cluster, subscribed: frozenset[str]
) -> Discovery:
    """Compare the ledger's ``offsets`` and ``topic_ids`` with the ``cluster``.

    ``subscribed`` are the topics asked for and those of the ledger that match the pattern, also
    when they no longer exist: that is how a vanished topic is told from an unsubscribed one.
    """
    losses: dict[TopicPartition, LossKind] = {}
    for tp, expected in offsets.items():
        if tp.topic not in subscribed:
            continue
        kind = _loss(tp, expected, topic_ids, cluster)
        if kind is not None:
            losses[tp] = kind
    return Discovery(
        fresh=tuple(sorted(tp for tp in cluster.bounds if tp not in offsets)),
        losses=losses,
        unsubscribed=tuple(sorted(tp for tp in offsets if tp.topic not in subscribed)),
    )


def _loss(
    tp: TopicPartition, expected: int, topic_ids: Mapping[str, str], cluster: Cluster
) -> LossKind | None:
    known, present = topic_ids.get(tp.topic), cluster.topic_ids.get(tp.topic)
    if known is not None and present is not None and known != present:
        return LossKind.RECREATED
    bounds = cluster.bounds.get(tp)
    if bounds is None:
        return LossKind.VANISHED
    if expected < bounds.beginning:
        return LossKind.RETENTION
    if expected > bounds.end:
        return LossKind.TRUNCATED
    return None


def missing(
    ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str], cluster: Cluster
) -> list[Loss]:
    """Those of ``ranges`` that cannot be read whole, each with the bounds the broker has.

    ``topic_ids`` are the UUIDs of the topics the ranges belong to.
    """
    lost = []
    for r in ranges:
        kind = _loss(r.topic_partition, r.start, topic_ids, cluster)
        bounds = cluster.bounds.get(r.topic_partition)
        if kind is None and bounds is not None and r.end > bounds.end:
            kind = LossKind.TRUNCATED
        if kind is not None:
            lost.append(describe_loss(r.topic_partition, kind, r.start, cluster))
    return lost


def describe_loss(tp: TopicPartition, kind: LossKind, expected: int, cluster: Cluster) -> Loss:
    """The loss with both bounds, for the error and for the ledger."""
    bounds = cluster.bounds.get(tp)
    return Loss(
        topic=tp.topic,
        partition=tp.partition,
        expected=expected,
        beginning=bounds.beginning if bounds else None,
        end=bounds.end if bounds else None,
        cause=_CAUSES[kind],
    )


def past_losses(
    offsets: Offsets, losses: Mapping[TopicPartition, LossKind], cluster: Cluster
) -> dict[TopicPartition, int]:
    """The offsets from which reading goes on once ``losses`` were accepted.

    Retention and a recreated topic: the beginning the broker has now. A truncated log: its end.
    A vanished partition is forgotten.
    """
    moved = dict(offsets)
    for tp, kind in losses.items():
        bounds = cluster.bounds.get(tp)
        if bounds is None:
            del moved[tp]
        else:
            moved[tp] = bounds.end if kind is LossKind.TRUNCATED else bounds.beginning
    return moved

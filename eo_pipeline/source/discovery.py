"""What Kafka holds at one moment, and which of its partitions the ledger does not know. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eo_pipeline.ledger.offsets import Offsets, TopicPartition


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


@dataclass(frozen=True)
class Discovery:
    """``fresh``: partitions the ledger does not know. ``unsubscribed``: in the ledger, no longer
    asked for; their offsets are kept.
    """

    fresh: tuple[TopicPartition, ...]
    unsubscribed: tuple[TopicPartition, ...]


def discover(offsets: Offsets, cluster: Cluster, subscribed: frozenset[str]) -> Discovery:
    """Compare the ledger's ``offsets`` with the ``cluster``.

    ``subscribed`` are the topics asked for and those of the ledger that match the pattern, also
    when they no longer exist: that is how a vanished topic is told from an unsubscribed one.
    """
    return Discovery(
        fresh=tuple(sorted(tp for tp in cluster.bounds if tp not in offsets)),
        unsubscribed=tuple(sorted(tp for tp in offsets if tp.topic not in subscribed)),
    )

"""What Kafka no longer holds: the one place that asks, whoever is about to read.

Three ask. A run: is the next record of every partition there (:func:`losses_of`)? A checkpoint
whose ranges are decided: were they taken away meanwhile (:func:`refuse_lost_ranges`)? A rewind,
replay or fork: is there all of what was read once, and will it stay (:class:`Rereading`)?
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from eo_pipeline.errors import CompactedError, DataLossError, Loss, RangesGoneError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, Offsets, TopicPartition
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.config import KafkaSource, LossKind
from eo_pipeline.source.discovery import Cluster, discover

log = logging.getLogger(__name__)

#: How long the records must still stay in Kafka, so that retention does not overtake the reading.
RETENTION_MARGIN = timedelta(hours=1)

#: What is lost, per Kafka partition, and why.
Losses = Mapping[TopicPartition, tuple[LossKind, Loss]]

_CAUSES = {
    LossKind.RETENTION: "retention deleted records that were not read yet",
    LossKind.TRUNCATED: "the log was truncated (unclean leader election or restored broker?)",
    LossKind.RECREATED: "the topic was deleted and created again",
    LossKind.VANISHED: "the topic or partition was deleted",
}


# What comes next.


def losses_of(head: LedgerEntry, cluster: Cluster, source: KafkaSource) -> Losses:
    """What ``head`` says comes next and Kafka no longer holds; empty if nothing."""
    subscribed = frozenset(
        topic
        for topic in {*cluster.topic_ids, *(tp.topic for tp in head.offsets)}
        if source.matches(topic)
    )
    found = discover(head.offsets, cluster, subscribed)
    if found.fresh:
        log.info("%s: new partitions: %s", head.pipeline, ", ".join(map(str, found.fresh)))
    if found.unsubscribed:
        topics = sorted({tp.topic for tp in found.unsubscribed})
        log.warning("%s: no longer subscribed, offsets kept: %s", head.pipeline, topics)
    kinds = kinds_of_loss(head.offsets, head.topic_ids, cluster, subscribed)
    return {
        tp: (kind, describe_loss(tp, kind, head.offsets[tp], cluster))
        for tp, kind in sorted(kinds.items())
    }


def kinds_of_loss(
    offsets: Offsets, topic_ids: Mapping[str, str], cluster: Cluster, subscribed: frozenset[str]
) -> dict[TopicPartition, LossKind]:
    """The partitions of ``subscribed`` topics whose next record cannot be had, and why.

    ``topic_ids`` are the topics' UUIDs in the ledger.
    """
    kinds = {
        tp: kind_of_loss(tp, expected, topic_ids, cluster)
        for tp, expected in offsets.items()
        if tp.topic in subscribed
    }
    return {tp: kind for tp, kind in kinds.items() if kind is not None}


def kind_of_loss(
    tp: TopicPartition, expected: int, topic_ids: Mapping[str, str], cluster: Cluster
) -> LossKind | None:
    """Why reading ``tp`` cannot start at ``expected``; None if it can."""
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


def offsets_past_losses(
    offsets: Offsets, kinds: Mapping[TopicPartition, LossKind], cluster: Cluster
) -> dict[TopicPartition, int]:
    """The offsets from which reading goes on once losses of these ``kinds`` were accepted.

    Retention and a recreated topic: the beginning the broker has now. A truncated log: its end.
    A vanished partition is forgotten.
    """
    moved = dict(offsets)
    for tp, kind in kinds.items():
        bounds = cluster.bounds.get(tp)
        if bounds is None:
            del moved[tp]
        else:
            moved[tp] = bounds.end if kind is LossKind.TRUNCATED else bounds.beginning
    return moved


# Ranges that were decided, and ranges that were read before.


def lost_ranges(
    ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str], cluster: Cluster
) -> list[Loss]:
    """Those of ``ranges`` that cannot be read whole, each with the bounds the broker has.

    ``topic_ids`` are the UUIDs of the topics the ranges belong to.
    """
    lost = []
    for r in ranges:
        kind = kind_of_loss(r.topic_partition, r.start, topic_ids, cluster)
        bounds = cluster.bounds.get(r.topic_partition)
        if kind is None and bounds is not None and r.end > bounds.end:
            kind = LossKind.TRUNCATED
        if kind is not None:
            lost.append(describe_loss(r.topic_partition, kind, r.start, cluster))
    return lost


def refuse_lost_ranges(entry: LedgerEntry, cluster: Cluster) -> None:
    """Return if Kafka holds all that ``entry`` was to read.

    Raises:
        RangesGoneError, DataLossError: it does not; the first for a replay.
    """
    lost = lost_ranges(entry.ranges, entry.topic_ids, cluster)
    if lost and entry.operation is Operation.REPLAY:
        raise RangesGoneError(entry.pipeline, f"the replay of {entry.target}", lost)
    if lost:
        raise DataLossError(entry.pipeline, lost)


@dataclass(frozen=True)
class Rereading:
    """Whether ranges can be read again, for one pipeline and one look at the cluster."""

    pipeline: str
    source: KafkaSource
    admin: KafkaAdmin
    cluster: Cluster

    def check(
        self,
        operation: str,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        *,
        accept_compacted: bool,
    ) -> tuple[str, ...]:
        """Warnings about ``ranges``, if all of them can be read again.

        Args:
            operation: in words, for errors: ``the rewind to 3``.
            ranges: what would be read again; an empty one asks only that reading can start there.
            topic_ids: the topics' UUIDs when the ranges were first read.
            accept_compacted: a compacted topic is a warning instead of an error.

        Raises:
            RangesGoneError: they are gone, will be soon, or belong to another or no topic.
            CompactedError: compaction may have taken some of them.
            SourceUnavailableError: Kafka does not answer, or does not show its topics' settings.
        """
        lost = self._unsubscribed(ranges)
        lost = lost or lost_ranges(ranges, topic_ids, self.cluster) or self._soon_gone(ranges)
        if lost:
            raise RangesGoneError(self.pipeline, operation, lost)
        return self._compacted(operation, ranges, accept=accept_compacted)

    def _unsubscribed(self, ranges: Sequence[OffsetRange]) -> list[Loss]:
        cause = "the pipeline no longer reads this topic, and would not read it again"
        return [
            Loss(r.topic, r.partition, r.start, None, None, cause)
            for r in ranges
            if not self.source.matches(r.topic)
        ]

    def _soon_gone(self, ranges: Sequence[OffsetRange]) -> list[Loss]:
        partitions = [r.topic_partition for r in ranges if r.span]
        floors = self.admin.offsets_kept_for(partitions, RETENTION_MARGIN)
        lost = []
        for r in ranges:
            floor = floors.get(r.topic_partition)
            if floor is not None and r.span and r.start < floor:
                bounds = self.cluster.bounds[r.topic_partition]
                cause = f"retention may delete offsets below {floor} within {RETENTION_MARGIN}"
                lost.append(
                    Loss(r.topic, r.partition, r.start, bounds.beginning, bounds.end, cause)
                )
        return lost

    def _compacted(
        self, operation: str, ranges: Sequence[OffsetRange], *, accept: bool
    ) -> tuple[str, ...]:
        compacted = sorted(self.admin.compacted({r.topic for r in ranges if r.span}))
        if not compacted:
            return ()
        what = f"{', '.join(compacted)}: compaction may have taken records, so that fewer come back"
        if accept:
            return (what,)
        raise CompactedError(
            f"Pipeline {self.pipeline!r}: {operation} would read a compacted topic again. {what}. "
            "Nothing was changed. If that is what you want, say so: accept_compacted=True, "
            "`--accept-compacted`."
        )

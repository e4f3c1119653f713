"""Records that Kafka no longer holds: the only module that checks for them.

It has three callers. A run checks that the next record of every partition exists
(:func:`losses_of`). A checkpoint whose ranges are decided checks that they were not deleted
meanwhile (:func:`refuse_lost_ranges`). A rewind, replay or fork checks that all records to be read
again exist and will be kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eo_pipeline.errors import DataLossError, Loss, RangesGoneError
from eo_pipeline.kafka.partitions import (
    UNKNOWN_TOPIC_ID,
    Bounds,
    Cluster,
    Discovery,
    PastTopics,
    discover,
    kept_position,
)
from eo_pipeline.kafka.source import KafkaSource, LossKind
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.marks import Mark, Marks
from eo_pipeline.ledger.offsets import OffsetRange, Offsets, TopicPartition

log = logging.getLogger(__name__)

#: What is lost, per Kafka partition, and why.
Losses = Mapping[TopicPartition, tuple[LossKind, Loss]]

_CAUSES = {
    LossKind.RETENTION: "retention deleted records that were not read yet",
    LossKind.TRUNCATED: "the log was truncated (unclean leader election or restored broker?)",
    LossKind.RECREATED: "the topic was deleted and created again",
    LossKind.WENT_BACK: (
        "the topic has an earlier topic's UUID again (a broker with stale metadata, or another "
        "cluster?)"
    ),
    LossKind.VANISHED: "the topic or partition was deleted",
}
_GROWN_AGAIN = (
    "the log was truncated and has grown again (unclean leader election or restored broker?), so "
    "that the records below its end are not those that were read"
)


# What comes next.


def losses_of(head: LedgerEntry, cluster: Cluster, source: KafkaSource) -> Losses:
    """Return the next ranges of ``head`` that Kafka no longer holds; empty if there are none."""
    subscribed = frozenset(
        topic
        for topic in {*cluster.topic_ids, *(tp.topic for tp in head.offsets)}
        if source.matches(topic)
    )
    discovery = discover(head.offsets, head.identity.past_topics, cluster, subscribed)
    _tell(head.pipeline, discovery)
    return {
        tp: (kind, describe_loss(tp, kind, discovery.positions[tp], cluster))
        for tp, kind in sorted(kinds_of_loss(head, discovery, cluster, subscribed).items())
    }


def _tell(pipeline: str, discovery: Discovery) -> None:
    if discovery.fresh:
        log.info("%s: new partitions: %s", pipeline, _listed(discovery.fresh))
    if discovery.returned:
        log.warning(
            "%s: partitions are back, reading resumes: %s", pipeline, _listed(discovery.returned)
        )
    if discovery.waiting:
        waiting = _listed(discovery.waiting)
        log.warning("%s: not read, the logs end below the next offset: %s", pipeline, waiting)
    if discovery.unsubscribed:
        topics = sorted({tp.topic for tp in discovery.unsubscribed})
        log.warning("%s: no longer subscribed, offsets kept: %s", pipeline, topics)


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))


def kinds_of_loss(
    head: LedgerEntry, discovery: Discovery, cluster: Cluster, subscribed: frozenset[str]
) -> dict[TopicPartition, LossKind]:
    """The partitions of ``subscribed`` topics whose next record cannot be had, and why."""
    kinds: dict[TopicPartition, LossKind] = {}
    replaced = {tp.topic for tp in head.offsets if _replaced(tp.topic, head.topic_ids, cluster)}
    for tp, position in discovery.positions.items():
        if tp.topic not in subscribed:
            continue
        if _went_back(tp.topic, head, cluster):
            kinds[tp] = LossKind.WENT_BACK
        elif tp in head.offsets:
            kind = kind_of_loss(tp, position, head.topic_ids, cluster)
            kinds |= {} if kind is None else {tp: kind}
        elif position >= cluster.altered.get(tp, position + 1):
            kinds[tp] = LossKind.TRUNCATED
        elif position < cluster.bounds[tp].beginning:
            # a replaced topic is accepted as a whole, with the partitions it did not have before
            kinds[tp] = LossKind.RECREATED if tp.topic in replaced else LossKind.RETENTION
    return kinds


def kind_of_loss(
    tp: TopicPartition, expected: int, topic_ids: Mapping[str, str], cluster: Cluster
) -> LossKind | None:
    """Return why reading ``tp`` cannot start at ``expected``; None if it can.

    ``topic_ids`` are the topics' UUIDs in the ledger. That the offsets up to ``expected`` belong
    to transactions that are open again, since somebody changed the isolation, is no loss: they
    were read, and reading waits. A log that is another below ``expected`` has lost what was read,
    and holds in its place what was not.
    """
    if _replaced(tp.topic, topic_ids, cluster):
        return LossKind.RECREATED
    bounds = cluster.bounds.get(tp)
    if bounds is None:
        return LossKind.VANISHED
    if expected < bounds.beginning:
        return LossKind.RETENTION
    if expected > bounds.written or expected >= cluster.altered.get(tp, expected + 1):
        return LossKind.TRUNCATED
    return None


def _replaced(topic: str, topic_ids: Mapping[str, str], cluster: Cluster) -> bool:
    """True if ``topic`` is another topic than the one of ``topic_ids``."""
    recorded, present = topic_ids.get(topic), cluster.topic_ids.get(topic)
    return recorded is not None and present is not None and recorded != present


def _went_back(topic: str, head: LedgerEntry, cluster: Cluster) -> bool:
    """True if it is one that another had taken the place of: Kafka never does that."""
    past = head.identity.past_topics.get(cluster.topic_ids.get(topic, UNKNOWN_TOPIC_ID), {})
    was_ours = any(tp.topic == topic for tp in past)
    return was_ours and _replaced(topic, head.topic_ids, cluster)


def describe_loss(tp: TopicPartition, kind: LossKind, expected: int, cluster: Cluster) -> Loss:
    """The loss with both bounds, for the error and for the ledger."""
    bounds = cluster.bounds.get(tp)
    return Loss(
        topic=tp.topic,
        partition=tp.partition,
        expected=expected,
        beginning=bounds.beginning if bounds else None,
        end=bounds.end if bounds else None,
        cause=_GROWN_AGAIN if _grew_again(kind, expected, bounds) else _CAUSES[kind],
    )


def _grew_again(kind: LossKind, expected: int, bounds: Bounds | None) -> bool:
    return kind is LossKind.TRUNCATED and bounds is not None and expected <= bounds.written


# Where reading goes on.


@dataclass(frozen=True)
class Moved:
    """The part of a ledger entry about Kafka, once losses were accepted."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    past_topics: PastTopics
    marks: Marks


def move_past_losses(
    head: LedgerEntry, kinds: Mapping[TopicPartition, LossKind], cluster: Cluster
) -> Moved:
    """Return the positions after ``head`` once losses of these ``kinds`` were accepted.

    No position ever goes down. A partition that cannot be read on from its position is put aside
    with it: one that is gone, one whose log ends before it, and all those of a topic that another
    took the place of. It is read on from there if it is ever shown again. Of a log that was
    truncated what is read from now on belongs to another one.
    """
    past = head.identity.past_topics
    topics = {tp.topic for tp in kinds}
    replaced = {topic for topic in topics if _replaced(topic, head.topic_ids, cluster)}
    offsets = {tp: at for tp, at in head.offsets.items() if tp.topic not in replaced}
    for tp in kinds:
        offsets.pop(tp, None)
        at = _resumed_at(tp, None if tp.topic in replaced else head.offsets.get(tp), past, cluster)
        offsets |= {} if at is None else {tp: at}
    present = {topic: cluster.topic_ids[topic] for topic in topics & cluster.topic_ids.keys()}
    topic_ids = {**head.topic_ids, **present}
    aside = {
        tp: at
        for tp, at in head.offsets.items()
        if tp.topic in replaced or (tp in kinds and tp not in offsets)
    }
    positions = {**head.offsets, **offsets}
    marks = {
        tp: _mark_past(kinds.get(tp), mark, positions.get(tp, 0), cluster.bounds.get(tp))
        for tp, mark in head.identity.marks.items()
        if tp.topic not in replaced
    }
    past = _kept(past, aside, head.topic_ids, offsets, topic_ids)
    return Moved(offsets, topic_ids, past, marks)


def _mark_past(kind: LossKind | None, mark: Mark, position: int, bounds: Bounds | None) -> Mark:
    """``mark`` of a log of which that kind of loss was accepted, if any was."""
    if kind is None or bounds is None:
        return mark
    if kind is not LossKind.TRUNCATED:
        return Mark(bounds.epoch, since=mark.since)
    # of a log that has yet to grow its epoch would say that it was truncated, and that is accepted
    return Mark(bounds.epoch if position <= bounds.end else None, since=position)


def _resumed_at(
    tp: TopicPartition, position: int | None, past: PastTopics, cluster: Cluster
) -> int | None:
    """Return where ``tp`` is read on from ``position``, or from where it was put aside; None if it
    cannot be read on now.
    """
    bounds = cluster.bounds.get(tp)
    if bounds is None:
        return None
    if position is None:
        position = kept_position(past, cluster.topic_ids, tp) or 0
    return None if position > bounds.written else max(position, bounds.beginning)


def _kept(
    past: PastTopics,
    aside: Offsets,
    their_ids: Mapping[str, str],
    offsets: Offsets,
    topic_ids: Mapping[str, str],
) -> dict[str, Offsets]:
    """``past`` with what is put ``aside``, without what is among the ``offsets``."""
    kept = {uuid: dict(positions) for uuid, positions in past.items()}
    for tp, at in aside.items():
        kept.setdefault(their_ids.get(tp.topic, UNKNOWN_TOPIC_ID), {})[tp] = at
    return without_live(kept, offsets, topic_ids)


def without_live(
    past: PastTopics, offsets: Offsets, topic_ids: Mapping[str, str]
) -> dict[str, Offsets]:
    """``past`` without the positions that are among the ``offsets``, of the same topics."""

    def is_live(uuid: str, tp: TopicPartition) -> bool:
        same = uuid in (UNKNOWN_TOPIC_ID, topic_ids.get(tp.topic, UNKNOWN_TOPIC_ID))
        return same and tp in offsets

    left = {
        uuid: {tp: at for tp, at in positions.items() if not is_live(uuid, tp)}
        for uuid, positions in past.items()
    }
    return {uuid: positions for uuid, positions in left.items() if positions}


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
        # where reading could go on from: the end of what was read
        kind = kind or kind_of_loss(r.topic_partition, r.end, topic_ids, cluster)
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

"""Comparison of Kafka's logs with the marks in the ledger: are they the logs that were read before?

A log that was truncated (an unclean election, a broker on an older disk) and has grown again to the
ledger's offset, or past it, has the bounds of one that was only written to. It is recognized by its
leaders' epochs (KIP-320), and by the last record that was read. The record decides, where it still
exists: epochs begin anew in a cluster that was restored as a whole, and differ in a copy.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.kafka.logs import LogReader
from eo_pipeline.kafka.partitions import Bounds, Cluster, positions_of
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.ledger.marks import Mark
from eo_pipeline.ledger.offsets import OffsetRange, Offsets, TopicPartition

log = logging.getLogger(__name__)

#: How far back from its end a range is searched for its last record: markers of transactions and
#: aborted records have no digest.
_TAIL = 16

#: A mark, and the offset that it stands below.
_Marked = Mapping[TopicPartition, tuple[int, Mark]]


def validated(cluster: Cluster, head: LedgerEntry | None, logs: LogReader) -> Cluster:
    """``cluster`` with the logs of it that are not those that ``head`` has read.

    Looked at are partitions that have something new, and those that have another leader's epoch
    since: where nothing happened nothing is asked.
    """
    if head is None:
        return cluster
    marks = head.identity.marks
    if not marks and any(head.offsets.values()):
        log.info(
            "%s: version %d, written by an earlier release, has no marks of its logs: "
            "replaced logs are detected from the next checkpoint on",
            head.pipeline,
            head.version,
        )
    changed = {
        tp: (at, marks[tp])
        for tp, at in positions_of(head, cluster).items()
        if tp in marks
        and tp in cluster.bounds
        and cluster.topic_ids.get(tp.topic) == head.topic_ids.get(tp.topic)
        and _is_changed(at, marks[tp], cluster.bounds[tp])
    }
    altered_logs = altered(changed, cluster, logs)
    return replace(cluster, altered={tp: changed[tp][0] for tp in sorted(altered_logs)})


def _is_changed(at: int, mark: Mark, bounds: Bounds) -> bool:
    grown = bounds.end > at and mark.digest is not None
    return grown or _has_other_epoch(mark, bounds)


def _has_other_epoch(mark: Mark, bounds: Bounds) -> bool:
    return None not in (mark.epoch, bounds.epoch) and mark.epoch != bounds.epoch


def altered(marked: _Marked, cluster: Cluster, logs: LogReader) -> set[TopicPartition]:
    """Return the partitions whose log is not the one that was marked. A log that ends below its
    mark, or does not exist, cannot be judged.
    """
    bounds = cluster.bounds
    there = {tp: mark for tp, mark in marked.items() if tp in bounds and mark[0] <= bounds[tp].end}
    held = [
        OffsetRange(*tp, mark.offset, mark.offset + 1)
        for tp, (_, mark) in there.items()
        if mark.offset is not None and mark.offset >= bounds[tp].beginning
    ]
    records = logs.last_records(held)
    # retention or compaction took the others
    by_epoch = {
        tp: (at, mark.epoch)
        for tp, (at, mark) in there.items()
        if tp not in records and mark.epoch is not None and _has_other_epoch(mark, bounds[tp])
    }
    others = {tp for tp, record in records.items() if record.digest != there[tp][1].digest}
    return others | logs.truncated(by_epoch)


def altered_ranges(
    selected: Sequence[Checkpoint], cluster: Cluster, logs: LogReader
) -> list[tuple[int, OffsetRange]]:
    """Ranges of live checkpoints whose records are not those that were read, with the checkpoint's
    version. A log that is the same at its newest mark is the same below, so that one look is enough
    where nothing was altered.
    """
    waiting = _marked_ranges(selected, cluster)
    lost: list[tuple[int, OffsetRange]] = []
    while waiting:
        newest = {tp: (r.end, mark) for tp, [(_, r, mark), *_] in waiting.items()}
        others = altered(newest, cluster, logs)
        for tp, [(version, r, mark), *older] in [*waiting.items()]:
            if tp in others:
                lost.append((version, r))
            elif r.end <= cluster.bounds[tp].end:
                older = [pair for pair in older if pair[1].start < mark.since]
            waiting[tp] = older
        waiting = {tp: ranges for tp, ranges in waiting.items() if ranges}
    return sorted(lost)


def _marked_ranges(
    selected: Sequence[Checkpoint], cluster: Cluster
) -> dict[TopicPartition, list[tuple[int, OffsetRange, Mark]]]:
    """Ranges of checkpoints in partitions that exist, with their marks, the newest first."""
    ranges: dict[TopicPartition, list[tuple[int, OffsetRange, Mark]]] = defaultdict(list)
    for checkpoint in sorted(selected, key=lambda checkpoint: checkpoint.version, reverse=True):
        ids = checkpoint.entry.topic_ids
        for r in checkpoint.entry.ranges:
            tp = r.topic_partition
            mark = checkpoint.entry.identity.marks.get(tp)
            same = ids.get(r.topic) in (None, cluster.topic_ids.get(r.topic))
            if mark is not None and same and tp in cluster.bounds:
                ranges[tp].append((checkpoint.version, r, mark))
    return ranges


def start_marks(offsets: Offsets, cluster: Cluster) -> dict[TopicPartition, Mark]:
    """Marks of partitions that are read from ``offsets`` on, of which nothing was read before."""
    return {
        tp: Mark(bounds.epoch)
        for tp, bounds in cluster.bounds.items()
        if bounds.epoch is not None and offsets.get(tp)
    }


def marked(entry: LedgerEntry, cluster: Cluster, logs: LogReader) -> LedgerEntry:
    """``entry`` with marks of the logs that it reads, as they are in a validated ``cluster``.

    That their last records cannot be fetched stops no run: the next one knows the logs by their
    epochs alone.
    """
    tails = [replace(r, start=max(r.start, r.end - _TAIL)) for r in entry.ranges]
    try:
        records = logs.last_records(tails)
    except SourceUnavailableError as error:
        log.warning("%s: logs are marked by their epochs alone: %s", entry.pipeline, error)
        records = {}
    marks = {
        tp: mark._replace(epoch=cluster.bounds[tp].epoch) if _is_read(tp, entry, cluster) else mark
        for tp, mark in entry.identity.marks.items()
    }
    for r in entry.ranges:
        tp = r.topic_partition
        mark = marks.get(tp, Mark(cluster.bounds[tp].epoch))
        # an older record of the same log tells it, too
        marks[tp] = mark._replace(**records[tp]._asdict()) if tp in records else mark
    return replace(entry, identity=replace(entry.identity, marks=marks))


def _is_read(tp: TopicPartition, entry: LedgerEntry, cluster: Cluster) -> bool:
    """Return whether its log was compared: ``entry`` lies in what the broker holds of it."""
    return tp in cluster.bounds and entry.offsets.get(tp, cluster.bounds[tp].end + 1) <= (
        cluster.bounds[tp].end
    )

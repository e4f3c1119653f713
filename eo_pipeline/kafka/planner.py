"""Plan of the next checkpoint's ranges: pure, O(partitions), no I/O.

A plan is decided before anything is read and never changes afterwards, so that a second query of
a moving topic cannot disagree with the first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.ledger.offsets import OffsetRange, Offsets, TopicPartition

#: Assumed size of a record's value while no checkpoint has measured one, in bytes. Kafka's own
#: tools and benchmarks use 1 KiB records as the usual size.
ASSUMED_RECORD_BYTES = 1024


@dataclass(frozen=True)
class BatchLimits:
    """The most one checkpoint reads: ``records`` by offset span, ``bytes`` of values (estimated
    from what earlier checkpoints measured). ``None`` means no limit.
    """

    records: int | None = None
    bytes: int | None = None

    def span(self, record_bytes: float | None) -> int | None:
        """Both limits as one number of offsets, at least 1."""
        if self.bytes is None:
            return self.records
        by_bytes = max(1, int(self.bytes / (record_bytes or ASSUMED_RECORD_BYTES)))
        return by_bytes if self.records is None else min(self.records, by_bytes)


@dataclass(frozen=True)
class Batch:
    """One checkpoint's work: the ``ranges`` to read, none empty."""

    ranges: tuple[OffsetRange, ...]

    @property
    def is_empty(self) -> bool:
        return not self.ranges

    @property
    def span(self) -> int:
        """Upper bound on the records to read."""
        return sum(r.span for r in self.ranges)

    def after(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """The ledger's ``offsets`` once it is read. A partition joins them with its first range;
        those without new records, and those no longer subscribed, stay.
        """
        return {**offsets, **{r.topic_partition: r.end for r in self.ranges}}


def plan(
    positions: Offsets,
    cluster: Cluster,
    *,
    ends: Offsets | None = None,
    limit: int | None = None,
    turn: int = 0,
) -> Batch:
    """The next batch.

    Args:
        positions: where reading goes on, per partition; losses already settled. What is not in
            it is not read.
        cluster: what the broker holds.
        ends: read no further than this (the ends seen when the run began); partitions that are
            not in it wait for the next run. ``None``: as far as the broker allows.
        limit: the most offsets in the batch, shared fairly.
        turn: a number that rises with every checkpoint; when the limit is smaller than the number
            of waiting partitions it decides whose turn it is.

    Returns:
        Ranges sorted by topic and partition.
    """
    stops = cluster.ends() if ends is None else ends
    waiting: dict[TopicPartition, tuple[int, int]] = {}
    for tp, bounds in sorted(cluster.bounds.items()):
        if tp not in positions:
            continue
        start = positions[tp]
        end = min(bounds.end, stops.get(tp, start))
        if end > start:
            waiting[tp] = (start, end)
    shares = fair_shares([end - start for start, end in waiting.values()], limit, turn)
    return Batch(
        tuple(
            OffsetRange(tp.topic, tp.partition, start, start + share)
            for (tp, (start, _)), share in zip(waiting.items(), shares, strict=True)
            if share
        )
    )


def fair_shares(wanted: Sequence[int], limit: int | None, turn: int = 0) -> list[int]:
    """Divide ``limit`` among partitions that want ``wanted`` each (all > 0): max-min fairness.

    Nobody gets more than it wants; what a small one leaves goes to the others; the shares of two
    unsatisfied partitions differ by at most one. If there is less than one for each,
    ``limit`` partitions get one, and ``turn`` moves on through them, so that none starves.
    """
    if limit is None or sum(wanted) <= limit:
        return list(wanted)
    count = len(wanted)
    if limit < count:
        first = turn * limit
        served = {(first + i) % count for i in range(limit)}
        return [int(i in served) for i in range(count)]
    shares = [0] * count
    left = limit
    for rank, i in enumerate(sorted(range(count), key=lambda i: wanted[i])):
        shares[i] = min(wanted[i], left // (count - rank))
        left -= shares[i]
    return shares


def lag(positions: Offsets, cluster: Cluster) -> int:
    """Offsets between where reading goes on and the end of every partition: an upper bound on the
    records still to read (holes count).
    """
    return sum(
        max(0, cluster.bounds[tp].end - start)
        for tp, start in positions.items()
        if tp in cluster.bounds
    )


#: Values that are worth a task, in bytes: some tenths of a second of parsing.
TASK_BYTES = 16 * 1024 * 1024

#: Tasks for each core, so that one that takes longer does not leave the others idle.
TASKS_PER_CORE = 4

#: What Spark's consumers may know at once, in partitions, all consumers together. A range has one
#: until its task ends, and each knows every partition of its topic, by half a kilobyte of heap.
KNOWN_MAX = 1_000_000


@dataclass(frozen=True)
class Tasks:
    """The number of tasks, as Spark takes it; never both, so that order within a partition is kept.
    Pieces of one range are read by consecutive tasks, and ranges that share a task are whole.

    Args:
        span_max: offsets of one partition that one task reads; ``None``: all of the range.
        shared_by: ranges are read by so many tasks; ``None``: each by its own.
    """

    span_max: int | None = None
    shared_by: int | None = None

    @classmethod
    def of(
        cls,
        ranges: Sequence[OffsetRange],
        cores: int | None,
        record_bytes: float | None,
        partitions: Collection[TopicPartition] = (),
    ) -> Tasks:
        """Return the tasks by which ``cores`` (None: unknown) share ``ranges`` of records of
        that mean size, if it was measured. ``partitions`` are partitions of their topics, also
        without a range.
        """
        if not cores or not ranges:
            return cls()
        span = sum(offset_range.span for offset_range in ranges)
        worth = max(1, int(TASK_BYTES / (record_bytes or ASSUMED_RECORD_BYTES)))
        share = max(worth, math.ceil(span / (cores * TASKS_PER_CORE)))
        if max(offset_range.span for offset_range in ranges) > 2 * share:
            return cls(span_max=share)
        together = max(1, KNOWN_MAX // (_widest(ranges, partitions) * cores))
        enough = max(cores, math.ceil(span / share), math.ceil(len(ranges) / together))
        return cls(shared_by=enough) if len(ranges) > enough else cls()


def _widest(ranges: Sequence[OffsetRange], partitions: Collection[TopicPartition]) -> int:
    """Partitions of the topic of ``ranges`` that has most, as far as anybody knows."""
    counted = Counter(tp.topic for tp in partitions)
    return max(
        max(counted[offset_range.topic], offset_range.partition + 1) for offset_range in ranges
    )

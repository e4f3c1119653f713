"""How Spark's tasks share a batch: by its size, not by Kafka's partitions. Pure, no I/O.

Left to itself Spark reads each partition in a task of its own. Of a thousand partitions with a
record each that is a thousand tasks, and of a topic with nearly everything in one partition it is
one core that works and others that look on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.source.planner import ASSUMED_RECORD_BYTES

#: Values that are worth a task, in bytes: some tenths of a second of parsing.
TASK_BYTES = 16 * 1024 * 1024

#: Tasks for each core, so that one that takes longer does not leave the others idle.
TASKS_PER_CORE = 4

#: What Spark's consumers may know at once, in partitions, all consumers together. A range has one
#: until its task ends, and each knows every partition of its topic, by half a kilobyte of heap.
KNOWN_MAX = 1_000_000


@dataclass(frozen=True)
class Tasks:
    """What Spark is told; never both, which is why order within a partition is kept. Pieces of one
    range are read by tasks that follow each other, and ranges that share a task are whole.

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
        known: Collection[TopicPartition] = (),
    ) -> Tasks:
        """How ``cores`` (None: nobody knows how many) share ``ranges`` of records of that mean
        size, if it was measured. ``known`` are partitions of their topics, also without a range.
        """
        if not cores or not ranges:
            return cls()
        span = sum(each.span for each in ranges)
        worth = max(1, int(TASK_BYTES / (record_bytes or ASSUMED_RECORD_BYTES)))
        share = max(worth, math.ceil(span / (cores * TASKS_PER_CORE)))
        if max(each.span for each in ranges) > 2 * share:
            return cls(span_max=share)
        together = max(1, KNOWN_MAX // (_widest(ranges, known) * cores))
        enough = max(cores, math.ceil(span / share), math.ceil(len(ranges) / together))
        return cls(shared_by=enough) if len(ranges) > enough else cls()


def _widest(ranges: Sequence[OffsetRange], known: Collection[TopicPartition]) -> int:
    """Partitions of the topic of ``ranges`` that has most, as far as anybody knows."""
    counted = Counter(each.topic for each in known)
    return max(max(counted[each.topic], each.partition + 1) for each in ranges)

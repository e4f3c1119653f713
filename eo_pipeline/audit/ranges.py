"""Audit step 2: ranges of the checkpoints that Kafka still holds. Pure but for the file of ranges.

Rows of a missing range can be proved neither right nor wrong. The remaining ranges are disjoint, so
that every record in Kafka belongs to exactly one checkpoint.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition

_UNSUBSCRIBED = "the pipeline no longer reads this topic"
_RECREATED = "the topic was deleted and created again"
_VANISHED = "the topic or partition was deleted"
_EXPIRED = "retention deleted the records"
_TRUNCATED = "the log was truncated"
_OPEN = "they wait behind a transaction that is open"
_ALTERED = "the log was truncated, and other records have these offsets"
_REWRITTEN = "a later checkpoint read these offsets again"


class Region(IntEnum):
    """Kafka's evidence about a range. A number, because Spark aggregates texts by sorting them."""

    READABLE = 1
    COMPACTED = 2  # readable, but an absent record proves nothing
    GONE = 3


@dataclass(frozen=True)
class RangePiece:
    """A non-empty piece of a checkpoint's range; ``cause`` is the reason if it cannot be read."""

    checkpoint: int
    range: OffsetRange
    cause: str | None = None

    @property
    def is_cut_off(self) -> bool:
        """True if the log was truncated before this range, which it held."""
        return self.cause == _TRUNCATED


#: Version of a checkpoint, and a range that it read.
ReadRange = tuple[int, OffsetRange]


def range_pieces(
    checkpoints: Sequence[Checkpoint],
    cluster: Cluster,
    source: KafkaSource,
    altered: Collection[ReadRange] = (),
) -> Iterator[RangePiece]:
    """Cut the ranges of the checkpoints at Kafka's bounds and at newer checkpoints; ``altered``
    ranges hold other records now.
    """
    newer: dict[TopicPartition, int] = {}
    for checkpoint in sorted(checkpoints, key=lambda c: c.version, reverse=True):
        for r in checkpoint.entry.ranges:
            cause = _cause(r, checkpoint.entry.topic_ids, cluster, source)
            if (checkpoint.version, r) in altered:
                cause = _ALTERED
            if cause is not None:
                yield RangePiece(checkpoint.version, r, cause)
                continue
            bounds, newer_start = cluster.bounds[r.topic_partition], newer.get(r.topic_partition)
            yield from _cut(checkpoint.version, r, bounds, newer_start)
            newer[r.topic_partition] = min(
                r.start, newer_start if newer_start is not None else r.start
            )


def _cause(
    r: OffsetRange, topic_ids: Mapping[str, str], cluster: Cluster, source: KafkaSource
) -> str | None:
    """Return the reason if nothing of ``r`` can be read, or None."""
    if not source.matches(r.topic):
        return _UNSUBSCRIBED
    if r.topic_partition not in cluster.bounds:
        return _VANISHED
    topic_id, present_id = topic_ids.get(r.topic), cluster.topic_ids.get(r.topic)
    return _RECREATED if topic_id is not None and topic_id != present_id else None


def _cut(
    checkpoint: int, r: OffsetRange, bounds: Bounds, newer_start: int | None
) -> Iterator[RangePiece]:
    """Cut ``r`` from left to right: below the beginning, readable, open, truncated, read again
    later.
    """
    stop = r.end if newer_start is None else min(r.end, max(r.start, newer_start))
    cuts = (
        (r.start, min(stop, bounds.beginning), _EXPIRED),
        (max(r.start, bounds.beginning), min(stop, bounds.end), None),
        (max(r.start, bounds.end), min(stop, bounds.written), _OPEN),
        (max(r.start, bounds.written), stop, _TRUNCATED),
        (stop, r.end, _REWRITTEN),
    )
    for start, end, cause in cuts:
        if start < end:
            yield RangePiece(checkpoint, OffsetRange(r.topic, r.partition, start, end), cause)


@dataclass
class Coverage:
    """Kafka's coverage of the checkpoints: offsets ``readable`` and ``gone`` of each, the causes,
    and the ``spans`` to read, one per Kafka partition.
    """

    readable: Counter[int] = field(default_factory=Counter)
    gone: Counter[int] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    topics: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    _bounds: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def counted(self, pieces: Iterable[RangePiece]) -> Iterator[RangePiece]:
        """Count ``pieces`` while yielding them."""
        for piece in pieces:
            self._count(piece)
            yield piece

    def _count(self, piece: RangePiece) -> None:
        r = piece.range
        self.topics[piece.checkpoint].add(r.topic)
        if piece.cause is not None:
            self.gone[piece.checkpoint] += r.span
            self.causes[piece.cause] += r.span
            return
        self.readable[piece.checkpoint] += r.span
        start, end = self._bounds.get(r.topic_partition, (r.start, r.end))
        self._bounds[r.topic_partition] = min(start, r.start), max(end, r.end)

    @property
    def spans(self) -> tuple[OffsetRange, ...]:
        return tuple(
            OffsetRange(tp.topic, tp.partition, *bounds)
            for tp, bounds in sorted(self._bounds.items())
        )


#: Ranges, repeated for each block of offsets they touch: a join on the block is an equality, and
#: matches few ranges, however many checkpoints a partition has.
RANGES = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("block", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("checkpoint", pa.int64()),
        ("region", pa.int32()),
    ]
)

_ROWS_A_GROUP = 100_000


def block_size(checkpoints: Iterable[Checkpoint]) -> int:
    """Return the mean span of a range, so that there are at most three times as many blocks as
    ranges.
    """
    spans = [r.span for checkpoint in checkpoints for r in checkpoint.entry.ranges]
    return max(1, sum(spans) // max(1, len(spans)))


def write_ranges(pieces: Iterable[RangePiece], path: Path, block: int, compacted: set[str]) -> None:
    """Write ``pieces`` as Parquet, with a bounded number of rows in memory."""
    rows = (row for piece in pieces for row in _blocks(piece, block, compacted))
    with pq.ParquetWriter(path, RANGES) as writer:
        while page := list(islice(rows, _ROWS_A_GROUP)):
            values = zip(*page, strict=True)
            arrays = [pa.array(v, f.type) for v, f in zip(values, RANGES, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=RANGES))


def _blocks(piece: RangePiece, block: int, compacted: set[str]) -> Iterator[tuple[Any, ...]]:
    r, region = piece.range, Region.READABLE
    if piece.cause is not None:
        region = Region.GONE
    elif r.topic in compacted:
        region = Region.COMPACTED
    for number in range(r.start // block, (r.end - 1) // block + 1):
        yield r.topic, r.partition, number, r.start, r.end, piece.checkpoint, region

"""Offsets and ranges of Kafka partitions: pure values, no I/O.

An *offset* is always the next one to read, and a range is half-open, as in Spark's Kafka
connector (``OffsetRange(fromOffset, untilOffset)``): no ``+ 1`` anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import PlainSerializer, PlainValidator


class TopicPartition(NamedTuple):
    """One Kafka partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


#: Next offset to read, per Kafka partition.
Offsets = Mapping[TopicPartition, int]

#: ``{"topic": {"0": offset}}``: how offsets are stored, and what Spark's connector takes.
OffsetsJson = dict[str, dict[str, int]]


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The half-open span ``[start, end)`` of one Kafka partition.

    ``span`` is an upper bound on the records in it, never their count: transaction markers,
    aborted records and compaction leave holes (KIP-98; Spark's ``KafkaOffsetRange.size`` says
    the same of itself).
    """

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(
                f"{self.topic}[{self.partition}]: [{self.start}, {self.end}) is not a range"
            )

    @property
    def span(self) -> int:
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] [{self.start}, {self.end})"


def offsets_to_json(offsets: Offsets) -> OffsetsJson:
    """``{TopicPartition("t", 0): 5}`` as ``{"t": {"0": 5}}``, sorted by topic and partition."""
    nested: OffsetsJson = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def offsets_from_json(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The inverse of :func:`offsets_to_json`."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }


RangesJson = dict[str, dict[str, list[int]]]


def ranges_to_json(ranges: Iterable[OffsetRange]) -> RangesJson:
    """``{"t": {"0": [start, end]}}``, sorted by topic and partition."""
    nested: RangesJson = {}
    for r in sorted(ranges):
        nested.setdefault(r.topic, {})[str(r.partition)] = [r.start, r.end]
    return nested


def ranges_from_json(nested: Mapping[str, Mapping[str, list[int]]]) -> tuple[OffsetRange, ...]:
    """The inverse of :func:`ranges_to_json`."""
    return tuple(
        sorted(
            OffsetRange(topic, int(partition), int(start), int(end))
            for topic, partitions in nested.items()
            for partition, (start, end) in partitions.items()
        )
    )


#: How a stored value holds them.
StoredOffsets = Annotated[
    Offsets, PlainValidator(offsets_from_json), PlainSerializer(offsets_to_json)
]
StoredRanges = Annotated[
    tuple[OffsetRange, ...], PlainValidator(ranges_from_json), PlainSerializer(ranges_to_json)
]

"""Source partitions dealt out round-robin from an index that depends on the topic's name.

The rule of Flink's KafkaTopicPartitionAssigner: the partitions of one topic are spread evenly, and
those of several topics do not all begin at the same place.
"""

from __future__ import annotations

_INT_BITS = 32
_INT_MAX = 0x7FFFFFFF


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java: over UTF-16 code units, wrapped to 32 bits, signed."""
    units = text.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2])) % (1 << _INT_BITS)
    return value - (1 << _INT_BITS) if value > _INT_MAX else value


def start_index(topic: str, count: int) -> int:
    """Which of ``count`` shards or partitions gets partition 0 of ``topic``."""
    return ((java_hash(topic) * 31) & _INT_MAX) % count


def assign(topic: str, partition: int, count: int) -> int:
    """Which of ``count`` shards or partitions, numbered from 0, a source partition goes to.

    Raises:
        ValueError: there is none to go to.
    """
    if count < 1:
        raise ValueError(f"{topic}[{partition}] cannot be assigned to one of {count}")
    return (start_index(topic, count) + partition) % count

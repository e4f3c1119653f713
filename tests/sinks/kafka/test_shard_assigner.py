"""The classic assigner: even, stable, and started where Java would start it."""

from __future__ import annotations

from collections import Counter

import pytest

from eo_pipeline.sinks.kafka.producer import assign, java_hash, start_index


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("test-topic", 639758388),
        ("polygenelubricants", -(2**31)),
        ("naïve 🛩", 1285307713),  # a character outside the BMP counts as the two Java makes of it
    ],
)
def test_the_hash_is_that_of_a_java_string(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@pytest.mark.parametrize("shards", [5, 6])
def test_eleven_partitions_are_spread_evenly_and_in_turn(shards: int) -> None:
    start = start_index("test-topic", shards)
    shard_of = [assign("test-topic", partition, shards) for partition in range(11)]
    assert shard_of == [(start + partition) % shards for partition in range(11)]
    counts = Counter(shard_of)
    assert sum(counts.values()) == 11
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(counts) == shards


def test_eleven_partitions_on_five_shards_and_then_on_six() -> None:
    """Scenario: rescaling. Outcome: every partition has one shard under both, by the same rule."""
    # (hash * 31) & 0x7FFFFFFF of "test-topic" is 505157196: 1 of five, 0 of six
    assert (start_index("test-topic", 5), start_index("test-topic", 6)) == (1, 0)
    on_five: dict[int, list[int]] = {shard: [] for shard in range(5)}
    on_six: dict[int, list[int]] = {shard: [] for shard in range(6)}
    for partition in range(11):
        on_five[assign("test-topic", partition, 5)].append(partition)
        on_six[assign("test-topic", partition, 6)].append(partition)
    assert on_five == {1: [0, 5, 10], 2: [1, 6], 3: [2, 7], 4: [3, 8], 0: [4, 9]}
    assert on_six == {0: [0, 6], 1: [1, 7], 2: [2, 8], 3: [3, 9], 4: [4, 10], 5: [5]}


def test_a_negative_hash_starts_at_no_negative_shard() -> None:
    assert all(start_index(f"topic-{n}", 7) in range(7) for n in range(200))
    assert start_index("polygenelubricants", 6) in range(6)


def test_topics_do_not_all_start_at_one_shard() -> None:
    assert len({start_index(f"topic-{n}", 6) for n in range(50)}) == 6


def test_no_shard_is_an_error() -> None:
    with pytest.raises(ValueError, match="one of 0"):
        assign("t", 0, 0)

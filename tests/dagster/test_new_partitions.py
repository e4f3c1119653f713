"""What the partition sensor remembers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eo_pipeline.dagster.topics import KnownPartitions
from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.ledger.offsets import TopicPartition

partitions = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d-e"]), st.integers(0, 40))
)


def cluster(**topics: int) -> Cluster:
    """Topics with so many partitions each; the UUID is the name."""
    found = [TopicPartition(topic, n) for topic, count in topics.items() for n in range(count)]
    return Cluster({tp: Bounds(0, 10) for tp in found}, {topic: f"id-{topic}" for topic in topics})


@given(partitions)
def test_a_cursor_brings_back_exactly_what_was_known(known: frozenset[TopicPartition]) -> None:
    before = KnownPartitions({tp.topic: f"id-{tp.topic}" for tp in known}, known)
    assert KnownPartitions.from_cursor(before.to_cursor()) == before


def test_the_cursor_of_ten_thousand_partitions_stays_small() -> None:
    known = KnownPartitions.of_cluster(cluster(big=10_000))
    assert len(known.to_cursor()) < 100


def test_added_partitions_are_fresh_once() -> None:
    known = KnownPartitions.of_cluster(cluster(orders=2))
    grown = cluster(orders=4)
    assert known.new_in(grown) == [TopicPartition("orders", 2), TopicPartition("orders", 3)]
    assert known.including(grown).new_in(grown) == []


def test_a_topic_created_again_is_new_although_its_name_is_not() -> None:
    known = KnownPartitions.of_cluster(cluster(orders=2))
    again = Cluster(cluster(orders=2).bounds, {"orders": "another"})
    assert len(known.new_in(again)) == 2
    assert known.including(again).new_in(again) == []


def test_a_topic_that_is_briefly_not_seen_is_not_announced_when_it_comes_back() -> None:
    both = cluster(orders=2, returns=1)
    known = KnownPartitions.of_cluster(both).including(cluster(orders=2))
    assert known.new_in(both) == []


def test_a_cursor_of_another_format_counts_as_none() -> None:
    assert KnownPartitions.from_cursor(None) is None
    assert KnownPartitions.from_cursor('{"v": 7}') is None

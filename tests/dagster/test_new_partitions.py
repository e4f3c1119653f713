"""What the partition sensor remembers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eo_pipeline.dagster.new_partitions import Known
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.source.discovery import Bounds, Cluster

partitions = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d-e"]), st.integers(0, 40))
)


def cluster(**topics: int) -> Cluster:
    """Topics with so many partitions each; the UUID is the name."""
    found = [TopicPartition(topic, n) for topic, count in topics.items() for n in range(count)]
    return Cluster({tp: Bounds(0, 10) for tp in found}, {topic: f"id-{topic}" for topic in topics})


@given(partitions)
def test_a_cursor_brings_back_exactly_what_was_known(known: frozenset[TopicPartition]) -> None:
    before = Known({tp.topic: f"id-{tp.topic}" for tp in known}, known)
    assert Known.from_cursor(before.to_cursor()) == before


def test_the_cursor_of_ten_thousand_partitions_stays_small() -> None:
    known = Known.of_cluster(cluster(big=10_000))
    assert len(known.to_cursor()) < 100


def test_added_partitions_are_fresh_once() -> None:
    known = Known.of_cluster(cluster(orders=2))
    grown = cluster(orders=4)
    assert known.fresh(grown) == [TopicPartition("orders", 2), TopicPartition("orders", 3)]
    assert known.with_(grown).fresh(grown) == []


def test_a_topic_created_again_is_new_although_its_name_is_not() -> None:
    known = Known.of_cluster(cluster(orders=2))
    again = Cluster(cluster(orders=2).bounds, {"orders": "another"})
    assert len(known.fresh(again)) == 2
    assert known.with_(again).fresh(again) == []


def test_a_topic_that_is_briefly_not_seen_is_not_announced_when_it_comes_back() -> None:
    both = cluster(orders=2, returns=1)
    known = Known.of_cluster(both).with_(cluster(orders=2))
    assert known.fresh(both) == []


def test_a_cursor_of_another_format_counts_as_none() -> None:
    assert Known.from_cursor(None) is None
    assert Known.from_cursor('{"v": 7}') is None

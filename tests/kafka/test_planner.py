"""The planner, by properties: whatever the cluster looks like, these sentences hold."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.kafka.planner import ASSUMED_RECORD_BYTES, BatchLimits, fair_shares, lag, plan
from eo_pipeline.ledger.offsets import TopicPartition

partitions = st.builds(
    TopicPartition, st.sampled_from(["a", "b"]), st.integers(min_value=0, max_value=5)
)
bounds = st.tuples(
    st.integers(min_value=0, max_value=1000), st.integers(min_value=0, max_value=500)
).map(lambda pair: Bounds(pair[0], pair[0] + pair[1]))
clusters = st.dictionaries(partitions, bounds, max_size=12).map(lambda b: Cluster(b, {}))
limits = st.one_of(st.none(), st.integers(min_value=1, max_value=400))


def known_offsets(
    cluster: Cluster, fractions: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """Offsets inside the bounds, for the partitions that ``fractions`` names."""
    return {
        tp: b.beginning + int((b.end - b.beginning) * fractions[tp])
        for tp, b in cluster.bounds.items()
        if tp in fractions
    }


fractions = st.dictionaries(partitions, st.floats(min_value=0, max_value=1), max_size=12)


@given(clusters, fractions, limits, st.integers(min_value=0, max_value=50))
def test_ranges_begin_at_the_ledgers_offset_and_never_pass_the_end(
    cluster: Cluster, fractions: dict[TopicPartition, float], limit: int | None, turn: int
) -> None:
    offsets = known_offsets(cluster, fractions)
    batch = plan(offsets, cluster, limit=limit, turn=turn)
    for r in batch.ranges:
        held = cluster.bounds[r.topic_partition]
        assert r.start == offsets[r.topic_partition]
        assert r.start < r.end <= held.end
        assert batch.after(offsets)[r.topic_partition] == r.end
    assert limit is None or batch.span <= limit


@given(st.integers(min_value=1, max_value=6), st.integers(min_value=0, max_value=50))
def test_partitions_that_are_read_to_their_end_take_no_turn(done: int, turn: int) -> None:
    read = {TopicPartition("a", n): Bounds(0, 5) for n in range(done)}
    waiting = TopicPartition("b", 0)
    offsets = {**dict.fromkeys(read, 5), waiting: 0}
    batch = plan(offsets, Cluster({**read, waiting: Bounds(0, 5)}, {}), limit=1, turn=turn)
    assert [(r.topic_partition, r.start, r.end) for r in batch.ranges] == [(waiting, 0, 1)]


@given(clusters, limits)
def test_checkpoints_follow_each_other_without_gap_or_overlap_until_everything_is_read(
    cluster: Cluster, limit: int | None
) -> None:
    offsets: Mapping[TopicPartition, int] = cluster.beginnings()
    read: dict[TopicPartition, list[int]] = {tp: [] for tp in cluster.bounds}
    turn = 0
    while not (batch := plan(offsets, cluster, limit=limit, turn=turn)).is_empty:
        for r in batch.ranges:
            read[r.topic_partition] += range(r.start, r.end)
        offsets, turn = batch.after(offsets), turn + 1
    assert read == {tp: list(range(b.beginning, b.end)) for tp, b in cluster.bounds.items()}
    assert lag(offsets, cluster) == 0


@given(clusters, fractions)
def test_a_run_stops_at_the_ends_it_saw_first_also_when_the_topic_grows(
    cluster: Cluster, fractions: dict[TopicPartition, float]
) -> None:
    offsets = known_offsets(cluster, fractions)
    grown = Cluster({tp: Bounds(b.beginning, b.end + 7) for tp, b in cluster.bounds.items()}, {})
    late = TopicPartition("late", 0)
    grown = Cluster({**grown.bounds, late: Bounds(0, 9)}, {})
    batch = plan(offsets, grown, ends=cluster.ends())
    assert batch == plan(offsets, cluster)


@given(st.lists(st.integers(min_value=1, max_value=10_000), min_size=1, max_size=60), limits)
def test_shares_use_the_whole_limit_and_differ_by_at_most_one_among_the_unsatisfied(
    wanted: list[int], limit: int | None
) -> None:
    shares = fair_shares(wanted, limit)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(sum(wanted), limit or sum(wanted))
    unsatisfied = [s for s, w in zip(shares, wanted, strict=True) if s < w]
    if unsatisfied:
        assert max(unsatisfied) - min(unsatisfied) <= 1
        assert max(shares) <= max(unsatisfied) + 1


@given(
    st.integers(min_value=1, max_value=50),
    st.integers(min_value=1, max_value=49),
    st.integers(0, 9),
)
def test_with_fewer_offsets_than_partitions_everybody_is_served_in_turn(
    count: int, limit: int, first: int
) -> None:
    turns = -(-count // limit)
    served = [fair_shares([10**6] * count, limit, first + i) for i in range(turns)]
    assert all(sum(column) >= 1 for column in zip(*served, strict=True))


def test_a_small_partition_is_read_at_once_beside_a_huge_one() -> None:
    assert fair_shares([1_000_000, 3, 10], 100) == [87, 3, 10]


def test_a_partition_without_a_position_is_not_read() -> None:
    known, aside = TopicPartition("t", 0), TopicPartition("t", 1)
    cluster = Cluster({known: Bounds(0, 50), aside: Bounds(20, 30)}, {})
    batch = plan({known: 40}, cluster)
    assert [(r.partition, r.start, r.end) for r in batch.ranges] == [(0, 40, 50)]
    assert lag({known: 40}, cluster) == 10


def test_a_partition_joins_the_offsets_with_its_first_range() -> None:
    known, fresh, empty = (TopicPartition("t", p) for p in range(3))
    cluster = Cluster({known: Bounds(0, 50), fresh: Bounds(0, 30), empty: Bounds(0, 0)}, {})
    batch = plan({known: 50, fresh: 0, empty: 0}, cluster)
    assert batch.after({known: 50}) == {known: 50, fresh: 30}


def test_offsets_of_topics_no_longer_subscribed_are_carried_along() -> None:
    kept = TopicPartition("old", 3)
    now = TopicPartition("t", 0)
    batch = plan({kept: 12, now: 0}, Cluster({now: Bounds(0, 5)}, {}))
    assert batch.after({kept: 12, now: 0}) == {kept: 12, now: 5}
    assert [r.topic for r in batch.ranges] == ["t"]


def test_a_byte_limit_becomes_records_by_the_measured_size() -> None:
    assert BatchLimits(bytes=100_000).span(record_bytes=200.0) == 500
    assert BatchLimits(bytes=100_000).span(None) == 100_000 // ASSUMED_RECORD_BYTES
    assert BatchLimits(records=10, bytes=100_000).span(200.0) == 10
    assert BatchLimits(bytes=1).span(200.0) == 1
    assert BatchLimits().span(200.0) is None


def test_ten_thousand_partitions_are_planned_in_well_under_a_second() -> None:
    cluster = Cluster(
        {TopicPartition("t", p): Bounds(0, 1 + p % 977) for p in range(10_000)}, {"t": "id"}
    )
    started = time.process_time()
    batch = plan(cluster.beginnings(), cluster, limit=1_000_000, turn=7)
    # of this process's own: what others do meanwhile does not count
    assert time.process_time() - started < 1.0
    assert batch.span == 1_000_000

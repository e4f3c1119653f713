"""What changed in Kafka since the ledger's head, what is lost by it, and where reading goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from eo_pipeline.errors import RangesGoneError
from eo_pipeline.kafka.losses import describe_loss, losses_of, lost_ranges, move_past_losses
from eo_pipeline.kafka.partitions import (
    Bounds,
    Cluster,
    discover,
    known_topics,
    missing_topics,
    positions_of,
)
from eo_pipeline.kafka.planner import Batch
from eo_pipeline.kafka.source import KafkaSource, LossKind
from eo_pipeline.ledger.entry import EntryId, Identity, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, Offsets, TopicPartition
from eo_pipeline.operations.change_plan import Rereading, ranges_since
from eo_pipeline.runs.runner import entry_of_batch, entry_past_losses, still_lost

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
IDS = {"t": "uuid-1"}
SUBSCRIBED = frozenset({"t"})
SOURCE = KafkaSource(bootstrap_servers="nowhere:1", topics=("t",), value_format="raw")


def cluster(uuid: str = "uuid-1", **bounds: tuple[int, ...]) -> Cluster:
    """``p0=(0, 10)`` is partition 0 of topic t with offsets [0, 10); a third number is the high
    watermark.
    """
    return Cluster(
        {TopicPartition("t", int(p[1:])): Bounds(*b) for p, b in bounds.items()},
        {"t": uuid} if bounds else {},
    )


def head_at(offsets: Offsets, topic_ids: Mapping[str, str] = IDS, **past: Offsets) -> LedgerEntry:
    """A head at ``offsets``; ``uuid_2={T0: 5}`` is a topic put aside."""
    return LedgerEntry(
        pipeline="p",
        ledger_id="l",
        version=1,
        transaction_id="x1",
        parent=EntryId(0, "x0"),
        operation=Operation.FORWARD,
        offsets=offsets,
        topic_ids=topic_ids,
        identity=Identity(past_topics={k.replace("_", "-"): v for k, v in past.items()}),
    )


def kinds(head: LedgerEntry, now: Cluster) -> dict[TopicPartition, LossKind]:
    """What is lost, and why."""
    return {tp: kind for tp, (kind, _) in losses_of(head, now, SOURCE).items()}


def accepted(head: LedgerEntry, now: Cluster) -> LedgerEntry:
    """The entry past everything that is lost."""
    return entry_past_losses(head, losses_of(head, now, SOURCE), now, "run", {})


def test_nothing_changed_is_no_news() -> None:
    found = discover({T0: 5}, {}, cluster(p0=(0, 10)), SUBSCRIBED)
    assert (found.fresh, found.returned, found.waiting, found.unsubscribed) == ((), (), (), ())
    assert not kinds(head_at({T0: 5}), cluster(p0=(0, 10)))


def test_a_partition_added_to_a_known_topic_is_read_from_its_first_record() -> None:
    now = cluster(p0=(0, 10), p1=(0, 3))
    found = discover({T0: 5}, {}, now, SUBSCRIBED)
    assert found.fresh == (T1,)
    assert found.positions == {T0: 5, T1: 0}
    assert not kinds(head_at({T0: 5}), now)


def test_what_retention_took_of_a_partition_before_it_was_seen_is_lost() -> None:
    now = cluster(p0=(0, 10), p1=(3, 8))
    head = head_at({T0: 5})
    assert kinds(head, now) == {T1: LossKind.RETENTION}
    assert accepted(head, now).offsets == {T0: 5, T1: 3}


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (cluster(p0=(6, 10)), LossKind.RETENTION),
        (cluster(p0=(0, 4)), LossKind.TRUNCATED),
        (cluster(uuid="uuid-2", p0=(0, 10)), LossKind.RECREATED),
        (cluster(), LossKind.VANISHED),
    ],
)
def test_each_way_to_lose_records_is_told_apart(now: Cluster, kind: LossKind) -> None:
    assert kinds(head_at({T0: 5}), now) == {T0: kind}


def test_reading_exactly_up_to_the_beginning_or_end_is_no_loss() -> None:
    assert not kinds(head_at({T0: 5}), cluster(p0=(5, 5)))


def test_offsets_of_an_open_transaction_are_waited_for_and_no_loss() -> None:
    assert not kinds(head_at({T0: 5}), cluster(p0=(0, 3, 5)))
    assert kinds(head_at({T0: 5}), cluster(p0=(0, 3, 4))) == {T0: LossKind.TRUNCATED}


def test_a_topic_without_known_uuid_is_not_called_recreated() -> None:
    assert not kinds(head_at({T0: 5}, {}), cluster(p0=(0, 10)))


def test_an_unsubscribed_topic_is_reported_and_never_a_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = TopicPartition("other", 0)
    assert not kinds(head_at({T0: 5, other: 7}), cluster(p0=(0, 10)))
    assert "no longer subscribed, offsets kept: ['other']" in caplog.text
    caplog.clear()
    assert not kinds(head_at({T0: 5}), cluster(p0=(0, 10)))
    assert "no longer subscribed" not in caplog.text


@pytest.mark.parametrize(
    ("now", "offsets", "past"),
    [
        (cluster(p0=(6, 10)), {T0: 6}, {}),
        (cluster(p0=(0, 4)), {}, {"uuid-1": {T0: 5}}),
        (cluster(uuid="uuid-2", p0=(0, 10)), {T0: 0}, {"uuid-1": {T0: 5}}),
        (cluster(uuid="uuid-2", p0=(2, 10)), {T0: 2}, {"uuid-1": {T0: 5}}),
        (cluster(), {}, {"uuid-1": {T0: 5}}),
    ],
)
def test_an_accepted_loss_goes_on_where_records_are_and_no_position_is_forgotten(
    now: Cluster, offsets: Offsets, past: Mapping[str, Offsets]
) -> None:
    entry = accepted(head_at({T0: 5}), now)
    assert entry.offsets == offsets
    assert entry.identity.past_topics == past


@pytest.mark.parametrize(
    ("now", "position"),
    [
        (cluster(p0=(0, 10)), 5),  # it is back
        (cluster(p0=(0, 3, 9)), 5),  # ... with a transaction open below its position
        (cluster(p0=(0, 4)), None),  # not so far yet
        (cluster(uuid="uuid-2", p0=(0, 10)), 0),  # another topic under its name
    ],
)
def test_a_topic_that_comes_back_is_read_on_from_its_position(
    now: Cluster, position: int | None
) -> None:
    head = accepted(head_at({T0: 5}), cluster())
    assert positions_of(head, now).get(T0) == position
    assert not kinds(head, now)


def test_a_topic_that_comes_back_shorter_than_it_was_lost_more() -> None:
    head = accepted(head_at({T0: 5}), cluster())
    now = cluster(p0=(8, 10))
    assert kinds(head, now) == {T0: LossKind.RETENTION}
    after = accepted(head, now)
    assert (after.offsets, after.identity.past_topics) == ({T0: 8}, {})


def test_a_topic_whose_uuid_goes_back_is_never_followed_by_a_policy() -> None:
    replaced = accepted(head_at({T0: 5}), cluster(uuid="uuid-2", p0=(0, 10)))
    assert kinds(replaced, cluster(p0=(0, 10))) == {T0: LossKind.WENT_BACK}
    lenient = SOURCE.model_copy(update={"on_recreated": "continue", "on_vanished": "continue"})
    assert lenient.policy(LossKind.WENT_BACK) == "fail"
    back = accepted(replaced, cluster(p0=(0, 10)))
    assert back.offsets == {T0: 5}
    assert back.topic_ids == IDS
    assert back.identity.past_topics == {"uuid-2": {T0: 0}}


def test_a_recreated_topic_is_accepted_with_the_partitions_it_did_not_have() -> None:
    now = cluster(uuid="uuid-2", p0=(0, 10), p1=(4, 9))
    head = head_at({T0: 5})
    assert kinds(head, now) == {T0: LossKind.RECREATED, T1: LossKind.RECREATED}
    assert accepted(head, now).offsets == {T0: 0, T1: 4}


def test_an_accepted_loss_of_one_topic_leaves_the_others_as_they_were() -> None:
    other = TopicPartition("u", 0)
    head = head_at({T0: 5, other: 7}, {**IDS, "u": "uuid-u"})
    gone = Cluster({other: Bounds(0, 9)}, {"u": "uuid-u"})
    moved = move_past_losses(head, {T0: LossKind.VANISHED}, gone)
    assert moved.offsets == {other: 7}
    assert moved.topic_ids == {**IDS, "u": "uuid-u"}


def test_a_position_of_a_topic_without_uuid_is_kept_too() -> None:
    head = accepted(head_at({T0: 5}, {}), cluster())
    assert positions_of(head, cluster(p0=(0, 10))) == {T0: 5}


def test_a_range_that_ends_past_the_log_cannot_be_read_whole() -> None:
    ranges = [OffsetRange("t", 0, 3, 8)]
    assert not lost_ranges(ranges, IDS, cluster(p0=(0, 8)))
    (lost,) = lost_ranges(ranges, IDS, cluster(p0=(0, 7)))
    assert "truncated" in lost.cause


class Kept:
    """The settings of topics that a rewind asks for: retention will spare ``floor``."""

    logs = None  # nobody asks: there are no marks

    def __init__(self, floor: int | None = None, *, compacts: bool = False) -> None:
        self._floors = {} if floor is None else {T0: floor}
        self._compacts = compacts

    def offsets_kept_for(self, _: Iterable[TopicPartition], __: timedelta) -> Offsets:
        return self._floors

    def compacted(self, topics: Iterable[str]) -> set[str]:
        return set(topics) if self._compacts else set()


def reread(kept: Kept, start: int, end: int, topic: str = "t") -> tuple[str, ...]:
    """What a rewind is told that would read [start, end) of a log [0, 10) again."""
    look = Rereading("p", SOURCE, cast(Any, kept), cluster(p0=(0, 10)))
    return look.check("the rewind", [OffsetRange(topic, 0, start, end)], IDS, accept_compacted=True)


def test_what_would_be_read_again_must_be_subscribed() -> None:
    assert reread(Kept(), 3, 8) == ()
    with pytest.raises(RangesGoneError, match="no longer reads this topic"):
        reread(Kept(), 3, 8, "other")


def test_what_would_be_read_again_must_outlive_the_reading() -> None:
    assert reread(Kept(floor=3), 3, 8) == ()
    assert reread(Kept(floor=9), 3, 3) == ()  # nothing to read
    with pytest.raises(RangesGoneError, match="may delete offsets below 4"):
        reread(Kept(floor=4), 3, 8)


def test_a_compacted_topic_is_named_only_if_something_of_it_would_be_read() -> None:
    assert reread(Kept(compacts=True), 3, 3) == ()
    assert "compaction may have taken records" in reread(Kept(compacts=True), 3, 8)[0]


def test_a_rewind_past_a_topic_that_was_replaced_names_it_however_far_either_was_read() -> None:
    target = head_at({T0: 5})
    replaced = accepted(target, cluster(uuid="uuid-2", p0=(0, 2)))
    later = entry_of_batch(
        replaced, Batch((OffsetRange("t", 0, 0, 2),)), cluster(uuid="uuid-2", p0=(0, 2)), "run"
    )
    (asked,) = ranges_since(target, later, [replaced, later])
    assert asked == OffsetRange("t", 0, 5, 5)


def test_only_a_topic_that_the_ledger_never_met_is_missing() -> None:
    head = accepted(head_at({T0: 5}), cluster())
    assert missing_topics(["t", "u"], cluster()) == ["t", "u"]
    assert missing_topics(["t", "u"], cluster(), known_topics(head)) == ["u"]


def test_a_loss_names_topic_partition_and_both_bounds() -> None:
    text = str(describe_loss(T0, LossKind.RETENTION, 5, cluster(p0=(6, 10))))
    assert "t[0]" in text
    assert "next offset in the ledger 5" in text
    assert "[6, 10)" in text
    gone = str(describe_loss(T0, LossKind.VANISHED, 5, cluster()))
    assert "no longer exists" in gone


def test_only_what_somebody_looked_at_is_accepted_and_only_for_the_reason_he_saw() -> None:
    head = head_at({T0: 5, T1: 5})
    looked_at = losses_of(head, cluster(p0=(6, 10), p1=(7, 10)), SOURCE)
    later = losses_of(head, cluster(p0=(8, 10), p1=(0, 4)), SOURCE)
    accepted = still_lost(looked_at, later)
    assert {tp: kind for tp, (kind, _) in accepted.items()} == {T0: LossKind.RETENTION}
    assert accepted[T0][1].beginning == 8, "a hole may have grown"
    only_one = {T0: looked_at[T0]}
    assert still_lost(only_one, looked_at).keys() == {T0}

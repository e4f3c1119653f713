"""What changed in Kafka since the ledger's head, what is lost by it, and where reading goes on."""

from __future__ import annotations

import pytest

from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.source.config import LossKind
from eo_pipeline.source.discovery import Bounds, Cluster, discover
from eo_pipeline.source.losses import describe_loss, kinds_of_loss, offsets_past_losses

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
IDS = {"t": "uuid-1"}
SUBSCRIBED = frozenset({"t"})


def cluster(uuid: str = "uuid-1", **bounds: tuple[int, int]) -> Cluster:
    """``p0=(0, 10)`` is partition 0 of topic t with offsets [0, 10)."""
    return Cluster(
        {TopicPartition("t", int(p[1:])): Bounds(*b) for p, b in bounds.items()},
        {"t": uuid} if bounds else {},
    )


def test_nothing_changed_is_no_news() -> None:
    found = discover({T0: 5}, cluster(p0=(0, 10)), SUBSCRIBED)
    assert (found.fresh, found.unsubscribed) == ((), ())
    assert not kinds_of_loss({T0: 5}, IDS, cluster(p0=(0, 10)), SUBSCRIBED)


def test_a_partition_added_to_a_known_topic_is_fresh_and_disturbs_nobody() -> None:
    now = cluster(p0=(0, 10), p1=(0, 3))
    assert discover({T0: 5}, now, SUBSCRIBED).fresh == (T1,)
    assert not kinds_of_loss({T0: 5}, IDS, now, SUBSCRIBED)


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
    assert kinds_of_loss({T0: 5}, IDS, now, SUBSCRIBED) == {T0: kind}


def test_reading_exactly_up_to_the_beginning_or_end_is_no_loss() -> None:
    assert not kinds_of_loss({T0: 5}, IDS, cluster(p0=(5, 5)), SUBSCRIBED)


def test_a_topic_without_known_uuid_is_not_called_recreated() -> None:
    assert not kinds_of_loss({T0: 5}, {}, cluster(p0=(0, 10)), SUBSCRIBED)


def test_an_unsubscribed_topic_is_reported_and_never_a_loss() -> None:
    assert discover({T0: 5}, cluster(), frozenset()).unsubscribed == (T0,)
    assert not kinds_of_loss({T0: 5}, IDS, cluster(), frozenset())


@pytest.mark.parametrize(
    ("now", "kind", "expected"),
    [
        (cluster(p0=(6, 10)), LossKind.RETENTION, {T0: 6}),
        (cluster(p0=(0, 4)), LossKind.TRUNCATED, {T0: 4}),
        (cluster(uuid="uuid-2", p0=(0, 10)), LossKind.RECREATED, {T0: 0}),
        (cluster(), LossKind.VANISHED, {}),
    ],
)
def test_an_accepted_loss_goes_on_where_records_are(
    now: Cluster, kind: LossKind, expected: dict[TopicPartition, int]
) -> None:
    assert offsets_past_losses({T0: 5}, {T0: kind}, now) == expected


def test_a_loss_names_topic_partition_and_both_bounds() -> None:
    text = str(describe_loss(T0, LossKind.RETENTION, 5, cluster(p0=(6, 10))))
    assert "t[0]" in text
    assert "next offset in the ledger 5" in text
    assert "[6, 10)" in text
    gone = str(describe_loss(T0, LossKind.VANISHED, 5, cluster()))
    assert "no longer exists" in gone

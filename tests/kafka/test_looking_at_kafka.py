"""How far a partition may be read, and where reading starts, by a look at Kafka. No Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import ConfigError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.partitions import Bounds
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.offsets import TopicPartition
from tests.support.engine import Topic
from tests.support.servers import MakeTopic
from tests.support.topics import delete_records, stand_at


def looks(topic: Topic, **source: Any) -> KafkaAdmin:
    return KafkaAdmin(KafkaSource.model_validate(topic.source(**source)))


@pytest.fixture
def written(kafka: EmbeddedKafka, make_topic: MakeTopic, admin: AdminClient) -> Topic:
    """Two partitions: [3, 10) and [0, 4); a record a second from a moment on."""
    topic = Topic(make_topic(partitions=2), kafka.bootstrap_servers)
    producer = topic.producer()
    for partition, count in ((0, 10), (1, 4)):
        for n in range(count):
            moment = int(SINCE.timestamp() * 1000) + n * 1000
            producer.produce(topic.name, b"{}", partition=partition, timestamp=moment)
    assert producer.flush(120) == 0
    delete_records(admin, topic.name, 0, before=3)
    return topic


SINCE = datetime.fromtimestamp(int(time.time()) - 100, UTC)


def test_a_partition_is_read_to_its_last_stable_offset_unless_uncommitted_records_are_asked_for(
    written: Topic,
) -> None:
    producer = written.producer(**{"transactional.id": f"tx-{written.name}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(written.name, b"{}", partition=1)
    producer.flush()
    one, two = (TopicPartition(written.name, n) for n in (0, 1))
    try:
        committed = looks(written).cluster().bounds
        assert committed == {one: Bounds(3, 10, 10, epoch=0), two: Bounds(0, 4, 5, epoch=0)}
        uncommitted = looks(written, isolation="read_uncommitted").cluster().bounds
        assert uncommitted[two] == Bounds(0, 5, 5, epoch=0)
    finally:
        producer.abort_transaction()


def test_a_topic_that_became_another_while_it_was_looked_at_is_looked_at_again(
    written: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets that were asked for in between may be those of the one that is gone."""
    real, described = KafkaAdmin._describe, list[str]()

    def another_at_first(admin: KafkaAdmin, topics: list[str]) -> Any:
        found = real(admin, topics)
        described.append("look")
        if len(described) == 1:
            return {name: topic._replace(uuid="gone") for name, topic in found.items()}
        return found

    monkeypatch.setattr(KafkaAdmin, "_describe", another_at_first)
    cluster = looks(written).cluster()
    assert "gone" not in cluster.topic_ids.values()
    assert len(described) == 4


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", (3, 0)),
        ("latest", (10, 4)),
        ({"offsets": {0: 5}, "or_else": "latest"}, (5, 4)),
        ({"offsets": {0: 5}, "or_else": "earliest"}, (5, 0)),
        ({"offsets": {0: 5}}, "has no explicit start offset"),
        ({"offsets": {0: 2}, "or_else": "latest"}, r"holds \[3, 10\), 2 lies outside"),
        ({"offsets": {0: 11}, "or_else": "latest"}, r"holds \[3, 10\), 11 lies outside"),
        ({"group": "GROUP", "or_else": "latest"}, (7, 4)),
        ({"group": "GROUP"}, "has no offset of group"),
        ({"timestamp": 0.5, "or_else": "latest"}, (3, 1)),
        ({"timestamp": 5.5, "or_else": "latest"}, (6, 4)),
        ({"timestamp": 5.5}, "has no record since"),
    ],
    ids=str,
)
def test_each_start_mode_is_an_offset_of_each_partition(
    written: Topic, start: Any, expected: tuple[int, int] | str
) -> None:
    asked = looks(written, start=named(start, written))
    cluster = asked.cluster()
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            asked.start_offsets(cluster)
        return
    found = asked.start_offsets(cluster)
    assert found == {TopicPartition(written.name, n): offset for n, offset in enumerate(expected)}


def named(start: Any, topic: Topic) -> Any:
    """``start`` with what is known of the topic only now: a group that stands at offset 7 of the
    first partition, and moments by seconds since the first record.
    """
    if not isinstance(start, Mapping):
        return start
    told = dict(start)
    if "offsets" in told:
        told["offsets"] = {topic.name: told["offsets"]}
    if "group" in told:
        told["group"] = f"group-{topic.name}"
        stand_at(topic, told["group"], 7)
    if "timestamp" in told:
        told["timestamp"] = SINCE + timedelta(seconds=told["timestamp"])
    return told

"""Records get to a real topic: each once, in the partition that was said, in their order."""

import json
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.suite.errors import MeasurementError
from benchmarks.suite.topic import Topic, create, dealt_out, delete, put
from eo_pipeline.embedded.kafka import EmbeddedKafka

PARTITIONS = 3


def _values(kafka: EmbeddedKafka, name: str, partition: int) -> list[bytes]:
    """What a partition holds, as any consumer finds it."""
    asks = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": name}
    consumer = Consumer({**asks, "enable.partition.eof": False})
    where = TopicPartition(name, partition, 0)
    _, end = consumer.get_watermark_offsets(where, timeout=60)
    consumer.assign([where])
    found = consumer.consume(end, timeout=60) if end else []
    consumer.close()
    return [value for each in found if (value := each.value()) is not None]


def test_a_topic_is_filled_in_turn_and_what_is_appended_goes_on_from_there(
    kafka: EmbeddedKafka,
) -> None:
    name = f"filled-{uuid.uuid4().hex[:8]}"
    topic = Topic(kafka.bootstrap_servers, name, 10, PARTITIONS).filled().appended(4)
    ids = [
        [json.loads(each)["id"] for each in _values(kafka, name, partition)]
        for partition in range(PARTITIONS)
    ]
    assert ids == [[*range(partition, 14, PARTITIONS)] for partition in range(PARTITIONS)]
    assert topic.filled() is topic, "a whole one is taken as it is"
    delete(kafka.bootstrap_servers, name)


def test_more_records_arrive_than_may_wait_at_once(kafka: EmbeddedKafka) -> None:
    name, records = f"put-{uuid.uuid4().hex[:8]}", 100_001
    create(kafka.bootstrap_servers, name, PARTITIONS)
    put(kafka.bootstrap_servers, name, dealt_out((b"%d" % n for n in range(records)), PARTITIONS))
    found = [_values(kafka, name, partition) for partition in range(PARTITIONS)]
    assert found == [[b"%d" % n for n in range(first, records, 3)] for first in range(PARTITIONS)]
    delete(kafka.bootstrap_servers, name)


def test_a_topic_has_more_partitions_than_kafka_makes_at_once(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.suite.topic._MADE_AT_ONCE", 3)
    for partitions in (7, 6, 3, 2):
        name = f"many-{uuid.uuid4().hex[:8]}"
        create(kafka.bootstrap_servers, name, partitions)
        asker = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": name})
        found = asker.list_topics(name, timeout=60).topics[name].partitions
        asker.close()
        assert sorted(found) == list(range(partitions))
        delete(kafka.bootstrap_servers, name)


def test_a_record_that_a_topic_does_not_take_is_told(kafka: EmbeddedKafka) -> None:
    name = f"bench-{uuid.uuid4().hex}"
    create(kafka.bootstrap_servers, name, 2)
    with pytest.raises(MeasurementError, match="took 1 records less"):
        put(kafka.bootstrap_servers, name, [(b"there", 1), (b"nowhere", 2)])
    delete(kafka.bootstrap_servers, name)

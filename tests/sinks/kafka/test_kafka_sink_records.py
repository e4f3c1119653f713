"""What becomes of a row: key, headers, timestamp, partition, source offsets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import (
    ConfigError,
    RefusedError,
    SchemaChangeError,
)
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.kafka.producer import RecordProducer, dead_letters
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, raise_at
from eo_pipeline.testing.faults import CrashRequested
from tests.sinks.kafka.kafka_sink_world import COMMITTED, World, admin, session, staged, world
from tests.sinks.kafka.kafka_world import headers
from tests.support.servers import MakeTopic

__all__ = ["admin", "session", "world"]


# What a record is made of.


def test_keys_headers_and_timestamps_come_from_columns(world: World) -> None:
    # not long ago: retention goes by the records' own timestamps
    moment = datetime.now(UTC).replace(microsecond=250_999)
    full = world.changed(key="tail", headers={"carrier": "carrier"}, timestamp="at")
    with full.open() as session:
        entry = child_of(full.begin(session), 2)
        columns = {"tail": ["N1", None], "carrier": ["UA", None], "at": [moment, moment]}
        assert session.publish(entry, staged(range(2), **columns)) is COMMITTED
    first, second = full.read()
    assert (first.key(), second.key()) == (b"N1", None)
    assert first.headers() == [("carrier", b"UA")]
    assert second.headers() == [("carrier", None)]
    assert first.timestamp()[1] == int(moment.timestamp() * 1000)
    assert first.value() == b'{"id":0,"_eo_checkpoint":1}'


@pytest.mark.parametrize("milliseconds", [0, -1, -86_400_000])
def test_a_timestamp_that_a_record_cannot_carry_is_refused_and_never_becomes_now(
    world: World, milliseconds: int
) -> None:
    """The client takes 0 for "now" and -1 for "none"."""
    timed = world.changed(timestamp="at")
    at = pa.array([1_000, None, milliseconds], pa.timestamp("ms", "UTC"))
    with timed.open() as session:
        head = timed.begin(session)
        with pytest.raises(RefusedError, match=r"sink.timestamp: .* 19(69|70)-"):
            session.publish(child_of(head, 3), staged(range(3), at=at))
        assert session.publish(child_of(head, 2), staged(range(2), at=at[:2])) is COMMITTED
    stamps = sorted(message.timestamp()[1] for message in timed.read())
    assert stamps[0] == 1_000
    # a row that has none is stamped with the time of publishing
    assert stamps[1] > 1_700_000_000_000


def test_a_dead_letter_says_exactly_when_its_record_was_written(world: World) -> None:
    moments = [datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 12, 0, 0, 7_000, UTC)]
    rows = {
        "_eo_checkpoint": pa.array([1, 1], pa.int64()),
        "topic": ["t", "t"],
        "partition": pa.array([0, 0], pa.int32()),
        "offset": pa.array([0, 1], pa.int64()),
        "timestamp": pa.array(moments, pa.timestamp("us", "UTC")),
        "key": pa.array([None, None], pa.binary()),
        "value": pa.array([b"x", b"y"], pa.binary()),
        "headers": pa.nulls(2, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        "error": ["no", "no"],
    }
    letters = dead_letters(StagedTable.in_memory(pa.table(rows)))
    said = [dict(arguments[-1])["_eo_timestamp"] for arguments in letters]
    assert said == [b"0", b"1767268800007"]


def test_a_raw_value_is_sent_as_it_is_and_its_lineage_as_headers(world: World) -> None:
    raw = world.changed(key="id", value="body", headers="more")
    more = pa.array(
        [[{"key": "a", "value": b"\x00"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    with raw.open() as session:
        entry = child_of(raw.begin(session), 2)
        output = staged(range(2), body=pa.array([b"\xff\x00", None], pa.binary()), more=more)
        assert session.publish(entry, output) is COMMITTED
    first, tombstone = raw.read()
    assert (first.key(), first.value()) == (b"0", b"\xff\x00")
    assert headers(first) == {"a": b"\x00", "_eo_checkpoint": b"1"}
    assert (tombstone.key(), tombstone.value()) == (b"1", None)
    assert headers(tombstone) == {"_eo_checkpoint": b"1"}


@pytest.mark.slow
def test_one_key_goes_to_one_partition(kafka: EmbeddedKafka, make_topic: MakeTopic) -> None:
    world = _world(kafka, make_topic(partitions=5), key="id")
    with world.open() as session:
        head = world.begin(session)
        for _ in range(2):
            head = child_of(head, 40)
            assert session.publish(head, staged(range(40))) is COMMITTED
    places: dict[bytes, set[int]] = {}
    for message in world.read():
        places.setdefault(message.key(), set()).add(message.partition())
    assert len(places) == 40
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 5


def _lineage(partitions: list[int]) -> dict[str, Any]:
    return {
        "_eo_topic": ["test-topic"] * len(partitions),
        "_eo_partition": pa.array(partitions, pa.int32()),
    }


def test_the_source_partition_is_kept(kafka: EmbeddedKafka, make_topic: MakeTopic) -> None:
    world = _world(kafka, make_topic(partitions=3), partitioning="source")
    with world.open() as session:
        entry = child_of(world.begin(session), 3)
        with pytest.raises(RefusedError, match="keeps Kafka partition 3, and the topic has 3"):
            session.publish(entry, staged(range(3), **_lineage([0, 3, 1])))
        output = staged(range(3), **_lineage([2, 0, 2]))
        assert session.publish(entry, output) is COMMITTED
    assert sorted(message.partition() for message in world.read()) == [0, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "first"), [(5, 1), (6, 0)])
def test_eleven_source_partitions_are_dealt_out_by_the_assigner(
    kafka: EmbeddedKafka, make_topic: MakeTopic, partitions: int, first: int
) -> None:
    world = _world(kafka, make_topic(partitions=partitions), partitioning="assigner")
    with world.open() as session:
        entry = child_of(world.begin(session), 11)
        output = staged(range(11), **_lineage(list(range(11))))
        assert session.publish(entry, output) is COMMITTED
    found = sorted(message.partition() for message in world.read())
    assert found == sorted((first + source) % partitions for source in range(11))


def test_a_column_that_is_named_must_be_there_and_fit(world: World, session: SinkSession) -> None:
    head = world.begin(session)
    for settings, error, words in (
        ({"key": "nobody"}, ConfigError, r"sink\.key: the result has no column nobody"),
        ({"partitioning": "source"}, ConfigError, "lineage"),
        ({"timestamp": "id"}, SchemaChangeError, "'id' must be a timestamp"),
        ({"key": "half"}, SchemaChangeError, "'half' must be text"),
    ):
        with world.changed(**settings).open() as other, pytest.raises(error, match=words):
            other.publish(child_of(head, 1), staged(range(1), half=[0.5]))
    with pytest.raises(SchemaChangeError, match="'gap' must be a type that JSON can hold"):
        session.publish(child_of(head, 1), staged(range(1), gap=pa.array([1], pa.duration("s"))))
    assert world.count() == 0


def test_source_offsets_move_in_the_same_transaction(world: World, admin: AdminClient) -> None:
    grouped = world.changed(offsets_group="lag-tools")
    place = ClientTopicPartition(world.sink.topic, 0)

    def committed() -> int:
        asked = [ConsumerGroupTopicPartitions("lag-tools", [place])]
        answer = admin.list_consumer_group_offsets(asked)["lag-tools"].result(120)
        offset: int = answer.topic_partitions[0].offset
        return offset

    with grouped.open() as session:
        start = replace(first_entry("p"), offsets={TopicPartition(world.sink.topic, 0): 5})
        with pytest.raises(CrashRequested):
            session.publish(start, StagedOutput(), raise_at(CrashPoint.ENTRY_SENT))
        assert committed() < 0
        assert session.publish(start, StagedOutput()) is COMMITTED
        assert committed() == 5


def test_a_refused_record_is_named_though_records_of_another_topic_follow_it(
    kafka: EmbeddedKafka, make_topic: MakeTopic
) -> None:
    small, other = make_topic(config={"max.message.bytes": "200"}), make_topic()
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    producer = RecordProducer(settings, {"transactional.id": small})
    producer.init(60)
    producer.begin()

    def slowly() -> Iterator[tuple[bytes]]:
        for _ in range(600):  # until the client knows that the transaction has failed
            yield (b"a row",)
            time.sleep(0.05)

    producer.send(small, [(os.urandom(1000),)])
    with pytest.raises(KafkaException) as refused:
        producer.send(other, slowly())
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert producer.failed_topic == small
    assert producer.abort()
    producer.close()


def _world(kafka: EmbeddedKafka, topic: str, **settings: Any) -> World:
    servers = {"bootstrap_servers": kafka.bootstrap_servers, "topic": topic}
    return World(KafkaSink.model_validate({**servers, **settings}))

"""The ledger as a Kafka topic, and configurations that would break the promise."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import ValidationError

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    ConfigError,
    LedgerBehindError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.kafka import KafkaSink, transactions
from eo_pipeline.sinks.kafka.broker import KafkaStore, wait_until
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, raise_at
from eo_pipeline.testing.faults import CrashRequested
from tests.sinks.kafka.kafka_sink_world import COMMITTED, World, admin, session, staged, world
from tests.support.servers import MakeTopic

__all__ = ["admin", "session", "world"]


# The ledger's topic.


@pytest.mark.slow
def test_an_entry_is_found_in_a_long_ledger_with_holes(world: World, session: SinkSession) -> None:
    head = world.begin(session)
    for number in range(1, 45):
        entry = child_of(head)
        if number % 10 == 0:  # aborted, several times: records that nobody is shown
            for _ in range(3):
                with pytest.raises(CrashRequested):
                    session.publish(entry, StagedOutput(), raise_at(CrashPoint.ENTRY_SENT))
        assert session.publish(entry, StagedOutput()) is COMMITTED
        head = entry
    with world.open() as other:
        history = list(other.history())
        assert [entry.version for entry in history] == list(range(45))
        assert [other.entry(version) for version in range(46)] == [*history, None]
        assert list(other.history(since=30)) == history[30:]
        assert list(other.history(since=45)) == []


@pytest.mark.slow
def test_the_head_is_found_behind_many_aborted_ones(world: World, session: SinkSession) -> None:
    head = world.begin(session)
    for _ in range(12):
        with pytest.raises(CrashRequested):
            session.publish(child_of(head), StagedOutput(), raise_at(CrashPoint.ENTRY_SENT))
    found = session.head()
    assert found is not None
    assert found.id == head.id


def test_a_ledger_that_was_emptied_is_not_a_new_one(
    world: World, session: SinkSession, admin: AdminClient
) -> None:
    world.begin(session)
    ledger = ClientTopicPartition(world.sink.ledger_of("p"), 0, -1)
    admin.delete_records([ledger])[ledger].result(120)
    with pytest.raises(LedgerBehindError, match="was deleted"):
        session.head()


@pytest.mark.parametrize(
    "config", [{"retention.ms": "60000"}, {"cleanup.policy": "compact"}], ids=str
)
def test_a_ledger_that_would_forget_is_refused(
    world: World, make_topic: MakeTopic, config: dict[str, str]
) -> None:
    whole = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    ledger = make_topic(config={**whole, **config})
    with pytest.raises(ConfigError, match=next(iter(config))):
        world.changed(ledger_topic=ledger).open()


def test_a_ledger_of_another_pipeline_is_refused(world: World, session: SinkSession) -> None:
    world.begin(session)
    stranger = world.changed(ledger_topic=world.sink.ledger_of("p"))
    with stranger.open("q") as other, pytest.raises(ConfigError, match="'p'"):
        other.head()


def test_two_pipelines_share_a_topic_and_no_ledger(world: World) -> None:
    with world.open("p") as one, world.open("q") as two:
        for name, session in (("p", one), ("q", two)):
            entry = child_of(world.begin(session, name), 2)
            assert session.publish(entry, staged(range(2))) is COMMITTED
    assert world.count() == 4


def test_a_missing_topic_and_a_ledger_of_two_partitions_are_refused(
    world: World, make_topic: MakeTopic
) -> None:
    with pytest.raises(ConfigError, match="there is no topic 'nowhere'"):
        world.changed(topic="nowhere").open()
    with pytest.raises(ConfigError, match="has 2 partitions, not one"):
        world.changed(ledger_topic=make_topic(partitions=2)).open()


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_unavailable(world: World) -> None:
    gone = world.changed(bootstrap_servers="127.0.0.1:1", request_timeout=1.0)
    with pytest.raises(SinkUnavailableError):
        gone.open()


@pytest.mark.parametrize("operation", [Operation.REWIND, Operation.REPLAY])
def test_going_back_is_refused_with_a_way_out(
    world: World, session: SinkSession, operation: Operation
) -> None:
    entry = child_of(world.begin(session), operation=operation, target=0)
    with pytest.raises(RefusedError, match="new topic"):
        session.publish(entry, StagedOutput())
    assert session.entry(1) is None


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"client": {"enable.idempotence": False}}, "client"),
        ({"client": {"transactional.id": "mine"}}, "client"),
        ({"topic": "no such name"}, "topic"),
        ({"dead_letter_topic": "t"}, "dead_letter_topic"),
        ({"semantics": "at_least_once", "offsets_group": "g"}, "offsets_group"),
        ({"semantics": "at_least_once", "shards": 2}, "shards"),
        ({"shards": 0}, "shards"),
        ({"transaction_timeout": 0.1}, "transaction_timeout"),
    ],
)
def test_settings_that_would_break_the_promise_are_refused(
    settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        KafkaSink.model_validate({"bootstrap_servers": "b:1", "topic": "t", **settings})
    assert [error["loc"][0] for error in refused.value.errors()] == [field]


# Transactional ids.


def test_no_two_pipelines_have_one_transactional_id(world: World) -> None:
    one, two = world.changed(topic="b-c").sink, world.changed(topic="c").sink
    assert one.transactional_id("a", 0) != two.transactional_id("a-b", 0)
    assert one.transactional_id("a", 10) != one.transactional_id("a", 1)


@pytest.mark.slow
def test_pipelines_whose_names_run_together_do_not_shut_each_other_out(
    world: World, admin: AdminClient
) -> None:
    """Scenario: ``a`` into ``b-c`` and ``a-b`` into ``c``, each with its producers at hand.
    Outcome: both publish, and neither meets a producer that was fenced.
    """
    last = uuid.uuid4().hex
    topics = (f"b-{last}", last)
    for made in admin.create_topics([NewTopic(t, 1, 1) for t in topics]).values():
        made.result()
    worlds = [world.changed(topic=topic) for topic in topics]
    with worlds[0].open("a") as one, worlds[1].open("a-b") as two:
        heads = [worlds[0].begin(one, "a"), worlds[1].begin(two, "a-b")]
        for _ in range(2):
            for number, each in enumerate((one, two)):
                entry = child_of(heads[number], 2)
                with each.begin(entry, staged(range(2))) as publication:
                    publication.write()
                    publication.enter()
                    publication.commit()
                heads[number] = entry
    assert [each.count() for each in worlds] == [4, 4]
    admin.delete_topics([*topics])


@pytest.mark.slow
def test_a_producer_of_an_earlier_release_is_shut_out_by_the_first_run_after_it(
    world: World,
) -> None:
    """Scenario: a run of an earlier release sleeps with rows and entry sent, under the id it had
    then; a run of this one goes on. Outcome: the sleeper's commit is refused, nothing of it is
    visible.
    """
    zombie = Producer(
        {
            "bootstrap.servers": world.sink.bootstrap_servers,
            "transactional.id": world.sink.earlier_transactional_id("p", 0),
        }
    )
    zombie.init_transactions(30)
    zombie.begin_transaction()
    zombie.produce(world.sink.topic, b"late")
    zombie.flush(30)
    with world.open() as session:
        entry = child_of(world.begin(session), 2)
        assert session.publish(entry, staged(range(2))) is COMMITTED
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(30)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert b"late" not in world.values()
    assert world.count() == 2


@pytest.mark.slow
def test_an_earlier_release_is_shut_out_once_and_again_after_it_wrote_the_ledger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its entry is the newest. Otherwise it costs nothing."""
    shut: list[int] = []
    real = transactions.fence_producer

    def counted(sink: KafkaSink, pipeline: str, settings: Any, shard: int) -> None:
        shut.append(shard)
        real(sink, pipeline, settings, shard)

    monkeypatch.setattr(transactions, "fence_producer", counted)
    with world.open() as session:
        head = world.begin(session)
    assert shut == [0]
    with world.open() as session:
        session.publish(child_of(head), StagedOutput())
    assert shut == [0]


# The topic it reads.


@pytest.mark.parametrize(
    ("source", "own"),
    [
        ({"topics": ["in", "out"]}, "out"),
        ({"topics": ["out._dead_letters"]}, "out._dead_letters"),
        ({"topic_pattern": "out.*"}, r"out, out\._dead_letters, out\._eo_ledger\.p"),
    ],
    ids=["named", "dead letters", "pattern"],
)
def test_a_source_does_not_read_what_the_sink_writes(source: dict[str, Any], own: str) -> None:
    def config(brokers: str) -> dict[str, Any]:
        read = {"bootstrap_servers": "b:1,c:1", "value_format": "raw", **source}
        sink = {"type": "kafka", "bootstrap_servers": brokers, "topic": "out"}
        return {"name": "p", "source": read, "sink": sink}

    with pytest.raises(ConfigError, match=f"the source reads {own}, which the sink writes"):
        Pipeline.from_config(config("c:1"))
    assert Pipeline.from_config(config("d:1")).name == "p"


@pytest.mark.slow
def test_a_topic_that_is_just_getting_its_leader_is_asked_again(world: World) -> None:
    """A broker knows a new topic before it leads its partitions, and says so when asked."""
    store = KafkaStore(world.sink)
    client = AdminClient({"bootstrap.servers": world.sink.bootstrap_servers})
    for _ in range(10):
        topic = f"new-{uuid.uuid4().hex}"
        client.create_topics([NewTopic(topic, 60)])
        assert wait_until(partial(_has_partitions, store, topic, 60), 30)
        partitions = [TopicPartition(topic, number) for number in range(60)]
        assert store.ends(partitions, committed=True) == dict.fromkeys(partitions, 0)


@pytest.mark.slow
def test_a_topic_whose_only_partition_has_no_leader_yet_is_asked_again(world: World) -> None:
    """No broker is asked then: the client itself says that there is none to ask."""
    store = KafkaStore(world.sink)
    client = AdminClient({"bootstrap.servers": world.sink.bootstrap_servers})
    for _ in range(20):
        only = TopicPartition(f"new-{uuid.uuid4().hex}", 0)
        client.create_topics([NewTopic(only.topic, 1)])[only.topic].result()
        assert wait_until(partial(_has_partitions, store, only.topic, 1), 30)
        assert store.ends([only], committed=True) == {only: 0}


@pytest.mark.parametrize(
    "code", [KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART]
)
def test_a_broker_that_does_not_know_yet_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A new leader does not know yet what its replicas have, a broker not yet of a new topic."""
    listed, answers = KafkaStore._listed, [code, code]

    def not_yet(store: KafkaStore, *asked: Any) -> dict[TopicPartition, int]:
        if answers:
            raise KafkaException(KafkaError(answers.pop()))
        return listed(store, *asked)

    monkeypatch.setattr(KafkaStore, "_listed", not_yet)
    place = TopicPartition(world.sink.topic, 0)
    assert KafkaStore(world.sink).ends([place], committed=False) == {place: 0}


@pytest.mark.slow
def test_a_topic_that_is_gone_is_not_waited_for_as_if_it_were_new(world: World) -> None:
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError, match=r"gone-for-good: .*leaders"):
        KafkaStore(world.sink).ends([TopicPartition("gone-for-good", 0)], committed=True)
    assert time.monotonic() - began < world.sink.request_timeout / 2


def _has_partitions(store: KafkaStore, topic: str, count: int) -> bool:
    return store.counts([topic])[topic] == count

"""The ledger as a Kafka topic, and configurations that would break the promise."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient
from pydantic import ValidationError

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    ConfigError,
    LedgerBehindError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, raise_at
from eo_pipeline.testing.crashes import CrashRequested
from tests.servers import MakeTopic
from tests.sinks.kafka.kafka_sink_world import COMMITTED, World, admin, session, staged, world

__all__ = ["admin", "session", "world"]


# The ledger's topic.


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

"""Kafka is no log that only grows: topics hide and return, ends fall, beginnings outrun us."""

from __future__ import annotations

import json
import threading
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.audit import FindingKind
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import DataLossError, SourceError
from eo_pipeline.kafka import partitions
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.ledger.offsets import TopicPartition
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Topic
from tests.support.servers import MakeTopic, wait_until
from tests.support.topics import add_partitions, delete, delete_records, hidden, recreate


@pytest.fixture
def other(bench: Bench, make_topic: MakeTopic) -> Topic:
    """A second topic, of one partition."""
    return Topic(make_topic(partitions=1), bench.topic.bootstrap_servers)


def both(bench: Bench, other: Topic, **policies: str) -> dict[str, object]:
    """A source of both topics, by a pattern: a topic that is named is refused, not hidden."""
    return {"topics": [], "topic_pattern": f"{bench.topic.name}|{other.name}", **policies}


def test_a_topic_that_was_hidden_and_accepted_as_lost_is_read_on_where_it_was_left(
    bench: Bench, other: Topic, admin: AdminClient
) -> None:
    """Scenario: an access control entry hides a topic, the loss is accepted, the entry goes.
    Outcome: no row twice, and what was written meanwhile is read.
    """
    source = both(bench, other, on_vanished="continue")
    other.write(10)
    bench.topic.write(10)
    bench.pipeline(source=source).run()
    with hidden(admin, other.name):
        bench.topic.write(10)
        accepted = bench.pipeline(source=source).run().checkpoints[0].entry
    assert accepted.operation is Operation.ACCEPT_LOSS
    assert {tp.topic for tp in accepted.offsets} == {bench.topic.name}
    assert [*accepted.identity.past_topics.values()] == [{TopicPartition(other.name, 0): 10}]

    # nothing new: it stays aside, whatever else is read
    bench.topic.write(5)
    bench.pipeline(source=source).run()
    other.write(10)
    head = bench.pipeline(source=source).run().head

    bench.table.assert_holds_once(bench.topic.written | other.written)
    assert head.offsets[TopicPartition(other.name, 0)] == 20
    assert head.identity.past_topics == {}
    assert bench.pipeline().audit().passed


def test_a_topic_that_left_a_pattern_and_came_back_is_read_on_where_it_was_left(
    bench: Bench, admin: AdminClient
) -> None:
    prefix = bench.topic.name
    source = {"topics": [], "topic_pattern": f"{prefix}.*", "on_vanished": "continue"}
    late = Topic(f"{prefix}-late", bench.topic.bootstrap_servers)
    admin.create_topics([NewTopic(late.name, 2, 1)])[late.name].result()
    bench.topic.write(10)
    late.write(10, partitions=range(2))
    bench.pipeline(source=source).run()
    for _ in range(2):
        with hidden(admin, late.name):
            bench.pipeline(source=source).run()
        late.write(4, partitions=range(2))
        bench.pipeline(source=source).run()
        bench.table.assert_holds_once(bench.topic.written | late.written)
    delete(admin, late.name)


def test_a_topic_created_anew_after_it_was_accepted_as_lost_is_another_topic(
    bench: Bench, other: Topic, admin: AdminClient
) -> None:
    source = both(bench, other, on_vanished="continue")
    other.write(10)
    bench.topic.write(10)
    bench.pipeline(source=source).run()
    delete(admin, other.name)
    bench.pipeline(source=source).run()
    admin.create_topics([NewTopic(other.name, 1, 1)])[other.name].result()
    other.next_id = 1_000
    other.write(12)
    bench.topic.write(1)

    head = bench.pipeline(source=source).run().head

    assert head.offsets[TopicPartition(other.name, 0)] == 12
    assert [*head.identity.past_topics.values()] == [{TopicPartition(other.name, 0): 10}]
    of_other = f"select count(*), count(distinct id) from events where _eo_topic = '{other.name}'"
    assert bench.table.query(of_other) == [(22, 22)]


def test_a_rewind_takes_back_what_was_read_of_a_topic_that_had_come_back(
    bench: Bench, other: Topic, admin: AdminClient
) -> None:
    source = both(bench, other, on_vanished="continue")
    other.write(10)
    bench.topic.write(10)
    bench.pipeline(source=source).run()
    with hidden(admin, other.name):
        aside = bench.pipeline(source=source).run().head
    other.write(10)
    bench.pipeline(source=source).run()

    bench.pipeline(source=source).rewind(aside.version)
    bench.pipeline(source=source).run()

    bench.table.assert_holds_once(bench.topic.written | other.written)


def test_an_end_that_falls_below_the_ledger_is_never_read_again(bench: Bench) -> None:
    """Scenario: read uncommitted up to 20 of an open transaction, then told to read committed:
    the last stable offset is 10. Outcome: it waits, also by policy, and reads on from 20.
    """
    topic = bench.topic
    topic.write(10)
    producer = topic.producer(**{"transactional.id": f"tx-{topic.name}"})
    producer.init_transactions()
    producer.begin_transaction()
    for i in range(10):
        topic.send(producer, json.dumps({"id": 100 + i, "name": "open"}).encode(), 0)
    producer.flush()
    bench.pipeline(source={"isolation": "read_uncommitted"}).run()
    bench.table.assert_holds_once(topic.written)

    committed = {"on_recreated": "continue"}
    assert bench.pipeline(source=committed).run().checkpoints == ()
    assert bench.pipeline().status().losses == ()
    producer.commit_transaction()
    topic.write(5)
    assert bench.pipeline().status().lag == 6  # with the transaction's marker
    bench.pipeline(source=committed).run()

    bench.table.assert_holds_once(topic.written)
    assert bench.pipeline().audit().passed


def test_a_new_partition_that_retention_reached_first_is_a_loss_and_told(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(40, partitions=range(4))
    bench.pipeline().run()
    add_partitions(admin, bench.topic.name, 5)
    bench.topic.next_id = 100
    bench.topic.write(30, partitions=[4])
    delete_records(admin, bench.topic.name, 4, before=20)

    with pytest.raises(DataLossError) as lost:
        bench.pipeline().run()
    (loss,) = lost.value.losses
    assert (loss.partition, loss.expected, loss.beginning, loss.end) == (4, 0, 20, 30)

    bench.pipeline(source={"on_retention": "continue"}).run()
    gone = {(bench.topic.name, 4, offset) for offset in range(20)}
    bench.table.assert_holds_once(bench.topic.written - gone)


def test_a_recreated_topic_that_is_larger_and_expired_is_accepted_at_once(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(40, partitions=range(4))
    bench.pipeline().run()
    recreate(admin, bench.topic.name, partitions=5)
    bench.topic.next_id = 1_000
    bench.topic.write(50, partitions=range(5))
    for partition in (0, 4):
        delete_records(admin, bench.topic.name, partition, before=3)

    accepted = bench.pipeline().accept_loss(reason="moved")
    bench.pipeline().run()

    where = f"_eo_checkpoint > {accepted.version}"
    assert bench.table.query(f"select count(*) from events where {where}") == [(44,)]
    assert bench.pipeline().status().losses == ()


@pytest.mark.core(only=["fail"])
@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_misspelt_topic_beside_a_good_one_stops_the_first_run(bench: Bench, policy: str) -> None:
    bench.topic.write(10)
    source = {"topics": [bench.topic.name, f"{bench.topic.name}x"], "on_vanished": policy}
    message = rf"no topic matches {bench.topic.name}x on .* Is {bench.topic.name} meant\?"
    with pytest.raises(SourceError, match=message):
        bench.pipeline(source=source).run()
    assert bench.table.versions() == []


def test_a_misspelt_topic_named_later_stops_the_run_or_is_left_out_aloud(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.topic.write(10)
    bench.pipeline().run()
    bench.topic.write(10)
    topics = [bench.topic.name, "nowhere"]
    with pytest.raises(SourceError, match="no topic matches nowhere"):
        bench.pipeline(source={"topics": topics}).run()
    with pytest.raises(SourceError, match="no topic matches nowhere"):
        bench.pipeline(source={"topics": topics}).plan_run()
    bench.pipeline(source={"topics": topics, "on_vanished": "continue"}).run()
    assert "there is no topic nowhere; going on without it" in caplog.text
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.slow
@pytest.mark.parametrize("times", rest_is_chaos([60, 1000], but=[60]))
def test_no_look_fails_because_topics_of_the_pattern_come_and_go(
    kafka: EmbeddedKafka, admin: AdminClient, times: int
) -> None:
    prefix = f"churn-{uuid.uuid4().hex[:8]}"
    source = KafkaSource(
        bootstrap_servers=kafka.bootstrap_servers, topic_pattern=f"{prefix}.*", value_format="raw"
    )
    looks, steady = KafkaAdmin(source), f"{prefix}-steady"
    admin.create_topics([NewTopic(steady, 2, 1)])[steady].result()
    # the broker may learn it a moment after the controller has answered
    wait_until(lambda: steady in looks.cluster().topic_ids)
    over = threading.Event()

    def churn() -> None:
        for number in range(10_000):
            names = [f"{prefix}-{number}-{i}" for i in range(4)]
            for made in admin.create_topics([NewTopic(n, 4, 1) for n in names]).values():
                made.result()
            for gone in admin.delete_topics(names).values():
                gone.result()
            if over.is_set():
                return

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        for _ in range(times):
            cluster = looks.cluster()
            assert {TopicPartition(steady, p) for p in range(2)} <= cluster.bounds.keys()
            assert {tp.topic for tp in cluster.bounds} == cluster.topic_ids.keys()
    finally:
        over.set()
        churning.join()
        admin.delete_topics([steady])[steady].result()


@pytest.mark.parametrize("retention", [2**63 - 1, 100 * 365 * 24 * 3600 * 1000])
def test_a_retention_of_a_hundred_years_or_more_keeps_everything(
    bench: Bench, make_topic: MakeTopic, retention: int
) -> None:
    name = make_topic(config={"retention.ms": str(retention)})
    topic = Topic(name, bench.topic.bootstrap_servers)
    pipeline = bench.pipeline(source={"topics": [name]})
    assert pipeline.status().lag == 0  # its partition has a leader
    topic.write(10)
    pipeline.run()
    pipeline.rewind(0)
    pipeline.run()
    bench.table.assert_holds_once(topic.written)


def test_the_audit_names_two_checkpoints_that_read_the_same_offsets(
    bench: Bench, other: Topic, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a run that knows nothing of positions put aside, as in earlier releases."""
    source = both(bench, other, on_vanished="continue")
    other.write(10)
    bench.topic.write(10)
    bench.pipeline(source=source).run()
    with hidden(admin, other.name):
        bench.pipeline(source=source).run()
    with monkeypatch.context() as earlier:
        earlier.setattr(partitions, "kept_position", lambda *_: None)
        bench.pipeline(source=source).run()

    report = bench.pipeline(source=source).audit()

    assert not report.passed
    said = [f.text for f in report.findings if f.kind is FindingKind.LEDGER]
    assert any(f"{other.name}[0] [0, 10)" in text and "1 and 3" in text for text in said), said

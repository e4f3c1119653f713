"""A broker that comes back with an older disk, and open transactions: on a broker of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.audit import FindingKind
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import DataLossError, Loss, RangesGoneError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.logs import open_transactions
from eo_pipeline.kafka.losses import losses_of
from eo_pipeline.kafka.marks import marked, validated
from eo_pipeline.kafka.planner import Batch
from eo_pipeline.kafka.source import KafkaSource, LossKind
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.marks import Mark
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.runs.runner import entry_of_batch
from tests.support.engine import Bench, Topic
from tests.support.servers import STATE, wait_until
from tests.support.topics import copied, put_back


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    fast = ["-XX:TieredStopAtLevel=1"]
    jars = kafka_broker_jars(STATE)
    with EmbeddedKafka(tmp_path / "kafka", jars=jars, java_options=fast) as server:
        yield server


@pytest.fixture
def topic(broker: EmbeddedKafka) -> Topic:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("events", 2, 1)])["events"].result()
    return Topic("events", broker.bootstrap_servers)


def source_of(topic: Topic) -> KafkaSource:
    return KafkaSource(
        bootstrap_servers=topic.bootstrap_servers, topics=[topic.name], value_format="raw"
    )


def read_to_its_end(topic: Topic) -> LedgerEntry:
    """The entry of a pipeline that has read all there is."""
    admin = KafkaAdmin(source_of(topic))
    cluster = admin.cluster()
    start = LedgerEntry(
        pipeline="p",
        ledger_id="l",
        version=0,
        transaction_id="x",
        parent=None,
        operation=Operation.START,
        offsets=cluster.beginnings(),
        topic_ids=cluster.topic_ids,
    )
    ranges = [OffsetRange(*tp, 0, held.end) for tp, held in cluster.bounds.items() if held.end]
    return marked(entry_of_batch(start, Batch(tuple(ranges)), cluster, "run"), cluster, admin.logs)


def losses(head: LedgerEntry, topic: Topic, *, same_epoch: bool = False) -> list[Loss]:
    """What a run on top of ``head`` would lose, if it looked now."""
    admin = KafkaAdmin(source_of(topic))
    cluster = admin.cluster()
    if same_epoch:
        marks = {
            tp: mark._replace(epoch=cluster.bounds[tp].epoch)
            for tp, mark in head.identity.marks.items()
        }
        head = replace(head, identity=replace(head.identity, marks=marks))
    found = losses_of(head, validated(cluster, head, admin.logs), source_of(topic))
    assert {kind for kind, _ in found.values()} <= {LossKind.TRUNCATED}
    return [loss for _, loss in found.values()]


def by_epoch_alone(head: LedgerEntry) -> LedgerEntry:
    marks = {tp: Mark(mark.epoch) for tp, mark in head.identity.marks.items()}
    return replace(head, identity=replace(head.identity, marks=marks))


@pytest.mark.slow
def test_a_broker_with_an_older_disk_has_another_log_although_it_has_grown_again(
    broker: EmbeddedKafka, topic: Topic, tmp_path: Path
) -> None:
    topic.write(20, partitions=range(2))
    copied(broker, topic.name, tmp_path / "older")
    topic.write(20, partitions=range(2))
    head = read_to_its_end(topic)
    assert head.offsets == dict.fromkeys(head.offsets, 20)
    broker.stop()
    broker.start()
    # another leader's epoch, and the same log
    assert losses(head, topic) == []
    assert losses(by_epoch_alone(head), topic) == []

    put_back(broker, topic.name, tmp_path / "older")
    topic.write(20, partitions=range(2))
    for known in (head, by_epoch_alone(head)):
        lost = losses(known, topic)
        assert [(each.expected, each.beginning, each.end) for each in lost] == [(20, 0, 20)] * 2
    topic.write(1)
    # a cluster that was restored as a whole may have the epochs that it had
    (loss,) = losses(head, topic, same_epoch=True)
    assert (loss.partition, loss.expected, loss.end) == (0, 20, 21)
    assert losses(by_epoch_alone(head), topic, same_epoch=True) == []


def test_what_waits_behind_an_open_transaction_is_told_with_its_time(topic: Topic) -> None:
    topic.write(10)
    writer = topic.producer(**{"transactional.id": "left-open"})
    writer.init_transactions()
    writer.begin_transaction()
    before = datetime.now(UTC)
    writer.produce(topic.name, b"{}", partition=0)
    assert writer.flush(60) == 0
    topic.write(599)
    admin = KafkaAdmin(source_of(topic))
    (found,) = open_transactions(admin.cluster(), admin.logs)
    assert (found.topic, found.partition, found.offset, found.waiting) == ("events", 0, 10, 600)
    assert found.since is not None
    assert abs((found.since - before).total_seconds()) < 60
    assert "600 offsets wait behind a transaction open since 20" in str(found)
    # the marks are of what can be read
    head = read_to_its_end(topic)
    assert head.offsets[TopicPartition("events", 0)] == 10
    assert losses(head, topic) == []
    writer.abort_transaction()
    wait_until(lambda: open_transactions(admin.cluster(), admin.logs) == ())
    assert losses(head, topic) == []


@pytest.mark.slow
def test_a_run_refuses_the_other_log_and_the_audit_fails_until_the_loss_is_accepted(
    bench: Bench, broker: EmbeddedKafka, topic: Topic, tmp_path: Path
) -> None:
    """Scenario: 10 records, a backup; 10 more, a run; the backup is put back, 15 more records come.
    Outcome: nothing is read of the other log in silence, forward or back.
    """
    pipeline = bench.pipeline(source=topic.source())
    topic.write(10)
    pipeline.run()
    copied(broker, topic.name, tmp_path / "older")
    topic.write(10)
    assert pipeline.run().head.offsets[TopicPartition("events", 0)] == 20
    assert pipeline.audit().passed
    put_back(broker, topic.name, tmp_path / "older")
    topic.write(5)
    findings = pipeline.audit().findings
    assert [(f.kind, f.count, f.checkpoints) for f in findings] == [(FindingKind.LOST, 5, (2,))]
    topic.write(10)

    with pytest.raises(DataLossError, match="truncated and has grown again") as lost:
        pipeline.run()
    (loss,) = lost.value.losses
    assert (loss.expected, loss.beginning, loss.end) == (20, 0, 25)
    assert pipeline.status().losses == (loss,)
    audit = pipeline.audit()
    assert [(f.kind, f.count, f.checkpoints) for f in audit.findings] == [
        (FindingKind.LOST, 10, (2,))
    ]
    sink = {**bench.config["sink"], "table": "forked"}
    for going_back in (
        lambda: pipeline.plan_replay(2),
        lambda: pipeline.plan_rewind(1),
        lambda: pipeline.plan_fork(1, "fork", sink),
        lambda: pipeline.plan_fork(2, "fork", sink),
    ):
        with pytest.raises(RangesGoneError, match="truncated and has grown again"):
            going_back()
    assert pipeline.plan_replay(1).ranges == (OffsetRange("events", 0, 0, 10),)

    pipeline.accept_loss("the disk is gone")
    report = pipeline.run()
    assert [c.entry.ranges for c in report.checkpoints] == [(OffsetRange("events", 0, 20, 25),)]
    audit = pipeline.audit()
    assert audit.passed
    assert FindingKind.ACCEPTED_LOSS in {remark.kind for remark in audit.remarks}
    with pytest.raises(RangesGoneError, match="truncated and has grown again"):
        pipeline.plan_rewind(1)
    names = json.dumps(report.head.to_json()["identity"]["marks"])
    assert '"events": {"0": [' in names

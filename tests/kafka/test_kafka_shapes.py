"""Topics as they are in real life: growing, compacted, transactional, recreated, expired."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import DataLossError, SourceError
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.ledger.offsets import TopicPartition
from tests.runs.test_two_runs import at
from tests.support.engine import Bench, Topic, whole_ranges
from tests.support.servers import MakeTopic, wait_until
from tests.support.topics import add_partitions, delete_records, recreate


def test_a_run_without_news_starts_no_spark_and_writes_nothing(bench: Bench) -> None:
    bench.topic.write(20, partitions=range(4))
    first = bench.pipeline().run()

    def no_spark() -> None:
        pytest.fail("Spark was started without anything to read")

    second = bench.pipeline().run(spark=no_spark)  # type: ignore[arg-type]

    assert second.head.id == first.head.id
    assert second.checkpoints == ()


def test_partitions_added_between_runs_are_read_from_their_beginning(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(40, partitions=range(4))
    before = bench.pipeline().run().head
    add_partitions(admin, bench.topic.name, 6)
    bench.topic.write(60, partitions=range(6))

    after = bench.pipeline().run().head

    bench.table.assert_holds_once(bench.topic.written)
    assert dict(after.offsets) == whole_ranges(bench.topic.written)
    known = {r.partition: r.start for r in after.ranges}
    assert all(known[p] == before.offsets[TopicPartition(bench.topic.name, p)] for p in range(4))


def test_partitions_added_while_a_run_reads_wait_for_the_next_run(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(40, partitions=range(4))
    early = set(bench.topic.written)

    def meanwhile() -> None:
        add_partitions(admin, bench.topic.name, 5)
        bench.topic.write(30, partitions=range(5))

    with at(CrashPoint.STAGING, meanwhile):
        bench.pipeline().run()
    bench.table.assert_holds_once(early)
    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)


def test_markers_and_aborted_transactions_leave_holes_and_no_rows(bench: Bench) -> None:
    """Scenario: committed, aborted and open transactions in one topic. Outcome: only committed
    records, read up to the last stable offset; the open one once it is committed.
    """
    topic = bench.topic
    producer = topic.producer(**{"transactional.id": f"tx-{topic.name}"})
    producer.init_transactions()
    aborted = Topic(topic.name, topic.bootstrap_servers, next_id=10_000)
    for commits in (True, False, True, False):
        producer.begin_transaction()
        for i in range(30):
            target = topic if commits else aborted
            target.send(producer, json.dumps({"id": i, "name": "x"}).encode(), i % 4)
        if commits:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    committed = set(topic.written)
    producer.begin_transaction()
    for i in range(10):
        topic.send(producer, json.dumps({"id": i, "name": "late"}).encode(), i % 4)
    producer.flush()

    report = bench.pipeline().run()
    bench.table.assert_holds_once(committed)
    assert report.records == 60
    assert report.head.counts.rows_total == 60

    producer.commit_transaction()
    bench.pipeline().run()
    bench.table.assert_holds_once(topic.written)


def test_a_topic_that_holds_only_markers_moves_the_offsets_and_writes_no_rows(
    bench: Bench,
) -> None:
    producer = bench.topic.producer(**{"transactional.id": f"tx-{bench.topic.name}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(bench.topic.name, b"{}", partition=0)
    producer.flush()
    producer.abort_transaction()
    report = bench.pipeline().run()
    assert (report.records, report.rows, report.lag) == (0, 0, 0)
    assert bench.pipeline().run().checkpoints == ()


def test_a_compacted_topic_is_read_past_its_holes(bench: Bench, make_topic: MakeTopic) -> None:
    name = make_topic(
        partitions=1,
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "100",
        },
    )
    topic = Topic(name, bench.topic.bootstrap_servers)
    for round_number in range(6):
        for key in range(5):
            value = json.dumps({"id": round_number, "name": f"key {key}"}).encode()
            topic.write_value(value, key=str(key).encode())
        # the newest segment is never compacted, and only a record that comes later begins another
        time.sleep(0.15)
    pipeline = bench.pipeline(source={"topics": [name]})
    # the broker compacts in its own time; what matters here is only that it did
    wait_until(lambda: _count(topic) < 30)

    report = pipeline.run()

    assert report.lag == 0
    assert report.records < 30
    newest = bench.table.query("select max(id) from events")
    assert newest == [(5,)]
    bench.table.assert_consistent()


def _count(topic: Topic) -> int:
    """Records a consumer finds in partition 0 from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": topic.bootstrap_servers,
            "group.id": "count",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([ClientTopicPartition(topic.name, 0, 0)])
    count = 0
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error():
            consumer.close()
            return count
        count += 1


def test_a_recreated_topic_is_refused_with_both_bounds_also_when_its_offsets_would_fit(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(40, partitions=range(4))
    head = bench.pipeline().run().head
    recreate(admin, bench.topic.name)
    bench.topic.write(80, partitions=range(4))

    with pytest.raises(DataLossError, match=r"created again; .* 10, the broker now holds \[0, 20"):
        bench.pipeline().run()
    now = bench.pipeline().head()
    assert now is not None
    assert now.id == head.id


def test_after_a_recreated_topic_is_accepted_one_warm_spark_reads_the_new_records(
    bench: Bench, admin: AdminClient
) -> None:
    """Spark caches consumers with what they prefetched: under the same group the new topic's
    offsets would come back as the old topic's records, silently.
    """
    bench.topic.write(40, partitions=range(4))
    bench.pipeline().run()
    recreate(admin, bench.topic.name)
    bench.topic.written.clear()
    bench.topic.next_id = 1_000
    bench.topic.write(80, partitions=range(4))

    report = bench.pipeline(source={"on_recreated": "continue"}).run()

    accepted = report.checkpoints[0].entry
    assert accepted.operation is Operation.ACCEPT_LOSS
    assert "created again" in accepted.details["holes"][0]["text"]
    fresh = bench.table.query(
        f"select min(id), max(id), count(*) from events where _eo_checkpoint > {accepted.version}"
    )
    assert fresh == [(1_000, 1_079, 80)]


@pytest.mark.core
def test_a_topic_recreated_between_plan_and_read_is_noticed_before_anything_is_promised(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(40, partitions=range(4))

    def meanwhile() -> None:
        recreate(admin, bench.topic.name)
        bench.topic.write(80, partitions=range(4))

    recreates = at(CrashPoint.STAGING, meanwhile)
    with recreates, pytest.raises(DataLossError, match="created again"):
        bench.pipeline().run()
    assert bench.table.versions() == [0]
    assert not bench.table.exists()


def test_retention_that_passed_us_is_an_error_with_both_bounds_and_goes_on_only_when_told(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(40)
    bench.pipeline().run()
    bench.topic.write(40)
    delete_records(admin, bench.topic.name, 0, before=60)

    with pytest.raises(DataLossError) as lost:
        bench.pipeline().run()
    (loss,) = lost.value.losses
    assert (loss.partition, loss.expected, loss.beginning, loss.end) == (0, 40, 60, 80)

    report = bench.pipeline(source={"on_retention": "continue"}).run()
    assert [r.entry.operation for r in report.checkpoints] == [
        Operation.ACCEPT_LOSS,
        Operation.FORWARD,
    ]
    bench.table.assert_holds_once(c for c in bench.topic.written if not 40 <= c[2] < 60)


@pytest.mark.core
def test_retention_that_passes_while_spark_reads_is_told_with_its_bounds(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(90)
    expires = at(CrashPoint.STAGING, lambda: delete_records(admin, bench.topic.name, 0, 70))
    with expires, pytest.raises(DataLossError, match="retention"):
        bench.pipeline().run()
    assert bench.table.versions() == [0]


def test_a_vanished_topic_is_refused_or_forgotten_by_policy(
    bench: Bench, admin: AdminClient, make_topic: MakeTopic
) -> None:
    other = Topic(make_topic(partitions=1), bench.topic.bootstrap_servers)
    both = {"topics": [bench.topic.name, other.name]}
    bench.topic.write(10)
    other.write(10)
    bench.pipeline(source=both).run()
    admin.delete_topics([other.name])[other.name].result()
    wait_until(lambda: other.name not in admin.list_topics(timeout=60).topics)
    bench.topic.write(10)

    with pytest.raises(DataLossError, match="no longer exists"):
        bench.pipeline(source=both).run()
    head = bench.pipeline(source={**both, "on_vanished": "continue"}).run().head

    assert {tp.topic for tp in head.offsets} == {bench.topic.name}
    bench.table.assert_holds_once(bench.topic.written | other.written)


def test_a_topic_no_longer_subscribed_keeps_its_offsets_and_goes_on_when_it_comes_back(
    bench: Bench, make_topic: MakeTopic
) -> None:
    other = Topic(make_topic(partitions=1), bench.topic.bootstrap_servers)
    both = {"topics": [bench.topic.name, other.name]}
    other.write(10)
    bench.topic.write(10)
    bench.pipeline(source=both).run()
    other.write(10)
    bench.topic.write(10)
    bench.pipeline().run()
    bench.pipeline(source=both).run()
    bench.table.assert_holds_once(bench.topic.written | other.written)


def test_a_pattern_finds_topics_created_later(bench: Bench, admin: AdminClient) -> None:
    prefix = bench.topic.name
    source = {"topics": [], "topic_pattern": f"{prefix}.*"}
    bench.topic.write(10)
    bench.pipeline(source=source).run()
    late = Topic(f"{prefix}-late", bench.topic.bootstrap_servers)
    admin.create_topics([NewTopic(late.name, 2, 1)])[late.name].result()
    late.write(10, partitions=range(2))
    bench.pipeline(source=source).run()
    bench.table.assert_holds_once(bench.topic.written | late.written)


def test_a_topic_that_does_not_exist_is_named(bench: Bench) -> None:
    with pytest.raises(SourceError, match=r"no topic matches .*nowhere"):
        bench.pipeline(source={"topics": ["nowhere"]}).run()

"""Small batches are fetched at once, by this process: the very records that Spark would read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from eo_pipeline.batch import stage
from eo_pipeline.batch.read import frame_of, read_ranges
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.kafka import fetch, logs
from eo_pipeline.kafka.fetch import Fetched, fetched
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.spark import SparkSettings, staging_settings
from tests.support.engine import Bench, Topic
from tests.support.servers import MakeTopic

ISOLATION = ("read_committed", "read_uncommitted")


@pytest.fixture
def spark(bench: Bench) -> Iterator[SparkSession]:
    session = SparkSettings().session()
    with staging_settings(session):
        yield session


def source_of(topic: Topic, **changes: Any) -> KafkaSource:
    return KafkaSource(
        bootstrap_servers=topic.bootstrap_servers,
        topics=[topic.name],
        value_format="raw",
        **changes,
    )


def write_odd_records(topic: Topic) -> None:
    """With and without key, value and headers, of any time; some in transactions, one aborted."""
    headers: list[Any] = [[("a", b"1"), ("a", None), ("ä", b"")], None, []]
    first_ms = int(time.time() * 1000) - 100_000
    plain = topic.producer()
    for n in range(60):
        plain.produce(
            topic.name,
            value=None if n % 5 == 0 else f"wert {n} ü".encode(),
            key=None if n % 7 == 0 else b"\x00\xff",
            headers=headers[n % 3],
            timestamp=first_ms + n,
            partition=n % 3,
        )
    plain.flush()
    transactional = topic.producer(**{"transactional.id": f"tx-{topic.name}"})
    transactional.init_transactions()
    for end in ("commit", "abort", "commit"):
        transactional.begin_transaction()
        for n in range(6):
            transactional.produce(topic.name, end.encode(), partition=n % 3)
        transactional.flush()
        (transactional.commit_transaction if end == "commit" else transactional.abort_transaction)()


def whole(topic: Topic, first: int = 0) -> list[OffsetRange]:
    """20 records, and three transactions of two with a marker each, in each of three partitions."""
    return [OffsetRange(topic.name, n, first, 29) for n in range(3)]


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("first", [0, 7])
def test_what_is_fetched_is_what_sparks_connector_reads(
    spark: SparkSession, events: Topic, isolation: str, first: int
) -> None:
    write_odd_records(events)
    source, ranges = source_of(events, isolation=isolation), whole(events, first)
    theirs = read_ranges(spark, source, ranges, pipeline="p", topic_ids={})
    small = fetched(source, ranges, "p")
    assert small is not None
    ours = frame_of(spark, small.records, 2)
    order = ("topic", "partition", "offset")
    assert ours.schema == theirs.schema
    assert ours.sort(*order).collect() == theirs.sort(*order).collect()


def test_the_runs_of_what_is_fetched_leave_out_the_holes(events: Topic) -> None:
    write_odd_records(events)
    small = fetched(source_of(events), whole(events), "p")
    assert small is not None
    committed = [(0, 22), (26, 28)]
    expected = [OffsetRange(events.name, n, *run) for n in range(3) for run in committed]
    assert list(small.runs) == expected


def test_a_range_in_the_middle_of_a_log_is_fetched_without_what_follows(events: Topic) -> None:
    events.write(90, partitions=range(3))
    ranges = [OffsetRange(events.name, 0, 3, 9), OffsetRange(events.name, 2, 0, 1)]
    small = fetched(source_of(events), ranges, "p")
    assert small is not None
    assert list(small.runs) == ranges
    assert small.records.num_rows == 7


def test_a_look_at_single_records_does_not_go_through_the_large_batches_they_are_in(
    events: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    class Counting(Consumer):
        def consume(self, *args: Any, **kwargs: Any) -> list[Message]:
            nonlocal seen
            messages = super().consume(*args, **kwargs)
            seen += len(messages)
            return messages

    monkeypatch.setattr(logs, "Consumer", Counting)
    producer = events.producer(**{"linger.ms": 500, "compression.type": "lz4"})
    for n in range(40_000):
        producer.produce(events.name, b"%d" % n, partition=n % 4)
    producer.flush()
    looks = logs.Logs(source_of(events))
    for end in (100, 2_000, 100):
        found = looks.last_records([OffsetRange(events.name, n, end - 16, end) for n in range(4)])
        assert {record.offset for record in found.values()} == {end - 1}
        assert len(found) == 4
    assert seen < 4_000  # the batches unpacked have over 80,000


def test_no_look_waits_for_more_records_than_there_are(
    events: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Heard(Consumer):
        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
            asked.append(num_messages)
            return super().consume(num_messages, timeout)

    monkeypatch.setattr(fetch, "Consumer", Heard)
    events.write(90, partitions=range(3))
    ranges = [OffsetRange(events.name, n, 0, 30) for n in range(3)]
    small = fetched(source_of(events), ranges, "p")
    assert small is not None
    assert small.records.num_rows == 90
    assert max(asked) == 90


def test_what_cannot_be_had_at_once_and_whole_is_left_to_spark(
    events: Topic, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PATIENCE_S", 0.5)
    events.write(30)
    name = events.name
    source, all_of_it = source_of(events), [OffsetRange(name, 0, 0, 30)]
    assert fetched(source, all_of_it, "p") is not None
    assert fetched(source, [OffsetRange(name, 0, 0, 31)], "p") is None  # ends past the log
    assert fetched(source, [OffsetRange(f"{name}-not", 0, 0, 30)], "p") is None
    how = {"spark_options": {"minPartitions": "3"}}
    assert fetched(source_of(events, **how), all_of_it, "p") is None
    admin.delete_records([ClientTopicPartition(name, 0, 5)])[
        ClientTopicPartition(name, 0, 5)
    ].result()
    assert fetched(source, all_of_it, "p") is None  # begins below it
    later = [OffsetRange(name, 0, 5, 30)]
    assert fetched(source, later, "p") is not None
    monkeypatch.setattr(fetch, "FETCHED_BYTES_MAX", 100)
    assert fetched(source, later, "p") is None


def test_keys_and_headers_count_as_values_do(
    events: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FETCHED_BYTES_MAX", 1000)
    parts: list[dict[str, Any]] = [{}, {"key": b"k" * 1000}, {"headers": [("h", b"x" * 1000)]}]
    producer = events.producer()
    for n, part in enumerate(parts):
        producer.produce(events.name, b"{}", partition=n, **part)
    producer.flush()
    ranges = [OffsetRange(events.name, n, 0, 1) for n in range(3)]
    found = [fetched(source_of(events), [each], "p") is not None for each in ranges]
    assert found == [True, False, False]


@pytest.mark.parametrize(("inline_records", "partitions"), [(0, 1), (10_000, 1), (10_000, 20)])
def test_a_record_of_any_timestamp_is_a_row_and_that_is_null_outside_the_years(
    bench: Bench, make_topic: MakeTopic, inline_records: int, partitions: int
) -> None:
    """As of a producer that takes nanoseconds, or microseconds, for milliseconds."""
    config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    topic = Topic(make_topic(partitions=partitions, config=config), bench.topic.bootstrap_servers)
    source = {"topics": [topic.name], "on_bad_record": "dead_letter"}
    pipeline = bench.pipeline(source=source, inline_records=inline_records)
    topic.write(10)
    pipeline.run()
    producer = topic.producer()
    for n, time_ms in enumerate([1_700_000_000 * 10**k for k in (3, 6, 9)]):
        for value in (b'{"id": %d}' % (100 + n), b"bad"):
            producer.produce(topic.name, value, partition=n % partitions, timestamp=time_ms)
    topic.write(10)
    producer.flush()
    report = pipeline.run()
    assert (report.rows, report.head.counts.dead_letters) == (13, 3)
    letters = bench.table.query(
        "select extract(epoch from timestamp)::bigint from events_dead_letters order by 1"
    )
    assert letters == [(1_700_000_000,), (None,), (None,)]
    assert pipeline.audit().passed


def test_a_broker_that_is_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is heard of again and again, which is no answer."""
    monkeypatch.setattr(fetch, "PATIENCE_S", 1.5)
    client = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 10}
    away = KafkaSource(
        bootstrap_servers="127.0.0.1:1", topics=["t"], value_format="raw", client=client
    )
    assert fetched(away, [OffsetRange("t", 0, 0, 1)], "p") is None


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch, by_plan: None) -> list[str]:
    """Who read a batch: "fetched", or "spark"."""
    found: list[str] = []

    def spied_fetched(*arguments: Any) -> Fetched | None:
        found.append("fetched")
        return fetched(*arguments)

    def spied_read(*arguments: Any, **named: Any) -> Any:
        found.append("spark")
        return read_ranges(*arguments, **named)

    monkeypatch.setattr(stage, "fetched", spied_fetched)
    monkeypatch.setattr(stage, "read_ranges", spied_read)
    return found


def test_a_small_batch_of_two_hundred_partitions_is_fetched_by_one_consumer(
    bench: Bench,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    readers: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumers = list[Any]()

    def counted(*arguments: Any, **named: Any) -> Any:
        consumers.append(Consumer(*arguments, **named))
        return consumers[-1]

    monkeypatch.setattr(fetch, "Consumer", counted)
    topic = Topic(make_topic(partitions=200), kafka.bootstrap_servers)
    source = {"topics": [topic.name], "max_records": 1000}
    pipeline = bench.pipeline(inline_records=1000, source=source)
    for _ in range(3):
        topic.write(400, partitions=range(200))
        pipeline.run()
    # the first too, of which nobody knew how large its records are
    assert readers == ["fetched"] * 3
    assert len(consumers) == 3
    bench.table.assert_holds_once(topic.written)


@pytest.mark.parametrize(("records", "who"), [(1000, "fetched"), (1001, "spark")])
def test_what_was_never_measured_is_fetched_if_it_is_few(
    bench: Bench, readers: list[str], records: int, who: str
) -> None:
    bench.topic.write(records, partitions=range(4))
    bench.pipeline(inline_records=1000, source={"max_records": None}).run()
    assert readers == [who]
    bench.table.assert_holds_once(bench.topic.written)


def test_a_batch_that_was_left_to_spark_is_read_by_it(
    bench: Bench, readers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = bench.pipeline(inline_records=1000)
    monkeypatch.setattr(fetch, "FETCHED_BYTES_MAX", 1)
    for _ in range(2):  # the first was never measured
        bench.topic.write(10)
        pipeline.run()
    assert readers == ["fetched", "spark"] * 2
    bench.table.assert_holds_once(bench.topic.written)


def test_bad_records_of_a_small_batch_are_set_aside_as_they_came(
    bench: Bench, readers: list[str]
) -> None:
    source = {"on_bad_record": "dead_letter", "tombstones": "skip"}
    pipeline = bench.pipeline(inline_records=1000, source=source)
    for _ in range(2):
        bench.topic.write(10, partitions=range(4))
        bench.topic.write_value(b"\xff not JSON", partition=1)
        bench.topic.write_value(None, partition=2)
        head = pipeline.run().head
    assert readers == ["fetched"] * 2
    counts = head.counts
    assert (counts.records, counts.rows, counts.dead_letters, counts.tombstones) == (12, 10, 1, 1)
    values = bench.table.query("select value from events_dead_letters")
    assert [bytes(value) for (value,) in values] == [b"\xff not JSON"] * 2
    bench.table.assert_holds_once(bench.topic.written)


def test_a_transform_sees_of_a_small_batch_what_it_sees_of_a_large_one(
    bench: Bench, readers: list[str]
) -> None:
    seen: list[str] = []

    def transform(df: Any) -> Any:
        seen.append(json.dumps(df.schema.jsonValue()))
        return df.where("id % 2 = 0")

    for inline_records in (0, 1000):
        bench.topic.write(10)
        assert bench.pipeline(inline_records=inline_records, transform=transform).run().rows == 5
    assert readers == ["spark", "fetched"]
    assert seen[0] == seen[1]

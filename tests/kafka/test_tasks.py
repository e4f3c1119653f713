"""Tasks follow the size of a batch: not Kafka's partitions, which may be many, or one with all."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Consumer
from deltalake import DeltaTable

from eo_pipeline import Pipeline
from eo_pipeline.batch.read import range_options
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.kafka import planner as tasks_module
from eo_pipeline.kafka.planner import KNOWN_MAX, TASK_BYTES, TASKS_PER_CORE, Tasks
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.jvm import KAFKA_SETTINGS
from eo_pipeline.spark.launch import launch_settings
from tests.support.engine import Bench, Topic
from tests.support.servers import MakeTopic

CORES = os.cpu_count() or 1
#: Enough to be split, and written in a second.
MANY = 60_000
#: Consumers that Spark keeps.
CACHED = "spark.kafka.consumer.cache.capacity"


def ranges(*spans: int) -> list[OffsetRange]:
    return [OffsetRange("orders", n, 5, 5 + span) for n, span in enumerate(spans)]


def test_many_small_ranges_share_as_many_tasks_as_there_are_cores() -> None:
    assert Tasks.of(ranges(*[1] * 1000), 4, 100.0) == Tasks(shared_by=4)


def test_small_ranges_with_much_in_them_share_more_tasks() -> None:
    shared = Tasks.of(ranges(*[1000] * 1000), 2, TASK_BYTES / 1000)
    assert shared == Tasks(shared_by=2 * TASKS_PER_CORE)


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("seen", [1000, 10_000])
def test_the_consumers_of_all_tasks_at_once_know_no_more_partitions_than_there_is_memory_for(
    cores: int, seen: int
) -> None:
    """A consumer knows every partition of its topic, also those that have nothing new."""
    known = [TopicPartition("orders", n) for n in range(10_000)]
    tasks = Tasks.of(ranges(*[1] * seen), cores, 100.0, known).shared_by
    assert tasks is not None
    assert math.ceil(seen / tasks) * cores * len(known) <= KNOWN_MAX


@pytest.mark.core
@pytest.mark.parametrize("record_bytes", [None, 200.0, 1000.0, 100_000.0])
@pytest.mark.parametrize("partitions", [1, 8, 64, 128, 1000])
def test_what_consumers_of_a_pipeline_hold_is_half_of_the_heap_at_most(
    partitions: int, record_bytes: float | None
) -> None:
    """Each that is kept has two fetches, if its range ended within the log; the records that it
    gave out stay for some seconds, also of one that is not kept.
    """
    source = KafkaSource(bootstrap_servers="localhost:9092", topics=("orders",), value_format="raw")
    options = range_options(
        source,
        ranges(*[1] * partitions),
        pipeline="p",
        topic_ids={},
        partition_count=partitions,
        tasks=Tasks(),
        record_bytes=record_bytes,
    )
    fetched = 2 * int(options["kafka.max.partition.fetch.bytes"])
    polled = int(options["kafka.max.poll.records"]) * (record_bytes or 1024)
    assert SparkSettings().driver_memory == "2g"
    kept = min(partitions, int(KAFKA_SETTINGS[CACHED]))
    assert kept * fetched + partitions * polled <= 1024**3


def test_who_knows_no_partitions_takes_those_that_the_numbers_tell_of() -> None:
    alone, told = ranges(*[1] * 10_000), [TopicPartition("orders", n) for n in range(10_000)]
    assert Tasks.of(alone, 2, 100.0) == Tasks.of(alone, 2, 100.0, told)


def test_many_partitions_of_many_topics_are_no_wide_topic() -> None:
    topics = [f"orders-{n}" for n in range(1000)]
    many = [OffsetRange(topic, n, 0, 1) for topic in topics for n in range(10)]
    known = [each.topic_partition for each in many]
    assert Tasks.of(many, 2, 100.0, known) == Tasks(shared_by=2)


@pytest.mark.core
def test_a_large_range_is_split_over_the_cores() -> None:
    spans = [9_000_000, *[100_000] * 10]
    assert Tasks.of(ranges(*spans), 4, 200.0) == Tasks(span_max=10_000_000 // (4 * TASKS_PER_CORE))


def test_a_range_is_not_split_into_pieces_that_are_not_worth_a_task() -> None:
    assert Tasks.of(ranges(8000), 64, 200.0) == Tasks()
    split = Tasks.of(ranges(1_000_000), 64, 200.0)
    assert (split.span_max or 0) * 200 >= TASK_BYTES - 200


def test_large_records_make_a_few_of_them_a_large_range() -> None:
    assert Tasks.of(ranges(8000), 2, 100_000.0).span_max == 1000


def test_ranges_that_fit_the_cores_are_left_to_spark() -> None:
    assert Tasks.of(ranges(*[250_000] * 8), 2, 200.0) == Tasks()
    assert Tasks.of(ranges(100, 100), 2, None) == Tasks()
    assert Tasks.of(ranges(*[1] * 1000), None, 100.0) == Tasks()
    assert Tasks.of([], 2, None) == Tasks()


def test_consumers_that_are_kept_leave_the_heap_of_a_spark_of_ours_room() -> None:
    """10,000 partitions take 5 MB of each; the driver's heap is 2 GB."""
    kept = int(KAFKA_SETTINGS[CACHED])
    assert kept > 64, "Spark's own"
    assert kept * 5_000_000 < 2_000_000_000 / 3


@pytest.mark.core
def test_who_has_the_memory_keeps_more_of_them() -> None:
    more = {CACHED: "1024"}
    assert launch_settings("local[*]", "2g", {})[CACHED] == KAFKA_SETTINGS[CACHED]
    assert launch_settings("local[*]", "16g", more)[CACHED] == "1024"


def config(bench: Bench, topic: Topic, sink: dict[str, Any], **source: Any) -> dict[str, Any]:
    asked = {"topics": [topic.name], "max_records": None, **source}
    return {**bench.config, "source": {**bench.config["source"], **asked}, "sink": sink}


def run_into_delta(bench: Bench, topic: Topic, root: Path, **source: Any) -> int:
    """How many tasks wrote a file. Every record is in the table once."""
    before = len(DeltaTable(str(root)).file_uris()) if root.exists() else 0
    sink = {"type": "delta", "path": str(root)}
    Pipeline.from_config(config(bench, topic, sink, **source)).run()
    rows = pl.read_delta(str(root)).select("_eo_topic", "_eo_partition", "_eo_offset")
    assert Counter(rows.iter_rows()) == Counter(topic.written)
    return len(DeltaTable(str(root)).file_uris()) - before


@pytest.fixture
def hundreds(kafka: EmbeddedKafka, make_topic: MakeTopic) -> Topic:
    """A topic of 200 partitions."""
    return Topic(make_topic(partitions=200), kafka.bootstrap_servers)


def test_two_hundred_partitions_with_a_record_each_are_read_by_a_task_for_each_core(
    bench: Bench, hundreds: Topic, tmp_path: Path
) -> None:
    hundreds.write(200, partitions=range(200))
    assert run_into_delta(bench, hundreds, tmp_path / "lake") <= CORES
    hundreds.write(200, partitions=range(200))
    assert run_into_delta(bench, hundreds, tmp_path / "lake") <= CORES


def test_fewer_of_many_partitions_share_a_task_where_consumers_would_know_too_much(
    bench: Bench, hundreds: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer knows those of 200 partitions, too, that have nothing new."""
    at_once, busy = 2 * CORES, 40
    monkeypatch.setattr(tasks_module, "KNOWN_MAX", 200 * at_once)
    hundreds.write(busy, partitions=range(busy))
    assert run_into_delta(bench, hundreds, tmp_path / "lake") == busy // 2


def test_a_partition_with_nearly_all_records_is_read_by_several_tasks(
    bench: Bench, events: Topic, tmp_path: Path
) -> None:
    events.write(MANY)
    events.write(10, partitions=range(4))
    assert run_into_delta(bench, events, tmp_path / "lake") > 4


def test_who_says_how_ranges_are_split_is_obeyed(
    bench: Bench, events: Topic, tmp_path: Path
) -> None:
    events.write(90)
    options = {"spark_options": {"maxRecordsPerPartition": "10"}}
    assert run_into_delta(bench, events, tmp_path / "lake", **options) == 9


def test_pieces_of_a_partition_reach_a_sink_in_their_order(
    bench: Bench, events: Topic, kafka: EmbeddedKafka, make_topic: MakeTopic
) -> None:
    out = make_topic(partitions=1)
    events.write(MANY)
    sink = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "topic": out}
    assert Pipeline.from_config(config(bench, events, sink)).run().rows == MANY
    assert ids_in(kafka, out, MANY) == list(range(MANY))


def ids_in(kafka: EmbeddedKafka, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[int] = []
    while len(found) < count:
        messages = consumer.consume(10_000, timeout=60)
        assert messages, f"{len(found)} of {count} records came"
        found += [json.loads(message.value() or b"")["id"] for message in messages]
    consumer.close()
    return found

"""Whole pipelines from Kafka into Redis: killed, raced, and compared from outside."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import RefusedError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.redis import RedisSink
from tests.sinks.redis.redis_world import rows_in
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Coordinates, Table, Topic, staged_attempts

PIPELINE = "events"


@pytest.fixture
def sink(redis_url: str) -> RedisSink:
    """A row a record: the key is where the record stood."""
    return RedisSink.model_validate(
        {"url": redis_url, "key": "{_eo_partition}:{_eo_offset}", "max_rows": 150}
    )


@pytest.fixture
def redis_bench(
    spark_server: object, events: Topic, redis_url: str, sink: RedisSink, tmp_path: Any
) -> Bench:
    """As ``bench``, into Redis; its table is never looked at."""
    config = {
        "name": PIPELINE,
        "source": {
            "bootstrap_servers": events.bootstrap_servers,
            "topics": [events.name],
            "value_schema": "id BIGINT NOT NULL, name STRING",
            "max_records": 100,
        },
        "sink": {
            "type": "redis",
            "url": redis_url,
            "key": sink.key,
            "max_rows": sink.max_rows,
        },
        "staging": str(tmp_path / "staging"),
        "inline_records": 0,
    }
    return Bench(events, Table(dsn=""), config)


def coordinates(sink: RedisSink) -> Counter[Coordinates]:
    """How often each record is in Redis."""
    rows = rows_in(sink, PIPELINE)
    return Counter((r["_eo_topic"], r["_eo_partition"], r["_eo_offset"]) for r in rows)


def assert_holds_once(sink: RedisSink, topic: Topic, pipeline: Pipeline) -> None:
    """Exactly the written records, as many under each checkpoint as its entry counted."""
    found = coordinates(sink)
    assert found.keys() == topic.written
    rows = Counter(row["_eo_checkpoint"] for row in rows_in(sink, PIPELINE))
    assert rows == {e.version: e.counts.rows for e in pipeline.history() if e.counts.rows}


@pytest.mark.parametrize(
    ("point", "inline_records"),
    rest_is_chaos(
        [
            (point, inline)
            for inline in (0, 10_000)
            for point in (CrashPoint.PRE_COMMITTED, CrashPoint.ROWS_SENT, CrashPoint.COMMITTED)
        ],
        but=[(CrashPoint.ROWS_SENT, 0), (CrashPoint.COMMITTED, 10_000)],
    ),
)
def test_killed_the_next_run_leaves_every_record_there_once(
    redis_bench: Bench, sink: RedisSink, point: CrashPoint, inline_records: int
) -> None:
    topic = redis_bench.topic
    topic.write(300, partitions=range(4))
    nth = {CrashPoint.PRE_COMMITTED: 2}.get(point, 3)
    killed = redis_bench.run_in_a_process(
        "--crash-at", point, str(nth), inline_records=inline_records
    )
    _, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    assert set(coordinates(sink)) < topic.written

    pipeline = redis_bench.pipeline(inline_records=inline_records)
    report = pipeline.run()

    assert report.lag == 0
    assert_holds_once(sink, topic, pipeline)
    assert staged_attempts(redis_bench) == []


def test_rows_replace_each_other_by_key_in_the_order_of_the_topic(
    redis_bench: Bench, redis_url: str
) -> None:
    topic = redis_bench.topic
    for name in ("first", "second", "third"):
        topic.write_value(f'{{"id": 1, "name": "{name}"}}'.encode())
    pipeline = redis_bench.pipeline(sink={"key": "{id}", "prefix": "latest", "as": "json"})
    pipeline.run()
    topic.write_value(b'{"id": 2, "name": null}')
    pipeline.run()
    sink = pipeline.sink
    assert isinstance(sink, RedisSink)
    assert {row["id"]: row["name"] for row in rows_in(sink, PIPELINE)} == {1: "third", 2: None}


def test_a_checkpoint_too_large_for_one_script_says_what_to_set_and_then_goes_on(
    redis_bench: Bench, sink: RedisSink
) -> None:
    redis_bench.topic.write(300, partitions=range(4))
    with pytest.raises(RefusedError, match=r"source\.max_records to at most 150"):
        redis_bench.pipeline(source={"max_records": 300}).run()
    assert not coordinates(sink)
    pipeline = redis_bench.pipeline()
    pipeline.run()
    assert_holds_once(sink, redis_bench.topic, pipeline)


def test_nested_values_and_bad_records_find_their_place(redis_bench: Bench) -> None:
    redis_bench.topic.write_value(b'{"id": 1, "tags": ["a", null]}')
    redis_bench.topic.write_value(b"{")
    schema = "id BIGINT NOT NULL, tags ARRAY<STRING>"
    pipeline = redis_bench.pipeline(
        source={"value_schema": schema, "on_bad_record": "dead_letter"}, sink={"key": "{id}"}
    )
    report = pipeline.run()
    sink = pipeline.sink
    assert isinstance(sink, RedisSink)
    assert report.head.counts.dead_letters == 1
    assert [row["tags"] for row in rows_in(sink, PIPELINE)] == [["a", None]]

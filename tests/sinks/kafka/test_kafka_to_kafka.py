"""A whole pipeline from Kafka to Kafka: killed, run again, and counted by another consumer."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, EoPipelineError, LedgerDamagedError
from eo_pipeline.sinks.kafka.transactions import Shards
from eo_pipeline.testing.faults import CrashRequested
from tests.sinks.kafka.kafka_sink_world import kafka_bench
from tests.sinks.kafka.kafka_world import read
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Coordinates, Topic, staged_attempts
from tests.support.servers import MakeTopic
from tests.support.topics import delete


@pytest.fixture
def bench(
    spark_server: EmbeddedSpark, events: Topic, make_topic: MakeTopic, tmp_path: Path
) -> Bench:
    """100 offsets a checkpoint into a topic of four partitions; there is no table to look at."""
    return kafka_bench(events, make_topic(partitions=4), tmp_path)


def published(bench: Bench) -> Counter[Coordinates]:
    """How often each source record is there for a read_committed reader."""
    found: Counter[Coordinates] = Counter()
    for message in read(bench.topic.bootstrap_servers, bench.config["sink"]["topic"]):
        row = json.loads(message.value() or b"")
        assert row["name"] == f"record {row['id']}"
        found[(row["_eo_topic"], row["_eo_partition"], row["_eo_offset"])] += 1
    return found


@pytest.mark.core(only=["inline"])
@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_every_record_arrives_once(bench: Bench, inline_records: int) -> None:
    bench.topic.write(250, partitions=range(4))
    report = bench.pipeline(inline_records=inline_records).run()
    assert report.lag == 0
    assert published(bench) == Counter(bench.topic.written)
    bench.topic.write(50, partitions=range(4))
    bench.pipeline(inline_records=inline_records).run()
    assert published(bench) == Counter(bench.topic.written)


@pytest.mark.core(only=["entry_sent"])
@pytest.mark.parametrize(
    "point", rest_is_chaos(CrashPoint, but=[CrashPoint.PRE_COMMITTED, CrashPoint.ENTRY_SENT])
)
def test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
    bench: Bench, point: CrashPoint
) -> None:
    bench.topic.write(300, partitions=range(4))
    # the start entry passes the points of a commit too: aim at the middle of the second batch
    nth = {"recovered": 1, "committed": 3, "rows_sent": 3, "entry_sent": 3}.get(point, 2)
    killed = bench.run_in_a_process("--crash-at", point, str(nth))
    out, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    assert "done" not in out
    assert max(published(bench).values(), default=1) == 1

    report = bench.pipeline().run()

    assert published(bench) == Counter(bench.topic.written)
    assert report.lag == 0
    versions = [entry.version for entry in bench.pipeline().history()]
    assert versions == list(range(report.head.version + 1))
    assert staged_attempts(bench) == []


def test_shards_that_a_run_left_out_are_published_by_the_next_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: shard 0 of three committed the checkpoint, and nobody the others. Outcome: the
    next run keeps the staged files until it has published them, and goes on from there.
    """
    bench.topic.write(250, partitions=range(4))
    sharded = {"shards": 3}

    def die(*_: Any) -> None:
        raise CrashRequested

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "follow", die)
        with pytest.raises(CrashRequested):
            bench.pipeline(sink=sharded).run()
    assert [entry.version for entry in bench.pipeline(sink=sharded).history()] == [0]
    assert 0 < len(published(bench)) < 100
    assert len(staged_attempts(bench)) == 1

    report = bench.pipeline(sink=sharded).run()

    assert report.checkpoints[0].recovered
    assert published(bench) == Counter(bench.topic.written)
    assert report.lag == 0
    assert staged_attempts(bench) == []


def test_a_source_that_is_the_sinks_topic_by_another_address_is_refused(bench: Bench) -> None:
    sink = bench.config["sink"]
    port = sink["bootstrap_servers"].rpartition(":")[2]
    itself = {"bootstrap_servers": f"localhost:{port}", "topics": [sink["topic"]]}
    with pytest.raises(ConfigError, match=f"the source reads {sink['topic']}, which the sink"):
        bench.pipeline(source=itself).run()
    assert bench.pipeline().head() is None


def test_a_ledger_whose_topic_was_deleted_is_not_begun_anew(
    bench: Bench, admin: AdminClient, tmp_path: Path
) -> None:
    bench.topic.write(50, partitions=range(4))
    bench.pipeline().run()
    delete(admin, f"{bench.config['sink']['topic']}._eo_ledger.events")
    for staging in (bench.config["staging"], str(tmp_path / "elsewhere")):
        with pytest.raises(LedgerDamagedError, match="the store holds rows of checkpoints"):
            bench.pipeline(staging=staging).run()
    assert published(bench) == Counter(bench.topic.written)


def test_two_runs_at_once_write_every_record_once(bench: Bench) -> None:
    bench.topic.write(400, partitions=range(4))
    runs = [bench.run_in_a_process() for _ in range(2)]
    for run in runs:
        run.communicate(timeout=240)
    bench.pipeline().run()
    assert published(bench) == Counter(bench.topic.written)


def test_keys_headers_and_dead_letters_go_with_the_rows(bench: Bench) -> None:
    bench.topic.write(20, partitions=range(4))
    bench.topic.write_value(b"not json")
    source = {"on_bad_record": "dead_letter"}
    sink = {"key": "id", "headers": {"who": "name"}, "partitioning": "source"}
    bench.pipeline(source=source, sink=sink).run()
    messages = read(bench.topic.bootstrap_servers, bench.config["sink"]["topic"])
    assert len(messages) == 20
    for message in messages:
        row = json.loads(message.value() or b"")
        assert message.partition() == row["_eo_partition"]
        name = f"record {message.key().decode()}"  # type: ignore[union-attr]
        assert message.headers() == [("who", name.encode())]
    letters = read(bench.topic.bootstrap_servers, f"{bench.config['sink']['topic']}._dead_letters")
    assert [letter.value() for letter in letters] == [b"not json"]


def test_a_key_that_is_not_there_stops_the_run_before_anything_is_read(bench: Bench) -> None:
    bench.topic.write(10)
    with pytest.raises(EoPipelineError, match=r"sink\.key: the result has no column nobody"):
        bench.pipeline(sink={"key": "nobody"}).run()
    assert published(bench) == Counter()

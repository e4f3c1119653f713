"""Why a Spark job failed: the transform, a full disk, a JVM that died. Each has its own remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from eo_pipeline.errors import SetupError, SparkJobError, TransformError
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.jvm import CLIENT_VARIABLES
from tests.support.engine import Bench, staged_attempts
from tests.support.servers import STATE, MakeTopic


@pytest.mark.core(only=["divided_by_zero-DIVIDE_BY_ZERO-inline"])
@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
@pytest.mark.parametrize(
    ("transform", "said"),
    [("divided_by_zero", "DIVIDE_BY_ZERO"), ("broken_at_run_time", "no such carrier")],
)
def test_a_transform_that_fails_while_spark_runs_it_will_fail_again(
    bench: Bench, transform: str, said: str, inline_records: int
) -> None:
    bench.topic.write(20)
    broken = bench.pipeline(
        transform=f"tests.runs.transforms:{transform}", inline_records=inline_records
    )
    with pytest.raises(TransformError, match=said) as failed:
        broken.run()
    assert not failed.value.retryable
    assert "Correct the transform" in str(failed.value)
    assert bench.table.versions() == [0]
    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)


def test_what_may_pass_in_a_transform_is_tried_again(bench: Bench) -> None:
    bench.topic.write(20)
    with pytest.raises(SparkJobError, match="the rates server is away") as failed:
        bench.pipeline(transform="tests.runs.transforms:away_at_run_time").run()
    assert failed.value.retryable


def test_of_a_full_heap_the_error_says_what_makes_room(bench: Bench) -> None:
    def full(df: DataFrame) -> DataFrame:
        said = F.lit("java.lang.OutOfMemoryError: GC overhead limit")
        return df.where(F.raise_error(said).cast("boolean"))

    bench.topic.write(20)
    with pytest.raises(SparkJobError, match="GC overhead limit") as failed:
        bench.pipeline(transform=full).run()
    assert failed.value.retryable
    for remedy in ("spark.driver_memory", "spark.kafka.consumer.cache.capacity"):
        assert remedy in str(failed.value)


@contextmanager
def disk(folder: Path, options: str) -> Iterator[None]:
    """A disk of its own at ``folder``."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_named_with_its_folder_and_what_is_left(
    bench: Bench, tmp_path: Path
) -> None:
    bench.topic.write(30)
    bench.pipeline().run()
    bench.topic.write(30)
    small = tmp_path / "small"
    with disk(small, "size=1m"):
        with pytest.raises(SetupError, match="disk full") as full:
            bench.pipeline(staging=str(small), transform="tests.runs.transforms:wide").run()
        assert f"{small}/events" in str(full.value)
        assert "MB free of 1.0 MB" in str(full.value)
        assert not full.value.retryable
        assert bench.table.versions() == [0, 1]
        assert staged_attempts(bench) == []
    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)


#: Runs a pipeline twice; before the first run reads, its JVM is killed.
KILLED = """
import json, os, signal, sys
from pyspark import SparkContext
from eo_pipeline import EoPipelineError, Pipeline
from eo_pipeline.crashpoints import CrashPoint, reaching

pipeline = Pipeline.from_config(json.loads(sys.argv[1]))
pipeline.spark.session()

def kill(point):
    if point is CrashPoint(sys.argv[2]):
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        SparkContext._gateway.proc.wait()

try:
    with reaching(kill):
        pipeline.run()
    said = {}
except EoPipelineError as error:
    said = {"kind": type(error).__name__, "text": str(error), "retryable": error.retryable}
print(json.dumps(said), flush=True)
print(json.dumps({"rows": pipeline.run().rows}), flush=True)
"""


def in_a_process(tmp_path: Path, script: str, *arguments: str) -> list[Any]:
    """Return the JSON documents that a script prints, which starts a Spark of its own."""
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in spark_connector_jars(STATE):
        (jars / jar.name).symlink_to(jar)
    environment = {k: v for k, v in os.environ.items() if k not in CLIENT_VARIABLES}
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**environment, JARS_VARIABLE: str(jars)},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("point", ["planned", "staging"])
def test_a_dead_jvm_is_told_and_the_next_run_of_the_process_starts_another(
    bench: Bench, tmp_path: Path, point: str
) -> None:
    bench.topic.write(20)
    config = {**bench.config, "spark": {"master": "local[1]", "driver_memory": "1g"}}
    told, again = in_a_process(tmp_path, KILLED, json.dumps(config), point)
    if told:  # a JVM that was found dead before it was used is no error at all
        assert (told["kind"], told["retryable"]) == ("SparkUnavailableError", True)
        assert "JVM of this process has ended" in told["text"]
    assert again["rows"] == (20 if told else 0)
    bench.table.assert_holds_once(bench.topic.written)


#: Has an error of Java's, whose JVM ends before anybody reads it, as one does whose heap is full.
ENDED = """
import json
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from eo_pipeline.spark import SparkSettings, job_error, text_of

spark = SparkSettings(master="local[1]", driver_memory="1g", warm=False).session()
java = SparkContext._jvm.java
try:
    java.util.Optional.empty().get()
except Py4JJavaError as error:
    failed = error
try:
    java.lang.Runtime.getRuntime().halt(52)
except (Py4JError, ConnectionError):
    pass
assert text_of(failed) is None
said = job_error(spark, failed, "The job")
print(json.dumps({"kind": type(said).__name__, "text": str(said)}))
"""


def test_an_error_whose_jvm_ended_before_it_was_read_is_a_lost_spark(tmp_path: Path) -> None:
    """The error's text is in the JVM. Exit code 52 is Spark's for a full heap."""
    (said,) = in_a_process(tmp_path, ENDED)
    assert said["kind"] == "SparkUnavailableError"
    assert "since its heap was full" in said["text"]
    assert "spark.driver_memory" in said["text"]


#: Runs a pipeline.
RUN = """
import json, sys
from eo_pipeline import Pipeline
print(json.dumps(Pipeline.from_config(json.loads(sys.argv[1])).run().rows))
"""


@pytest.mark.slow
def test_a_backlog_of_several_partitions_fits_a_small_heap(
    bench: Bench, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Each checkpoint ends within the logs, and Spark keeps its consumers with what they fetched
    ahead. With 16 MiB a fetch half a gigabyte was not enough.
    """
    topic = make_topic(partitions=16)
    producer = bench.topic.producer(**{"queue.buffering.max.messages": 320_000})
    noise = os.urandom(24_000).hex()
    for n in range(320_000):
        at = n * 37 % 47_000
        value = b'{"n": %d, "text": "%s"}' % (n, noise[at : at + 1000].encode())
        producer.produce(topic, value, partition=n % 16)
    assert producer.flush(120) == 0
    source = {**bench.config["source"], "topics": [topic], "max_records": 80_000}
    source["value_schema"] = "n BIGINT, text STRING"
    spark = {"master": "local[2]", "driver_memory": "512m", "warm": False}
    config = {**bench.config, "source": source, "spark": spark}
    assert in_a_process(tmp_path, RUN, json.dumps(config)) == [320_000]

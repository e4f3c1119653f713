"""A small checkpoint asks Spark for little: counted in requests, whatever a machine's mood."""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.connect.client.core import SparkConnectClient

from eo_pipeline.batch.counting import NAMES_OF_FILES
from eo_pipeline.batch.stage import Transform
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import Observed, SparkSettings
from eo_pipeline.spark.observation import explained
from tests.support.calls import calls_of
from tests.support.engine import Bench


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What this process asks of its Spark Connect server."""
    for thread in threading.enumerate():
        if "_settle" in thread.name:  # a checkpoint that another test had staged ahead
            thread.join(30)
    names = ("_analyze", "_execute", "_execute_and_fetch", "config")
    return calls_of(SparkConnectClient, names, monkeypatch)


def as_it_came(frame: DataFrame) -> DataFrame:
    """A transform, of whose result Spark must be asked the schema."""
    return frame.select("*")


# a small batch goes to Spark with its records
@pytest.mark.core(only=["None-0-0", "None-0-100000"])
@pytest.mark.parametrize("inline", [0, 100_000])
@pytest.mark.parametrize(("transform", "looks"), [(None, 0), (as_it_came, 1)])
def test_a_checkpoint_is_one_job_one_look_at_what_a_transform_made_and_few_at_settings(
    bench: Bench,
    requests: Counter[str],
    inline: int,
    transform: Transform | None,
    looks: int,
) -> None:
    pipeline = bench.pipeline(inline_records=inline, transform=transform)
    for _ in range(2):  # what is asked once in a session
        bench.topic.write(10)
        pipeline.run()
    requests.clear()
    bench.topic.write(10)
    assert pipeline.run().rows == 10
    # what is lent, and whether a transform has set some of it otherwise
    asked = {"_analyze": looks, "config": 2 + looks}
    jobs = requests["_execute"] + requests["_execute_and_fetch"]
    assert {kind: requests[kind] for kind in asked} == asked
    # rows that tasks stage are a view, which they drop
    assert jobs == (1 if inline or transform is None else 2)
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.parametrize(
    ("key_format", "way", "steps"),
    [
        ("raw", "straight", 1),  # what it takes to tell of tasks that do all by themselves
        ("text", "straight", 1),
        # before from_json, which Spark interprets; then until records are counted with their rows;
        # and from there on
        ("text", "by_plan", 3),
    ],
)
def test_spark_generates_the_same_code_for_each_checkpoint(
    bench: Bench,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    key_format: str,
    way: str,
    steps: int,
) -> None:
    if way == "by_plan":
        request.getfixturevalue(way)
    codes: list[list[str]] = []
    real = SparkConnectClient.to_table

    def heard(client: SparkConnectClient, plan: Any, *arguments: Any) -> Any:
        explained = client.explain_string(plan, explain_mode="codegen")
        codes.append(re.findall(r"Generated code:\n(.*?)(?=\n== Subtree|\Z)", explained, re.DOTALL))
        return real(client, plan, *arguments)

    monkeypatch.setattr(SparkConnectClient, "to_table", heard)
    pipeline = bench.pipeline(inline_records=100_000, source={"key_format": key_format})
    for _ in range(3):  # the first goes through files: nobody knows how large its records are
        bench.topic.write(10)
        pipeline.run()
    *_, first, second = filter(None, codes)  # without the question how many cores there are
    assert len(first) == steps
    assert first == second
    bench.table.assert_holds_once(bench.topic.written)


def test_of_the_names_under_which_files_are_counted_all_but_one_only_wait(
    spark_server: EmbeddedSpark,
) -> None:
    frame = SparkSettings(remote=spark_server.remote).session().range(10)
    observed = Observed(frame, F.sum("id").alias("sum"), times=NAMES_OF_FILES)
    steps = re.findall(r"CollectMetrics eo-\w+, \[(.*)\]", explained(observed.frame))
    assert len(steps) == NAMES_OF_FILES
    assert [step.count("(") for step in steps if "sum" not in step] == [1] * (len(steps) - 1)


@pytest.mark.core
def test_a_new_session_hears_all_its_settings_in_one_request(
    spark_server: EmbeddedSpark, requests: Counter[str]
) -> None:
    wanted = {
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.ansi.enabled": "false",
        "spark.driver.memory": "9g",  # of no use to a server that runs
    }
    session = SparkSettings(remote=spark_server.remote, config=wanted).session()
    assert requests["config"] == 1
    assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"

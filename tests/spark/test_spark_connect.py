"""The Spark Connect server is away, is something else, lets us not in, or dies: told in words."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from eo_pipeline import ConfigError, SparkSettings, SparkUnavailableError
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import interruptible, interrupts
from eo_pipeline.spark.connector import spark_connector_jars
from tests.support.engine import Bench, staged_folders
from tests.support.servers import STATE, wait_until

pytestmark = pytest.mark.slow

TOKEN = "let-me-in"


@contextmanager
def nobody() -> Iterator[int]:
    """A port on which nothing listens."""
    yield free_port()


@contextmanager
def silence() -> Iterator[int]:
    """A server that takes connections and never says a word."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def a_web_server() -> Iterator[int]:
    with HTTPServer((HOST, 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSpark]:
    """One that asks for a token, and that a test may kill."""
    with EmbeddedSpark(
        tmp_path_factory.mktemp("guarded-spark"),
        jars=spark_connector_jars(STATE),
        memory="1g",
        settings={"spark.connect.authenticate.token": TOKEN},
    ) as running:
        yield running


def with_token(server: EmbeddedSpark, token: str) -> str:
    """The address for one who has ``token``; pyspark sends it without TLS to localhost alone."""
    return f"{server.start().remote.partition('/;')[0]}/;token={token}"


class Runner:
    """A process that runs one pipeline again and again, when it is told to."""

    def __init__(self, bench: Bench, reached: Path, **changes: Any) -> None:
        config = json.dumps({**bench.config, **changes})
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "EO_TEST_REACHED": str(reached)},
            cwd=Path(__file__).parents[2],
        )

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def run(self) -> dict[str, Any]:
        self.start()
        return self.result()


_CODE = """
import json, sys
from eo_pipeline import EoPipelineError, Pipeline
pipeline = Pipeline.from_config(json.loads(sys.argv[1]))
for line in sys.stdin:
    try:
        said = {"rows": pipeline.run().rows}
    except EoPipelineError as error:
        said = {"kind": type(error).__name__, "text": str(error), "retryable": error.retryable}
    print(json.dumps(said), flush=True)
"""


@pytest.fixture
def runner(bench: Bench, tmp_path: Path) -> Iterator[Callable[..., Runner]]:
    made: list[Runner] = []

    def make(**changes: Any) -> Runner:
        made.append(Runner(bench, tmp_path / "reached", **changes))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate()


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (nobody, "Connection refused"),
        (silence, "does not speak its protocol"),
        (a_web_server, "does not speak its protocol"),
    ],
)
def test_a_server_that_does_not_answer_is_named_soon(
    listener: Callable[[], AbstractContextManager[int]], said: str
) -> None:
    with listener() as port, pytest.raises(SparkUnavailableError) as away:
        SparkSettings(remote=f"sc://{HOST}:{port}", connect_timeout=1).session()
    assert f"{HOST}:{port} within 1 s" in str(away.value)
    assert said in str(away.value)
    assert "SPARK_REMOTE" in str(away.value)
    assert "Java" not in str(away.value)


@pytest.mark.parametrize("remote", ["sc://", "sc://a:b:c", "sc://host:port", "sc://host:1/path"])
def test_what_is_no_address_is_a_wrong_setting(remote: str) -> None:
    with pytest.raises(ConfigError, match="SPARK_REMOTE"):
        SparkSettings(remote=remote, connect_timeout=1).session()


def test_a_wrong_token_is_told_and_not_shown(server: EmbeddedSpark) -> None:
    remote = with_token(server, "hunter2")
    with pytest.raises(ConfigError, match="Invalid authentication token") as refused:
        SparkSettings(remote=remote).session()
    assert not refused.value.retryable
    assert "hunter2" not in str(refused.value)
    assert remote.partition("//")[2].partition("/")[0] in str(refused.value)


@pytest.mark.timeout(240)
def test_a_frozen_server_is_no_reason_to_wait_for_ever(
    server: EmbeddedSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the server's process is stopped, between two runs and in the middle of a job."""
    settings = SparkSettings(remote=with_token(server, TOKEN), connect_timeout=1)
    monkeypatch.setattr(interrupts, "LIVENESS_INTERVAL_S", 0.5)
    monkeypatch.setattr(interrupts, "CANCEL_SECONDS", 0.5)
    spark = settings.session()
    frozen = threading.Timer(2, lambda: os.kill(server.pid, signal.SIGSTOP))
    endless = spark.range(10**13).where("xxhash64(id) = 0")
    frozen.start()
    try:
        with pytest.raises(ConnectionError, match="did not answer"):
            interruptible(spark, endless.count)
        with pytest.raises(SparkUnavailableError, match=r"within 1 s"):
            settings.session()
    finally:
        frozen.cancel()
        os.kill(server.pid, signal.SIGCONT)
        server.kill()


def test_a_server_is_not_ready_while_another_program_has_its_port(
    server: EmbeddedSpark, tmp_path: Path
) -> None:
    server.start()
    impostor = EmbeddedSpark(tmp_path, jars=[])
    with a_web_server() as port:
        impostor._port = port
        assert not impostor._answers()
    impostor._port = server._port
    assert server._answers()
    assert not impostor._answers()


def test_a_run_without_its_server_commits_nothing(
    bench: Bench, runner: Callable[..., Runner]
) -> None:
    bench.topic.write(20)
    with nobody() as port:
        away = runner(spark={"remote": f"sc://{HOST}:{port}", "connect_timeout": 1}).run()
    assert (away["kind"], away["retryable"]) == ("SparkUnavailableError", True)
    assert bench.table.versions() == [0]
    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)


def test_another_pipelines_server_is_not_asked_and_may_have_ended(
    bench: Bench, server: EmbeddedSpark
) -> None:
    """Found before: pyspark asks the first server that a process spoke to what a schema means."""
    others = SparkSettings(remote=with_token(server, TOKEN), connect_timeout=1).session()
    found: list[SparkSession | None] = []

    def looks(df: DataFrame) -> DataFrame:
        found.extend((SparkSession.getActiveSession(), df.sparkSession))
        return df

    bench.topic.write(20)
    bench.pipeline(transform=looks).run()
    assert found[0] is found[1] is not others
    SparkSettings(remote=with_token(server, TOKEN), connect_timeout=1).session()
    server.kill()
    bench.topic.write(20)
    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)


def test_a_server_that_dies_in_the_middle_ends_the_run_and_the_next_one_connects_anew(
    bench: Bench, server: EmbeddedSpark, runner: Callable[..., Runner], tmp_path: Path
) -> None:
    bench.topic.write(50)
    running = runner(
        transform="tests.runs.transforms:slow_the_first_time",
        spark={"remote": with_token(server, TOKEN), "connect_timeout": 2},
    )
    running.start()
    wait_until(lambda: bool(staged_folders(tmp_path / "staging")))
    server.kill()
    lost = running.result()
    assert (lost["kind"], lost["retryable"]) == ("SparkUnavailableError", True), lost
    assert "lost its Spark Connect server at localhost:" in lost["text"]
    assert TOKEN not in lost["text"]
    assert bench.table.versions() == [0]

    server.start()
    assert running.run() == {"rows": 50}
    bench.table.assert_holds_once(bench.topic.written)

    # and one that was started again between two runs makes no error at all
    server.kill()
    server.start()
    bench.topic.write(20)
    assert running.run() == {"rows": 20}


@pytest.mark.chaos
def test_a_server_that_is_started_again_in_the_middle_of_a_job_is_a_lost_one(
    bench: Bench, server: EmbeddedSpark, runner: Callable[..., Runner], tmp_path: Path
) -> None:
    bench.topic.write(50)
    running = runner(
        transform="tests.runs.transforms:slow_the_first_time",
        spark={"remote": with_token(server, TOKEN), "connect_timeout": 60},
    )
    running.start()
    wait_until(lambda: bool(staged_folders(tmp_path / "staging")))
    server.kill()
    server.start()
    lost = running.result()
    assert (lost["kind"], lost["retryable"]) == ("SparkUnavailableError", True), lost
    assert running.run() == {"rows": 50}
    bench.table.assert_holds_once(bench.topic.written)


def test_a_session_that_is_collected_leaves_the_others_alone(server: EmbeddedSpark) -> None:
    """The collector may be at work in one of the threads that pyspark's clients share."""
    settings = SparkSettings(remote=with_token(server, TOKEN))
    lost, kept = (
        settings.session(),
        SparkSettings(remote=settings.remote, config={"spark.sql.caseSensitive": "true"}).session(),
    )
    for each in (lost, kept):
        each.sql("select 1").collect()
    shared = ExecutePlanResponseReattachableIterator._get_or_create_release_thread_pool()

    shared.submit(cast(Any, lost).__del__).result(60)

    assert cast(Any, lost).is_stopped
    assert kept.sql("select 2").collect() == [(2,)]
    assert settings.session().sql("select 3").collect() == [(3,)]
    kept.stop()

"""Terminate, as the button in Dagster's UI does it: a real web server, real runs, ended there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from eo_pipeline.embedded.ports import free_port
from tests.dagster.held import IN_PROCESSES, VARIABLE
from tests.support.engine import Bench, spark_has_begun, spark_is_free
from tests.support.servers import wait_until

ROOT = Path(__file__).parents[2]
FOR_EVER: dict[str, Any] = {"transform": "tests.runs.transforms:endless"}

#: The web server starts runs itself.
_NO_DAEMON = """
telemetry: {enabled: false}
run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}
"""
_LAUNCH = """
mutation Launch($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message stack } } }
"""
_TERMINATE = """
mutation Terminate($id: String!) { terminateRun(runId: $id) {
  __typename ... on TerminateRunFailure { message } ... on PythonError { message } } }
"""
_LOCATION = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"


@dataclass
class Ui:
    """Dagster's web server with the code location ``tests.dagster.held``."""

    folder: Path
    port: int = field(default_factory=free_port)

    @property
    def held(self) -> Path:
        """What the location's next run is to do."""
        return self.folder / "held.json"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = json.load(answer)
        assert "errors" not in told, told
        return told["data"]

    def answers(self) -> bool:
        try:
            return bool(self.ask(_LOCATION)["repositoriesOrError"]["nodes"])
        except (urllib.error.URLError, ConnectionError):
            return False

    def launch(self, job: str, **config: Any) -> str:
        """The run id, once the run was sent off."""
        selector = {
            "repositoryLocationName": "tests.dagster.held",
            "repositoryName": "__repository__",
            "jobName": job,
        }
        params = {"selector": selector, "mode": "default", "runConfigData": config}
        launched = self.ask(_LAUNCH, params=params)["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return str(launched["run"]["runId"])

    def terminate(self, run_id: str) -> None:
        answer = self.ask(_TERMINATE, id=run_id)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer


@pytest.fixture(scope="module")
def server(spark_server: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    ui = Ui(tmp_path_factory.mktemp("ui"))
    ui.home.mkdir()
    (ui.home / "dagster.yaml").write_text(_NO_DAEMON)
    # what it loads first; its runs load what their test wrote
    nowhere = {
        "name": "events",
        "source": {"bootstrap_servers": "h:1", "topics": ["t"], "value_schema": "id BIGINT"},
        "sink": {"type": "postgres", "dsn": "host=h dbname=d", "table": "events"},
    }
    ui.held.write_text(json.dumps({"pipeline": nowhere, "hold": {}, "delay": 0}))
    program = str(Path(sys.executable).with_name("dagster-webserver"))
    command = [program, "-m", "tests.dagster.held", "-h", "127.0.0.1", "-p", str(ui.port)]
    environment = {**os.environ, "DAGSTER_HOME": str(ui.home), VARIABLE: str(ui.held)}
    log = (ui.folder / "log").open("w")
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_until(ui.answers)
        yield ui
    finally:
        process.terminate()
        process.wait(120)
        log.close()


@dataclass
class Runs:
    """Runs of the bench's pipeline, started and terminated in the UI."""

    ui: Ui
    bench: Bench
    instance: dg.DagsterInstance
    folder: Path

    def start(
        self,
        job: str,
        *,
        hold: dict[str, Any] | None = None,
        delay: float = 0,
        config: dict[str, Any] | None = None,
        **changes: Any,
    ) -> str:
        told = {
            "pipeline": {**self.bench.config, **changes},
            "hold": {"arrived": str(self.arrived), **(hold or {})},
            "delay": delay,
        }
        self.ui.held.write_text(json.dumps(told))
        return self.ui.launch(job, **(config or {}))

    @property
    def arrived(self) -> Path:
        return self.folder / "arrived"

    def until(self, condition: Callable[[], bool], run_id: str) -> None:
        """Wait for it, not beyond the run's end."""
        deadline = time.monotonic() + 240
        while not (condition() or self.run(run_id).is_finished or time.monotonic() > deadline):
            time.sleep(0.05)
        assert condition(), self.log(run_id)

    def terminated(self, run_id: str) -> str:
        """Terminate the run; its log once it has ended as canceled."""
        self.ui.terminate(run_id)
        wait_until(lambda: self.run(run_id).is_finished)
        assert self.run(run_id).status is dg.DagsterRunStatus.CANCELED, self.log(run_id)
        return self.log(run_id)

    def ended(self, run_id: str) -> dg.DagsterRunStatus:
        wait_until(lambda: self.run(run_id).is_finished)
        return self.run(run_id).status

    def run(self, run_id: str) -> dg.DagsterRun:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def log(self, run_id: str) -> str:
        return "\n".join(
            str(entry.dagster_event.message if entry.dagster_event else entry.user_message)
            for entry in self.instance.all_logs(run_id)
        )

    def happened(self, run_id: str, kind: dg.DagsterEventType) -> int:
        return len(self.instance.all_logs(run_id, of_type=kind))


@pytest.fixture
def runs(server: Ui, bench: Bench, tmp_path: Path) -> Iterator[Runs]:
    with dg.DagsterInstance.from_config(str(server.home)) as instance:
        yield Runs(server, bench, instance, tmp_path)


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Version 1 with 100 records, and 150 records more in Kafka."""
    bench.topic.write(100, partitions=range(4))
    bench.pipeline().run()
    bench.topic.write(150, partitions=range(4))
    return bench


def stands_as_it_was(bench: Bench) -> None:
    """Version 1, whole, and nothing else; the next run reads all that is missing, once."""
    assert bench.table.versions() == [0, 1]
    assert sum(bench.table.coordinates().values()) == 100
    assert bench.pipeline().run().head.version == 3
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.parametrize("job", ["events_job", IN_PROCESSES])
def test_terminated_while_spark_works_the_run_is_canceled_and_spark_is_free(
    runs: Runs, filled: Bench, job: str
) -> None:
    run_id = runs.start(job, **FOR_EVER)
    runs.until(lambda: spark_has_begun(filled), run_id)

    said = runs.terminated(run_id)

    assert "version 1 stands; nothing of version 2 is visible" in said
    assert "While the sensor events_lag is on, it starts the next run" in said
    spark_is_free(filled)
    stands_as_it_was(filled)


def test_terminated_while_it_waits_for_a_retry_the_run_is_canceled_at_once(
    runs: Runs, filled: Bench
) -> None:
    run_id = runs.start("events_job", hold={"at": "planned", "fails": True}, delay=60)
    runs.until(lambda: "Retry 1 of 3 in 60 s" in runs.log(run_id), run_id)

    said = runs.terminated(run_id)

    assert "interrupted before retry 1, after: the sink is away, says the test" in said

    assert len(runs.arrived.read_text().splitlines()) == 1
    stands_as_it_was(filled)


def test_terminated_inside_the_sinks_transaction_nothing_of_it_is_visible(
    runs: Runs, filled: Bench
) -> None:
    run_id = runs.start("events_job", hold={"at": "entry_sent"})
    runs.until(runs.arrived.exists, run_id)

    said = runs.terminated(run_id)

    assert "version 1 stands; nothing of version 2 is visible" in said
    assert runs.happened(run_id, dg.DagsterEventType.STEP_UP_FOR_RETRY) == 0
    stands_as_it_was(filled)


def test_terminated_while_an_object_is_finalized_the_run_hears_of_it_all_the_same(
    runs: Runs, filled: Bench
) -> None:
    run_id = runs.start("events_job", hold={"at": "planned", "finalizing": True})
    runs.until(runs.arrived.exists, run_id)

    said = runs.terminated(run_id)

    assert "version 1 stands; nothing of version 2 is visible" in said
    stands_as_it_was(filled)


def test_terminated_between_two_replays_the_first_stays_and_the_second_is_not_begun(
    runs: Runs, filled: Bench
) -> None:
    filled.pipeline().run()
    config = {"versions": [1, 2, 3]}
    hold = {"at": "rows_sent", "nth": 2}
    run_id = runs.start("events_replay", hold=hold, config=config)
    runs.until(runs.arrived.exists, run_id)

    said = runs.terminated(run_id)

    assert "version 4 stands; nothing of version 5 is visible" in said
    assert [entry.target for entry in filled.pipeline().history(4)] == [1]
    filled.table.assert_holds_once(filled.topic.written)


def test_a_terminated_audit_leaves_spark_free(runs: Runs, filled: Bench) -> None:
    run_id = runs.start("events_audit", **FOR_EVER)
    runs.until(lambda: "reading 100 offsets" in runs.log(run_id), run_id)
    time.sleep(1)  # the message comes before the job

    runs.terminated(run_id)

    spark_is_free(filled)

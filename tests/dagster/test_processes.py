"""Dagster's own commands, each in its own process, as a person runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dagster_defs import definitions
from tests.dagster.projects import write_project
from tests.support.engine import Bench
from tests.support.stores import Bucket

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DAGSTER_YAML = ROOT / "dagster_defs" / "dagster.yaml"

#: What Dagster says of its own older commands, and of a component it ships itself.
_NOT_OURS = ("SupersessionWarning", "PreviewWarning")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A DAGSTER_HOME with the settings that ship."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(DAGSTER_YAML.read_text())
    return folder


def run(command: str, *arguments: str, cwd: Path, home: Path, **environment: str) -> str:
    """What ``command`` of this virtual environment says; it must succeed."""
    program = Path(sys.executable).with_name(command)
    done = subprocess.run(
        [program, *arguments],
        cwd=cwd,
        env={**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(cwd), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def our_warnings(said: str) -> list[str]:
    """Warnings in a command's output, without those Dagster gives of itself."""
    lines = [line for line in said.splitlines() if "Warning" in line]
    return [line for line in lines if not any(other in line for other in _NOT_OURS)]


def test_the_code_location_loads_by_workspace_and_by_dg_without_a_warning(home: Path) -> None:
    said = run("dagster", "definitions", "validate", "-w", "workspace.yaml", cwd=ROOT, home=home)
    assert "All code locations passed validation" in said
    assert our_warnings(said) == []
    said = run("dg", "check", "defs", cwd=ROOT, home=home)
    assert "All definitions loaded successfully" in said
    assert our_warnings(said) == []


def test_the_demo_pipeline_needs_no_environment_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EO_KAFKA_BOOTSTRAP", "EO_PG_DSN"):
        monkeypatch.delenv(name, raising=False)
    loaded = definitions.defs()
    names = {key.to_user_string() for key in loaded.resolve_all_asset_keys()}
    tables = {"flights", "flights/flights", "flights/planes"}
    topics = {"kafka/flights", "kafka/planes"}
    assert names == {*tables, *topics, "flights_offsets", "flights_checkpoints"}


def as_yaml(config: dict[str, Any]) -> str:
    """The pipeline's configuration as attributes; JSON is YAML."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in config.items())


def test_a_launched_job_fills_the_table_another_rewinds_it_and_neither_needs_spark_in_vain(
    bench: Bench, tmp_path: Path, home: Path
) -> None:
    write_project(tmp_path, as_yaml(bench.config), name="events")
    bench.topic.write(250, partitions=range(4))

    said = run("dg", "launch", "--job", "events_job", cwd=tmp_path, home=home)

    assert "RUN_SUCCESS" in said
    assert said.count("Materialized value events_offsets") == 4
    assert said.count("Materialized value events_checkpoints") == 3
    assert said.count("ASSET_CHECK_EVALUATION") == 2
    bench.table.assert_holds_once(bench.topic.written)
    nowhere = "sc://127.0.0.1:1"
    again = run(
        "dg",
        "launch",
        "--assets",
        "events,events_offsets",
        cwd=tmp_path,
        home=home,
        SPARK_REMOTE=nowhere,
    )
    assert "Nothing to read: version 3 is up to date with Kafka." in again
    assert "RUN_SUCCESS" in again

    config = {"to": {"version": 1}, "reason": "a trial", "dry_run": False}
    run(
        "dg",
        "launch",
        "--job",
        "events_rewind",
        "--config-json",
        json.dumps(config),
        cwd=tmp_path,
        home=home,
        SPARK_REMOTE=nowhere,
    )
    assert bench.table.query("select count(*) from events") == [(100,)]
    replayed = run(
        "dg",
        "launch",
        "--assets",
        "events_checkpoints",
        "--partition-range",
        "1...1",
        cwd=tmp_path,
        home=home,
    )
    assert "replay of 1, 100 records, 100 rows" in replayed
    assert bench.table.query("select max(version) from eo_ledger") == [(5,)]


_KILLED = """\
from contextvars import ContextVar

from eo_pipeline import crashpoints
from eo_pipeline.testing import crash_at

# in every context that Dagster runs a step in
dies = crash_at(crashpoints.CrashPoint.PRE_COMMITTED, 2)
crashpoints._HOOK = ContextVar("dies", default=dies)
"""


def test_a_run_in_a_fresh_folder_goes_on_where_a_killed_one_left_off(
    bench: Bench, bucket: Bucket, tmp_path: Path
) -> None:
    """Scenario: what a launcher of containers does: each run is a process with a disk of its own,
    gone when it ends. The first is killed between its promise and its commit. Outcome: the next
    commits what was promised, reads on, and every record is there once.
    """
    staging = f"{bucket.uri}/staging"
    document = as_yaml({**bench.config, "staging": staging, "storage": bucket.document()})
    bench.topic.write(350, partitions=range(4))
    disks = [tmp_path / "first", tmp_path / "second"]
    told = [_on_a_disk_of_its_own(disks[0], document, killed=True)]
    assert bench.table.versions() == [0, 1]
    shutil.rmtree(disks[0])

    told.append(_on_a_disk_of_its_own(disks[1], document))

    assert "version 2" in told[1]
    assert bench.table.versions() == [0, 1, 2, 3, 4]
    bench.table.assert_holds_once(bench.topic.written)
    # the second was what the first had promised: the same ranges, by the run that was killed
    runs = bench.table.query("select version, run_id from eo_ledger order by version")
    by_version = dict(runs)
    assert by_version[2] == by_version[1] != by_version[3]


def _on_a_disk_of_its_own(disk: Path, document: str, *, killed: bool = False) -> str:
    """One run by Dagster's own command; project, home, DAGSTER_HOME, cwd and /tmp are there."""
    project, home, work = disk / "project", disk / "home", disk / "work"
    for folder in (project, home, work):
        folder.mkdir(parents=True)
    (home / "dagster.yaml").write_text(DAGSTER_YAML.read_text())
    package = write_project(project, document, name="events")
    if killed:
        definitions = package / "definitions.py"
        definitions.write_text(_KILLED + definitions.read_text())
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("dagster")),
            *("job", "execute", "-m", f"{package.name}.definitions", "-j", "events_job"),
        ],
        cwd=work,
        env={
            **os.environ,
            **dict.fromkeys(("HOME", "TMPDIR"), str(home)),
            "DAGSTER_HOME": str(home),
            "PYTHONPATH": f"{project}:{ROOT}",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == (-signal.SIGKILL if killed else 0), said
    return said

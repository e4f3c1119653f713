"""Whoever waits for a run hears what it does, and how far it is."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from eo_pipeline import progress
from tests.support.engine import Bench


def heard(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "eo_pipeline.progress" and record.levelno >= level
    ]


@pytest.fixture
def listening(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "eo_pipeline.progress")
    return caplog


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silences are short, so that a test need not be long."""
    monkeypatch.setattr(progress, "QUIET_SECONDS_MAX", 0.05)


def until(listening: pytest.LogCaptureFixture, wanted: str) -> None:
    for _ in range(200):
        if any(wanted in text for text in heard(listening)):
            return
        threading.Event().wait(0.05)
    raise AssertionError(heard(listening))


def test_a_phase_that_lasts_says_so_again_with_how_far_it_is(
    listening: pytest.LogCaptureFixture, impatient: None
) -> None:
    with progress.phase("copying"):
        until(listening, "copying: 0 s")
        progress.current().advance(3, 8, "rows sent")
        until(listening, "copying: 3 of 8 rows sent, 0 s")


def test_a_phase_within_another_speaks_alone_and_none_speaks_after_its_end(
    listening: pytest.LogCaptureFixture, impatient: None
) -> None:
    with progress.phase("outer"), progress.phase("inner"):
        until(listening, "inner: 0 s")
    said = len(heard(listening))
    threading.Event().wait(0.3)
    assert "outer: 0 s" not in heard(listening)
    assert len(heard(listening)) == said


def test_of_what_is_usually_short_is_heard_only_if_it_is_not(
    listening: pytest.LogCaptureFixture, impatient: None
) -> None:
    with progress.phase("asking", usually_short=True):
        assert heard(listening) == []
        assert heard(listening, logging.DEBUG) == ["asking"]
        until(listening, "asking: 0 s")


def test_a_run_says_what_it_will_read_then_each_phase(
    bench: Bench, listening: pytest.LogCaptureFixture
) -> None:
    bench.topic.write(60, partitions=(0, 1))
    bench.pipeline().run()
    name = bench.topic.name
    phases = [text.removeprefix("events: ") for text in heard(listening)]
    assert phases == [
        "version 0: committing (start) to events",
        f"version 1 will read 60 offsets: {name}[0] 0-30, {name}[1] 0-30",
        "version 1: reading 60 offsets and staging their rows",
        "version 1: staged 60 rows of 60 records",
        "version 1: committing with 60 rows to events",
    ]
    listening.clear()
    bench.pipeline().run()
    assert heard(listening) == []


#: Silences are short here, too.
_PROGRAM = """
from eo_pipeline import progress
progress.QUIET_SECONDS_MAX = 0.1
from eo_pipeline.cli import main
main()
"""


def test_with_a_spark_of_its_own_a_run_says_that_it_starts_and_how_many_tasks_are_done(
    bench: Bench, tmp_path: Path
) -> None:
    bench.topic.write(60, partitions=range(4))
    slow = "tests.runs.transforms:a_tenth_of_a_second_each"
    document = tmp_path / "pipeline.yaml"
    document.write_text(yaml.safe_dump({**bench.config, "transform": slow}))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "run", "-f", str(document)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(__file__).parents[2],
        env={k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"},
    )
    assert done.returncode == 0, done.stderr
    assert "Spark is starting (local[*])\n" in done.stderr
    assert re.search(r"\d of \d Spark tasks done", done.stderr), done.stderr
    assert "version 1" in done.stdout
    assert "reading" not in done.stdout


def test_a_long_job_says_how_many_of_its_tasks_are_done(
    bench: Bench, listening: pytest.LogCaptureFixture, impatient: None
) -> None:
    bench.topic.write(100, partitions=range(4))
    bench.pipeline(transform="tests.runs.transforms:a_tenth_of_a_second_each").run()
    told = [
        re.search(r"staging their rows: (\d) of \d Spark tasks done", t) for t in heard(listening)
    ]
    done = [int(found[1]) for found in told if found]
    assert done
    assert done == sorted(done)

"""What the engine says is in the log of the run, in any project, and there once."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

from eo_pipeline import progress
from eo_pipeline.dagster.naming import DagsterPipeline
from tests.dagster.conftest import AT_ONCE
from tests.dagster.steps import launch, log_lines, materialize
from tests.support.engine import Bench

READING = "version 1: reading 20 offsets and staging their rows"


def said_at_once(lines: str, sentence: str) -> int:
    """How often it begins something: of what lasts long the same is said again, with seconds."""
    return sum(line.endswith(sentence) for line in lines.splitlines())


@pytest.mark.core
def test_a_step_says_each_phase_of_a_checkpoint(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(20)
    lines = log_lines(materialize(declared, instance), instance)
    said = (f"version 1 will read 20 offsets: {bench.topic.name}[0] 0-20", READING)
    for each in (*said, "staged 20 rows of 20 records", "committing with 20 rows to events"):
        assert said_at_once(lines, each) == 1, lines


def test_an_instance_that_takes_the_loggers_itself_has_each_line_once(
    bench: Bench, declared: DagsterPipeline, tmp_path: Path
) -> None:
    bench.topic.write(20)
    takes = {"python_logs": {"managed_python_loggers": ["root"], "python_log_level": "INFO"}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=takes) as instance:
        lines = log_lines(materialize(declared, instance), instance)
    assert said_at_once(lines, READING) == 1


def test_a_step_that_waits_long_for_spark_is_not_silent(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS_MAX", 0.1)
    bench.topic.write(40, partitions=range(4))
    slow = bench.pipeline(transform="tests.runs.transforms:a_tenth_of_a_second_each")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        lines = log_lines(materialize(DagsterPipeline(slow, AT_ONCE), instance), instance)
    assert re.search(r"staging their rows: \d of \d Spark tasks done, \d+ s", lines), lines


def test_an_audit_says_what_it_reads_once(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(20)
    declared.pipeline.run()
    lines = log_lines(launch(declared, instance, "audit"), instance)
    assert said_at_once(lines, "reading 20 offsets of 1 checkpoints again") == 1

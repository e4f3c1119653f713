"""What Dagster shows names what is there: jobs and assets, no shell commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

import eo_pipeline
from eo_pipeline.dagster.launchpad import RewindRequest, launchpad
from eo_pipeline.dagster.metadata import in_dagster
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.dagster.runs import dead_letters_line, failing, failure_metadata
from eo_pipeline.errors import DataLossError, Loss, TransformError
from eo_pipeline.ledger.entry import Counts
from eo_pipeline.operations.replay import DeadLetter
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.testing import first_entry

#: What nobody can do in Dagster yet.
ONLY_IN_A_SHELL = {"adopt", "as-of", "dead-letters", "set-aside"}


def test_a_failure_that_knows_what_is_lost_says_it_partition_by_partition() -> None:
    lost = [Loss("t", 0, 7, 9, 12, "retention"), Loss("t", 3, 4, None, None, "deleted")]
    told = failure_metadata(DataLossError("my-orders", lost))
    assert (told["error"], told["losses"], told["retryable"]) == ("DataLossError", 2, False)
    assert [dict(row.data) for row in told["lost"].records] == [
        {
            "topic": "t",
            "partition": 0,
            "expected": 7,
            "beginning": 9,
            "end": 12,
            "cause": "retention",
        },
        {
            "topic": "t",
            "partition": 3,
            "expected": 4,
            "beginning": None,
            "end": None,
            "cause": "deleted",
        },
    ]


@pytest.fixture
def declared() -> DagsterPipeline:
    source = {"bootstrap_servers": "h:1", "topics": ["t"], "value_format": "raw"}
    config = {"name": "my-orders", "source": source, "sink": {"type": "console"}}
    return DagsterPipeline(Pipeline.from_config(config), Automation())


class Lenient(Pipeline):
    def dead_letter_rows(self, version: int = 0) -> Iterator[DeadLetter]:
        for offset, error in enumerate(["no number: 'a'\n more", "no number: 'a'", "no JSON"]):
            yield DeadLetter(version, "t", 0, offset, error, None)


def test_dead_letters_are_a_warning_with_the_first_reasons_and_the_command(
    declared: DagsterPipeline,
) -> None:
    lenient = replace(declared, pipeline=Lenient(**dict(declared.pipeline)))
    entry = first_entry("p").with_counts(Counts(dead_letters=1_200))
    assert dead_letters_line(lenient, entry) == (
        "version 0: 1,200 dead letters, for example: no number: 'a'; no JSON. "
        "`eo dead-letters show 0` lists them."
    )


def test_a_failed_step_shows_its_sentence_and_no_stack_of_the_causes(
    declared: DagsterPipeline,
) -> None:
    @dg.op
    def step(context) -> None:  # type: ignore[no-untyped-def]  # Dagster reads no string
        with failing(context, declared):
            try:
                raise ValueError("Spark's plan")
            except ValueError as error:
                raise TransformError("the transform raised") from error

    @dg.job
    def job() -> None:
        step()

    data = job.execute_in_process(raise_on_error=False).failure_data_for_node("step")
    assert data is not None
    assert data.error is not None
    assert "the transform raised" in str(data.user_failure_data)
    assert (data.error.cause, data.error.context) == (None, None)
    assert "Spark's plan" not in str(data)


def test_commands_become_jobs_with_their_fields_and_looks_become_assets(
    declared: DagsterPipeline,
) -> None:
    for text, said in (
        (
            "go on: `eo accept-loss`, Pipeline.accept_loss(), or",
            "the job `my_orders_accept_loss`, or",
        ),
        ("`eo replay 3 5` writes", "the job `my_orders_replay` with `{first: 3, last: 5}` writes"),
        ("`eo checkpoints` lists", "the asset `my-orders_checkpoints` lists"),
        ("by `eo adopt`, Pipeline.adopt().", "by `eo adopt`, Pipeline.adopt()."),
    ):
        assert said in in_dagster(declared, text)


def test_every_command_that_an_error_names_has_its_place_in_dagster(
    declared: DagsterPipeline,
) -> None:
    package = Path(eo_pipeline.__file__).parent
    rooms = ("audit", "batch", "kafka", "operations", "runs", "sinks", "staging")
    files = [package / "errors.py", *(f for room in rooms for f in (package / room).rglob("*.py"))]
    named = {
        found for file in files for found in re.findall(r"`eo ([a-z-]+)[^`]*`", file.read_text())
    }
    assert {"accept-loss", "checkpoints", "replay"} <= named
    kept = {command for command in named if "`eo " in in_dagster(declared, f"`eo {command}`")}
    assert kept <= ONLY_IN_A_SHELL


def test_the_launchpad_of_a_rewind_opens_with_a_dry_run() -> None:
    schema = launchpad(RewindRequest, ["op"]).config_schema
    fields = schema.as_field().config_type.fields  # type: ignore[attr-defined]
    opened = {
        name: f.default_value
        for name, f in fields.items()
        if f.default_provided and f.default_value is not None
    }
    assert opened == {"to": {"version": -1}, "dry_run": True, "reason": ""}

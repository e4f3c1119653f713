"""The job and the schedule that keep a lake table in order. No Kafka, no Spark."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from eo_pipeline.dagster.definitions import without_topics
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.dagster.runs import working_run
from eo_pipeline.pipeline import Pipeline
from tests.dagster.steps import launch, value
from tests.dagster.test_going_back import outputs
from tests.sinks.delta.delta_world import World, world

__all__ = ["world"]


def declared_over(world: World) -> DagsterPipeline:
    source = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], "value_schema": "id BIGINT"}
    pipeline = Pipeline.from_config(
        {"name": world.pipeline, "source": source, "sink": world.sink()}
    )
    return DagsterPipeline(pipeline, Automation(maintenance_schedule="0 3 * * *"))


@pytest.fixture
def instance(tmp_path: Path) -> dg.DagsterInstance:
    return dg.DagsterInstance.ephemeral()


def test_the_job_puts_files_together_and_shows_what_it_did(
    world: World, instance: dg.DagsterInstance
) -> None:
    for _ in range(6):
        world.forward()
    declared = declared_over(world)
    dry = launch(declared, instance, "maintain", dry_run=True)
    assert dry.success
    assert len(world.files()) == 6
    done = launch(declared, instance, "maintain")
    assert done.success
    assert len(world.files()) == 1
    assert value(outputs(done), "files") == 1
    shown = outputs(done)["work"]
    assert isinstance(shown, dg.TableMetadataValue)
    assert [row.data["work"] for row in shown.records] == ["staging", "remove", "compact", "log"]


def test_it_has_a_schedule_of_its_own_and_no_run_waits_for_it(
    world: World, instance: dg.DagsterInstance
) -> None:
    declared = declared_over(world)
    definitions = without_topics(declared)
    [schedule] = definitions.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.name, schedule.cron_schedule) == ("p_maintain_schedule", "0 3 * * *")
    tags = declared.run_tags_of("maintain")
    job = definitions.resolve_job_def("p_maintain")
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags)
    assert working_run(instance, declared) is None

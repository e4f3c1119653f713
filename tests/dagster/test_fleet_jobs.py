"""What Dagster's daemon asks a code location for every minute: few jobs, and each holds its own."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

from eo_pipeline.dagster.definitions import load_pipelines, without_topics
from eo_pipeline.dagster.jobs import OPERATIONS, build_fleet_operations
from eo_pipeline.dagster.launchpad import job_of_many
from eo_pipeline.dagster.metadata import in_dagster
from eo_pipeline.dagster.naming import Automation, DagsterPipeline, Fleet
from eo_pipeline.dagster.runs import unfinished_runs
from eo_pipeline.pipeline import Pipeline
from tests.dagster.projects import write_project
from tests.dagster.steps import materialize, versions
from tests.support.engine import Bench

DOCUMENT = """
name: %s
source: {bootstrap_servers: "broker:9092", topics: [orders], value_format: raw}
sink: {type: postgres, dsn: "postgresql://host/db", table: %s}
"""
BY_HAND = {each.name for each in OPERATIONS}


def loaded(folder: Path, fleet: Fleet, *documents: str) -> dg.RepositoryDefinition:
    definitions = load_pipelines(write_project(folder, *documents), fleet=fleet)
    dg.Definitions.validate_loadable(definitions)
    return definitions.get_repository_def()


def jobs_asked_for(repository: dg.RepositoryDefinition) -> set[str]:
    """What the daemon fetches one by one whenever it looks at the code location again."""
    found = RepositorySnap.from_def(repository, defer_snapshots=True).get_job_refs()
    return {each.name for each in found if not each.name.startswith("__")}


def size_of(repository: dg.RepositoryDefinition, job: str) -> int:
    """Bytes of a job as the daemon gets it."""
    return len(serialize_value(repository.get_job(job).get_job_snapshot()))


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return importable(tmp_path, "few", monkeypatch)


@pytest.fixture
def lot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return importable(tmp_path, "lot", monkeypatch)


def importable(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a name that no other test uses, and as long as the other's."""
    made = folder / f"{folder.name}_{name}"
    made.mkdir()
    monkeypatch.syspath_prepend(str(made))
    return made


def test_a_further_pipeline_is_one_job_more_for_the_daemon_and_makes_no_other_job_larger(
    few: Path, lot: Path
) -> None:
    fleet = Fleet(name="sales")
    two = loaded(few, fleet, *(DOCUMENT % (n, n) for n in ("a", "b")))
    names = [f"p{number}" for number in range(8)]
    nine = loaded(lot, fleet, *(DOCUMENT % (n, n) for n in ["a", *names]))

    by_hand = {f"sales_{each}" for each in BY_HAND}
    assert jobs_asked_for(two) == {"a_job", "b_job"} | by_hand
    assert jobs_asked_for(nine) == {"a_job", *(f"{n}_job" for n in names)} | by_hand
    assert size_of(two, "a_job") == size_of(nine, "a_job")


def test_a_document_with_a_pool_or_tags_of_its_own_keeps_its_jobs_and_a_fleet_may_keep_all(
    few: Path, lot: Path
) -> None:
    shared = DOCUMENT % ("a", "a")
    pooled = DOCUMENT % ("b", "b") + "pool: mine\n"
    tagged = DOCUMENT % ("c", "c") + "op_tags: {dagster/priority: '3'}"
    mixed = loaded(few, Fleet(name="sales"), shared, pooled, tagged)
    owners = {"sales", "b", "c"}
    assert jobs_asked_for(mixed) == {"a_job", "b_job", "c_job"} | {
        f"{owner}_{each}" for owner in owners for each in BY_HAND
    }
    alone = loaded(lot, Fleet(name="sales", jobs="each"), shared)
    assert jobs_asked_for(alone) == {"a_job"} | {f"a_{each}" for each in BY_HAND}


def test_a_pipelines_job_keeps_what_else_the_code_location_has_for_resources(
    tmp_path: Path,
) -> None:
    made = [without_topics(raw(tmp_path, name)) for name in ("a", "b")]
    mine = dg.ResourceDefinition.hardcoded_resource("mine")
    together = dg.Definitions.merge(*made, dg.Definitions(resources={"mine": mine}))
    resources = together.resolve_job_def("a_job").resource_defs
    assert resources.keys() == {"a_spark", "io_manager", "mine"}


def raw(folder: Path, name: str, fleet: Fleet | None = None, **automation: str) -> DagsterPipeline:
    source = {"bootstrap_servers": "broker:9092", "topics": ["t"], "value_format": "raw"}
    sink = {"type": "delta", "path": str(folder / name)}
    pipeline = Pipeline.from_config({"name": name, "source": source, "sink": sink})
    return DagsterPipeline(pipeline, Automation(**automation), fleet=fleet)


def test_errors_links_and_schedules_name_the_fleets_job_and_the_pipeline(tmp_path: Path) -> None:
    fleet = Fleet(name="sales")
    member = raw(tmp_path, "my-orders", fleet, maintenance_schedule="0 3 * * *")
    assert in_dagster(member, "see `eo rewind 3`") == (
        "see the job `sales_rewind` with `{dry_run: false, pipeline: my-orders, to: {version: 3}}`"
    )
    assert in_dagster(member, "then `eo run`") == "then the job `my_orders_job`"
    [schedule] = without_topics(member).schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    with dg.build_schedule_context() as context:
        [request] = schedule.evaluate_tick(context).run_requests or []
    assert schedule.job_name == "sales_maintain"
    assert request.run_config == {"pipeline": "my-orders"}
    assert request.tags["eo/pipeline"] == "my-orders"


def test_a_fleets_rewind_is_of_the_pipeline_that_is_named_and_of_no_other(
    bench: Bench, instance: dg.DagsterInstance
) -> None:
    fleet = Fleet(name="sales")
    members = [member_of(bench, fleet, name) for name in ("orders", "returns")]
    bench.topic.write(10)
    for each in members:
        assert materialize(each, instance).success
    orders, returns = members
    rewind = next(j for j in build_fleet_operations(fleet, members) if j.name == "sales_rewind")
    with pytest.raises(dg.DagsterInvalidConfigError, match="pipeline_of_sales"):
        rewind.execute_in_process(run_config={"pipeline": "orders-2", "to": {"version": 0}})

    config = {"pipeline": "orders", "to": {"version": 0}, "dry_run": False}
    result = rewind.execute_in_process(run_config=config, instance=instance)

    assert result.success
    assert versions(instance, orders.offsets) == [0, 1, 2]
    assert versions(instance, returns.offsets) == [0, 1]
    assert orders.pipeline.status().lag == 10
    [run] = instance.get_runs(dg.RunsFilter(tags=orders.run_tags_of("rewind")))
    assert run.run_id == result.run_id


def member_of(bench: Bench, fleet: Fleet, name: str) -> DagsterPipeline:
    sink = {**bench.config["sink"], "table": name}
    config = {**bench.config, "name": name, "sink": sink}
    return DagsterPipeline(Pipeline.from_config(config), Automation(), fleet=fleet)


def test_a_fleets_replay_can_start_the_spark_of_each_of_its_pipelines(tmp_path: Path) -> None:
    fleet = Fleet(name="sales")
    members = [raw(tmp_path, name, fleet) for name in ("a", "b")]
    [replaying] = [each for each in OPERATIONS if each.name == "replay"]
    steps = [node.definition for node in job_of_many(fleet, members, replaying).nodes]
    assert len(steps) == 2
    for step in steps:
        assert isinstance(step, dg.OpDefinition)
        assert step.required_resource_keys == {"a_spark", "b_spark"}


def test_a_run_of_a_fleets_job_that_works_is_seen_as_its_pipelines(
    instance: dg.DagsterInstance,
) -> None:
    run = dg.DagsterRun(
        job_name="sales_rewind",
        run_id=f"{1:032d}",
        tags={"eo/operation": "rewind", "eo/pipeline": "orders"},
        status=dg.DagsterRunStatus.STARTED,
    )
    instance.add_run(run)
    assert unfinished_runs(instance, ["orders", "returns"]).keys() == {"orders"}

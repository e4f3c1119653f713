"""The jobs of a pipeline: rewind, fork, audit. What they do, and what Dagster then shows."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from eo_pipeline.dagster.checks import audit_key
from eo_pipeline.dagster.definitions import without_topics
from eo_pipeline.dagster.launchpad import (
    AuditRequest,
    ForkRequest,
    LossRequest,
    ReplayRequest,
    RewindRequest,
    fork_sink,
)
from eo_pipeline.dagster.naming import OPERATION_TAG, Automation, DagsterPipeline
from eo_pipeline.dagster.runs import pause_after_failures
from eo_pipeline.dagster.sensors import reconcile
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.config import Sink
from tests.dagster.conftest import AT_ONCE
from tests.dagster.steps import (
    events,
    failure,
    keys,
    launch,
    log_lines,
    materialize,
    value,
    versions,
)
from tests.dagster.test_sensors import skipped
from tests.support.engine import Bench


@pytest.fixture
def declared(bench: Bench) -> DagsterPipeline:
    """The bench's pipeline without files between, which cost more than they show here."""
    return DagsterPipeline(bench.pipeline(inline_records=1_000), AT_ONCE)


@pytest.fixture
def filled(bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance) -> Bench:
    """Versions 1 to 3, of 100, 100 and 50 records, made by one run."""
    bench.topic.write(250, partitions=range(4))
    assert materialize(declared, instance).success
    return bench


def outputs(result: dg.ExecuteInProcessResult) -> dict[str, dg.MetadataValue]:
    """What a job said of its outputs: of its plan, and of what it did."""
    found = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return {k: v for event in found for k, v in event.step_output_data.metadata.items()}


@pytest.mark.core
def test_a_rewind_takes_rows_and_partitions_away_and_shows_in_the_history(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    dry = launch(declared, instance, "rewind", to={"version": 1}, dry_run=True)
    assert value(outputs(dry), "rows") == 150
    newest = launch(declared, instance, "rewind")  # as the Launchpad opens
    assert value(outputs(newest), "rows") == 50
    said = "Dry run: nothing was changed. Plan: rewind of events from version 3 to 2"
    assert said in log_lines(newest, instance)
    assert not [e for e in newest.all_events if e.is_step_skipped]
    assert versions(instance, declared.offsets) == [0, 1, 2, 3]

    result = launch(
        declared, instance, "rewind", to={"version": 1}, reason="a wrong rate", dry_run=False
    )

    assert result.success
    assert filled.table.query("select _eo_checkpoint, count(*) from events group by 1") == [
        (1, 100)
    ]
    assert keys(instance, declared) == [1]
    assert versions(instance, declared.offsets) == [0, 1, 2, 3, 4]
    shown = events(instance, declared.offsets)[-1].metadata
    assert [value(shown, k) for k in ("operation", "target", "reason", "asked_by", "run_id")] == [
        "rewind",
        "1",
        "a wrong rate",
        f"dagster run {result.run_id}",
        result.run_id,
    ]
    assert value(events(instance, declared.table)[-1].metadata, "dagster/row_count") == 100
    plan = outputs(result)["checkpoints_table"]
    assert isinstance(plan, dg.TableMetadataValue)
    assert [row.data["version"] for row in plan.records] == [2, 3]
    [run] = instance.get_runs(dg.RunsFilter(tags=declared.run_tags_of("rewind")), limit=1)
    assert run.run_id == result.run_id
    assert "event log is complete up to version 4" in skipped(reconcile(declared, instance, None))
    # the next run reads again, once
    assert all(c.passed for c in materialize(declared, instance).get_asset_check_evaluations())
    filled.table.assert_holds_once(filled.topic.written)
    assert keys(instance, declared) == [1, 5, 6]


def test_a_rewind_that_cannot_be_is_refused_with_a_sentence_and_stops_no_sensor(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    step = f"{declared.op}_rewind_plan"
    for asked, said in (
        ({"time": "yesterday"}, "to.time: Invalid isoformat string: 'yesterday'; write it as 2026"),
        ({"time": "2001-01-31T12:00:00Z"}, "did not exist at 2001-01-31"),
        ({"version": 7}, "is no version 7. the asset `events_checkpoints` lists them"),
        ({"version": 3}, "stands at version 3 already"),
        ({"version": -1}, "to.version: -1 is for dry runs only"),
    ):
        result = launch(declared, instance, "rewind", to=asked, dry_run=False)
        assert said in failure(result, step)
        assert not [e for e in result.all_events if e.is_step_up_for_retry]
    assert declared.pipeline.history()[-1].version == 3
    [record] = instance.get_run_records(limit=1)
    assert record.end_time is not None
    assert pause_after_failures(instance, declared, now=record.end_time) is None


@pytest.mark.core
def test_a_fork_begins_where_the_checkpoint_stood_and_says_how_to_declare_it(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    same = launch(declared, instance, "fork", name="events_b", at={"version": 1}, sink={})
    assert "identical to the sink of" in failure(same, f"{declared.op}_fork_plan")

    result = launch(
        declared, instance, "fork", name="events_b", at={"version": 1}, sink={"table": "events_b"}
    )

    assert result.success
    assert "pipeline.forked('events_b', sink)" in str(value(outputs(result), "defs.yaml"))
    sink = fork_sink(declared.pipeline, {"table": "events_b"})
    forked = Pipeline.from_config({**dict(declared.pipeline), "name": "events_b", "sink": sink})
    assert forked.run().rows == 150
    assert filled.table.query("select count(*) from events_b") == [(150,)]
    assert versions(instance, declared.offsets) == [0, 1, 2, 3]
    again = launch(
        declared, instance, "fork", name="events_b", at={"version": 1}, sink={"table": "events_b"}
    )
    assert "has a ledger already" in failure(again, f"{declared.op}_fork")


def test_a_forks_sink_is_the_own_one_changed_or_a_whole_one_and_errors_hold_no_secret(
    declared: DagsterPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORK_TABLE", "other")
    changed = fork_sink(declared.pipeline, {"table": "${FORK_TABLE}"})
    assert isinstance(changed, Sink)
    assert changed.table_name == "other"
    assert {**dict(changed), "table": ""} == {**dict(declared.pipeline.sink), "table": ""}
    whole = fork_sink(declared.pipeline, {"type": "delta", "path": str(tmp_path)})
    assert type(whole).__name__ == "DeltaSink"
    with pytest.raises(ConfigError, match="tabel"):
        fork_sink(declared.pipeline, {"tabel": "x"})
    with pytest.raises(ConfigError, match="NOT_SET"):
        fork_sink(declared.pipeline, {"table": "${NOT_SET}"})


def test_a_loss_that_is_not_there_and_one_without_a_reason_are_refused(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    step = f"{declared.op}_accept_loss"
    none = launch(declared, instance, "accept_loss", reason=" ")
    assert "say why the loss is acceptable" in failure(none, step)
    nothing = launch(declared, instance, "accept_loss", reason="r")
    assert "there is no loss to accept" in failure(nothing, step)


def test_an_audit_passes_and_one_that_fails_names_the_repair(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    filled.table.execute("delete from events where _eo_checkpoint = 2 and _eo_partition = 1")

    [failed] = check(declared, instance).get_asset_check_evaluations()

    assert not failed.passed
    assert "missing" in str(failed.description)
    repair = "the job `events_replay` with `{first: 2, last: 2}`"
    assert repair in str(failed.description)
    assert repair in str(value(failed.metadata, "repair"))
    assert "`eo " not in str(failed)
    assert launch(declared, instance, "replay", versions=[2]).success
    [passed] = check(declared, instance).get_asset_check_evaluations()
    assert passed.passed


def shown(declared: DagsterPipeline, instance: dg.DagsterInstance) -> AssetCheckExecutionRecord:
    """What Dagster shows of the audit."""
    key = audit_key(declared)
    return instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]


def test_the_job_that_audits_evaluates_the_check_and_hands_over_what_repairs_the_table(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    assert launch(declared, instance, "audit").success
    record = shown(declared, instance)
    assert record.status is AssetCheckExecutionRecordStatus.SUCCEEDED
    assert record.evaluation
    assert value(record.evaluation.metadata, "missing_rows") == 0
    assert record.evaluation.description == (
        "checkpoints 1 to 3: each of 250 records is a row or a dead letter (250 rows, 0 dead "
        "letters)"
    )
    filled.table.execute("delete from events where _eo_checkpoint in (1, 3) and _eo_partition = 1")
    filled.table.execute(
        "insert into events select * from events where _eo_checkpoint = 2 and _eo_partition = 3"
    )

    failed = launch(declared, instance, "audit")

    assert "missing" in failure(failed, f"{declared.op}_audit")
    record = shown(declared, instance)
    assert record.status is AssetCheckExecutionRecordStatus.FAILED
    assert record.run_id == failed.run_id
    assert record.evaluation
    told = record.evaluation.metadata
    assert [value(told, k) for k in ("missing_rows", "duplicated_rows")] == [38, 25]
    missing, doubled = told["missing_records"], told["duplicated_records"]
    assert isinstance(missing, dg.TableMetadataValue)
    assert isinstance(doubled, dg.TableMetadataValue)
    assert {row.data["partition"] for row in missing.records} == {1}
    assert {(row.data["partition"], row.data["found"]) for row in doubled.records} == {(3, 2)}
    assert value(told, "repair_job") == "events_replay"
    document = str(value(told, "repair_config")).removeprefix("```yaml").removesuffix("```")
    config = yaml.safe_load(document)
    assert config == {"versions": [1, 2, 3], "reason": "audit of version 3"}
    # what is handed over does it
    assert launch(declared, instance, "replay", **config).success
    assert launch(declared, instance, "audit").success
    assert shown(declared, instance).status is AssetCheckExecutionRecordStatus.SUCCEEDED


def test_an_audit_that_could_not_look_shows_as_one_that_failed_to_look(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance, bench: Bench
) -> None:
    away = DagsterPipeline(
        bench.pipeline(
            source={
                **bench.config["source"],
                "bootstrap_servers": "127.0.0.1:9",
                "request_timeout": 1,
            }
        ),
        Automation(retries=0),
    )
    failed = launch(away, instance, "audit")
    [record] = instance.event_log_storage.get_asset_check_execution_history(
        audit_key(declared), limit=1
    )
    assert record.status is AssetCheckExecutionRecordStatus.PLANNED
    assert record.run_id == failed.run_id, "the run that failed, for who wants to know why"


def test_an_audit_behind_a_step_that_failed_shows_its_last_result(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance, bench: Bench
) -> None:
    """Scenario: Materialize in the UI, which plans the checks too, while Kafka is away."""

    def shown() -> tuple[bool, dg.AssetCheckSeverity, str | None]:
        [record] = instance.event_log_storage.get_asset_check_execution_history(
            audit_key(declared), limit=1
        )
        assert record.event is not None
        assert record.event.dagster_event is not None
        result = record.event.dagster_event.asset_check_evaluation_data
        return result.passed, result.severity, result.description

    source = {**bench.config["source"], "bootstrap_servers": "127.0.0.1:9", "request_timeout": 1}
    away = DagsterPipeline(bench.pipeline(source=source), Automation(retries=0))
    button = without_topics(away).resolve_implicit_global_asset_job_def()

    def press() -> None:
        keys = [declared.table, declared.offsets]
        pressed = button.execute_in_process(
            instance=instance, asset_selection=keys, raise_on_error=False
        )
        assert not pressed.success

    press()
    passed, severity, said = shown()
    assert (passed, severity) == (False, dg.AssetCheckSeverity.WARN)
    assert said == "Not evaluated: the run failed before this check."
    assert check(declared, instance).success
    audited = shown()
    assert audited[0]
    press()
    assert shown() == audited


def test_a_dry_run_waits_for_nobody_and_what_changes_something_waits_in_the_pool(
    declared: DagsterPipeline,
) -> None:
    for operation in ("rewind", "replay", "fork"):
        steps = without_topics(declared).resolve_job_def(f"events_{operation}").all_node_defs
        pools = {step.name: step.pool for step in steps if isinstance(step, dg.OpDefinition)}
        assert pools == {
            f"eo_events_{operation}_plan": None,
            f"eo_events_{operation}": declared.pool,
        }


def test_a_run_that_materializes_does_not_audit_however_it_was_started(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    by_job = materialize(declared, instance)
    names = {check.check_name for check in by_job.get_asset_check_evaluations()}
    assert "audit" not in names | {e.step_key for e in by_job.all_events}
    filled.topic.write(5)
    button = without_topics(declared).resolve_implicit_global_asset_job_def()
    done = button.execute_in_process(
        instance=instance, asset_selection=[declared.table, declared.offsets]
    )
    assert done.success
    assert "audit" not in {c.check_name for c in done.get_asset_check_evaluations()}
    assert "Audit skipped: this run materializes" in log_lines(done, instance)


def check(declared: DagsterPipeline, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """The audit of the table asset, started by itself as the UI does."""
    job = dg.define_asset_job("check", dg.AssetSelection.checks(audit_key(declared)))
    definitions = dg.Definitions.merge(without_topics(declared), dg.Definitions(jobs=[job]))
    return definitions.resolve_job_def("check").execute_in_process(instance=instance)


@pytest.mark.core
@pytest.mark.parametrize(
    ("operation", "config", "wrong"),
    [
        ("rewind", {}, {"to": {"version": "one"}}),
        ("rewind", {"to": {"time": "2026-01-31T12:00:00Z"}, "dry_run": True}, {"to": {}}),
        ("rewind", {"to": {"version": 1}, "reason": "r"}, {"to": {"version": 1, "time": "x"}}),
        ("replay", {"versions": [1, 3]}, {"versions": 1}),
        ("replay", {"first": 1, "last": 3}, {"first": "one"}),
        ("fork", {"name": "b", "at": {"version": 1}, "sink": {"table": "b"}}, {"name": "b"}),
        ("accept_loss", {"reason": "r", "topics": ["t"]}, {}),
        ("audit", {}, {"last": "all"}),
    ],
)
def test_the_launchpad_takes_flat_fields_and_says_what_is_wrong_while_they_are_typed(
    declared: DagsterPipeline, operation: str, config: dict[str, object], wrong: dict[str, object]
) -> None:
    job = without_topics(declared).resolve_job_def(f"events_{operation}")
    assert job.tags[OPERATION_TAG] == operation
    assert dg.validate_run_config(job, config)
    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(job, wrong)


def test_every_field_is_described_and_none_has_a_default_that_means_nothing() -> None:
    for request in (RewindRequest, ReplayRequest, ForkRequest, LossRequest, AuditRequest):
        for name, field in request.model_fields.items():
            assert field.description, name
            safe = (RewindRequest, "to"), (RewindRequest, "dry_run")
            empty = field.default in (None, False, "")
            assert field.is_required() or empty or (request, name) in safe, name

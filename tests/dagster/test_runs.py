"""Runs of a real pipeline in Dagster: what is materialized, retried, reported again."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from eo_pipeline.dagster.assets import build_asset
from eo_pipeline.dagster.definitions import without_topics
from eo_pipeline.dagster.naming import PIPELINE_TAG, Automation, DagsterPipeline
from eo_pipeline.errors import LedgerBehindError, SinkUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.pipeline import Pipeline
from tests.dagster.conftest import AT_ONCE
from tests.dagster.steps import (
    DiesOnce,
    NoSpark,
    events,
    failure,
    log_lines,
    materialize,
    transactions,
    value,
    versions,
)
from tests.support.engine import Bench


def dies_once(bench: Bench, after: int) -> DagsterPipeline:
    pipeline = bench.pipeline()
    fields: dict[str, Any] = {name: getattr(pipeline, name) for name in type(pipeline).model_fields}
    return DagsterPipeline(DiesOnce(**fields, after=after), AT_ONCE)


class Fails(Pipeline):
    """A pipeline whose every run fails in the same way."""

    error: Exception
    runs: list[str]

    @classmethod
    def of(cls, pipeline: Pipeline, error: Exception, runs: list[str]) -> Fails:
        fields = {name: getattr(pipeline, name) for name in type(pipeline).model_fields}
        return cls.model_construct(**fields, error=error, runs=runs)

    def run(self, **_: Any) -> Any:
        self.runs.append("run")
        raise self.error


def ids(entries: list[LedgerEntry]) -> list[str]:
    return [entry.transaction_id for entry in entries]


@pytest.mark.core
def test_every_checkpoint_of_a_run_is_a_materialization_of_both_assets(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(250, partitions=range(4))

    result = materialize(declared, instance)

    assert result.success
    assert versions(instance, declared.offsets) == [0, 1, 2, 3]
    assert versions(instance, declared.table) == [1, 2, 3]
    assert transactions(instance, declared.offsets) == ids(declared.pipeline.history())
    bench.table.assert_holds_once(bench.topic.written)


def test_the_events_are_those_of_the_assets_as_they_were_renamed(
    bench: Bench, instance: dg.DagsterInstance
) -> None:
    declared = DagsterPipeline(
        bench.pipeline(),
        AT_ONCE,
        lambda spec, _: spec.replace_attributes(key=spec.key.with_prefix("sales")),
    )
    bench.topic.write(150, partitions=range(4))

    assert materialize(declared, instance).success

    assert versions(instance, dg.AssetKey(["sales", "events"])) == [1, 2]
    assert versions(instance, dg.AssetKey(["sales", "events_offsets"])) == [0, 1, 2]
    assert not instance.fetch_materializations(dg.AssetKey("events"), limit=1).records


def test_an_edited_transform_marks_the_table_and_each_checkpoint_says_which_made_it(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(50)
    materialize(declared, instance)
    assert table_status(declared, instance) == ("FRESH", [])

    edited = DagsterPipeline(bench.pipeline(transform="tests.runs.transforms:shouting"), AT_ONCE)
    assert table_status(edited, instance) == ("STALE", ["has a new code version"])

    bench.topic.write(50)
    materialize(edited, instance)
    assert table_status(edited, instance) == ("FRESH", [])
    made_by = [entry.details.get("code_version") for entry in edited.pipeline.history()]
    assert made_by == [None, declared.pipeline.code_version, edited.pipeline.code_version]
    assert [value(e.metadata, "code_version") for e in events(instance, edited.checkpoints)] == (
        made_by[1:]
    )


def table_status(declared: DagsterPipeline, instance: dg.DagsterInstance) -> tuple[str, list[str]]:
    """What the UI shows beside the table, and why."""
    graph = without_topics(declared).resolve_asset_graph()
    loading = LoadingContextForTest(instance)
    resolver = CachingStaleStatusResolver(instance, graph, loading)
    causes = [cause.reason for cause in resolver.get_stale_causes(declared.table)]
    return resolver.get_status(declared.table).value, causes


@pytest.mark.core
def test_the_metadata_says_what_was_read_and_how_fast(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(150, partitions=range(4))
    result = materialize(declared, instance)

    offsets, table = (events(instance, k)[-1].metadata for k in (declared.offsets, declared.table))
    assert [value(offsets, k) for k in ("version", "operation", "records")] == ["2", "forward", 50]
    assert value(offsets, "run_id") == result.run_id
    assert (value(offsets, "lag_before"), value(offsets, "lag_after")) == (50, "0")
    assert isinstance(value(offsets, "seconds"), float)
    assert isinstance(value(offsets, "records_per_second"), int)
    ranges = offsets["ranges"]
    assert isinstance(ranges, dg.TableMetadataValue)
    assert sum(int(str(row.data["offsets"])) for row in ranges.records) == 50
    assert value(table, "dagster/row_count") == 150
    schema = table["dagster/column_schema"]
    assert isinstance(schema, dg.TableSchemaMetadataValue)
    types = {column.name: column.type for column in schema.schema.columns}
    assert types["id"] == "bigint", "as PostgreSQL calls it"
    assert types["name"] == "text"
    assert types["_eo_checkpoint"] == "bigint"
    lineage = table["dagster/column_lineage"]
    assert isinstance(lineage, dg.TableColumnLineageMetadataValue)
    [source] = lineage.column_lineage.deps_by_column["name"]
    assert (source.asset_key, source.column_name) == (declared.topics[0], "name")


@pytest.mark.core
def test_nothing_new_is_a_success_without_events_and_without_spark(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(20)
    materialize(declared, instance)
    before = versions(instance, declared.offsets)

    result = materialize(declared, instance, spark=NoSpark())

    assert result.success
    assert versions(instance, declared.offsets) == before
    assert "Nothing to read: version 1 is up to date with Kafka." in log_lines(result, instance)


@pytest.mark.core
def test_a_step_that_died_before_it_could_report_reports_when_it_is_tried_again(
    bench: Bench, instance: dg.DagsterInstance
) -> None:
    """Scenario: the second of three checkpoints is committed, and the step is gone before it could
    say so. Outcome: the retry reads the third only; Dagster shows every version once.
    """
    bench.topic.write(250, partitions=range(4))
    declared = dies_once(bench, after=2)

    result = materialize(declared, instance)

    assert result.success
    assert versions(instance, declared.offsets) == [0, 1, 2, 3]
    assert versions(instance, declared.table) == [1, 2, 3]
    assert {entry.run_id for entry in declared.pipeline.history()} == {result.run_id}
    reported = "Version 2 had been committed but not reported to Dagster; reporting it now."
    assert reported in log_lines(result, instance)
    bench.table.assert_holds_once(bench.topic.written)


def test_the_next_run_reports_first_what_a_killed_one_could_not(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    """The event log keeps the ledger's order: its last event is the state Dagster shows."""
    materialize(declared, instance)
    bench.topic.write(20)
    declared.pipeline.run(run_id="killed")
    bench.topic.write(20)

    materialize(declared, instance)

    assert versions(instance, declared.offsets) == [0, 1, 2]
    assert transactions(instance, declared.offsets) == ids(declared.pipeline.history())


@pytest.mark.parametrize("selected", ["table", "offsets"])
def test_whoever_selects_one_asset_gets_both(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance, selected: str
) -> None:
    """Together with what somebody builds on the table, as in ``selection="key:events+"``."""

    @dg.asset(deps=[declared.table], automation_condition=dg.AutomationCondition.eager())
    def report() -> None:
        pass

    bench.topic.write(250, partitions=range(4))
    definitions = dg.Definitions.merge(without_topics(declared), dg.Definitions(assets=[report]))
    key = getattr(declared, selected).to_user_string()
    nightly = dg.define_asset_job("nightly", selection=f'key:"{key}"+')
    job = dg.Definitions.merge(definitions, dg.Definitions(jobs=[nightly])).resolve_job_def(
        "nightly"
    )

    result = job.execute_in_process(instance=instance)

    assert versions(instance, declared.offsets) == [0, 1, 2, 3]
    assert versions(instance, declared.table) == [1, 2, 3]
    made = {event.asset_key for event in result.get_asset_materialization_events()}
    assert (dg.AssetKey("report") in made) == (selected == "table")
    bench.table.assert_holds_once(bench.topic.written)


def _is_output(event: dg.DagsterEvent) -> bool:
    return event.is_successful_output


def test_a_retry_that_finds_all_committed_still_hands_the_table_on(
    bench: Bench, instance: dg.DagsterInstance
) -> None:
    """Scenario: the step dies after its last commit. Outcome: the retry has nothing to read, yet
    yields both assets, so that what lies downstream in the same run is not skipped.
    """
    bench.topic.write(20)
    declared = dies_once(bench, after=1)

    result = materialize(declared, instance)

    handed_on = {e.step_output_data.output_name for e in result.filter_events(_is_output)}
    assert {"events", "events_offsets"} <= handed_on
    assert versions(instance, declared.table) == [1]
    evaluated = result.get_asset_check_evaluations()
    assert [check.passed for check in evaluated] == [True, True]


@pytest.mark.core
def test_what_would_fail_again_is_not_tried_again_and_what_was_committed_is_shown(
    bench: Bench, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(100)
    bench.topic.write_value(b"not json")
    declared = DagsterPipeline(bench.pipeline(), AT_ONCE)

    result = materialize(declared, instance)

    assert not result.success
    failure = result.failure_data_for_node(declared.op)
    assert failure is not None
    assert failure.user_failure_data
    assert "bad record" in str(failure.user_failure_data.description)
    told = failure.user_failure_data.metadata
    where = [value(told, k) for k in ("error", "bad_records", "topic", "partition", "offset")]
    assert where == ["BadRecordError", 1, bench.topic.name, 0, 100]
    retries = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_RESTARTED]
    assert retries == []
    assert versions(instance, declared.offsets) == [0, 1]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(SinkUnavailableError("away"), 3), (LedgerBehindError("older"), 1), (ValueError("a bug"), 1)],
)
def test_only_what_may_pass_is_tried_again_and_as_often_as_the_settings_say(
    bench: Bench, instance: dg.DagsterInstance, error: Exception, attempts: int
) -> None:
    runs: list[str] = []
    declared = DagsterPipeline(Fails.of(bench.pipeline(), error, runs), AT_ONCE)

    result = materialize(declared, instance)

    assert len(runs) == attempts
    assert str(error) in failure(result, declared.op)
    restarted = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_RESTARTED]
    assert len(restarted) == attempts - 1


def test_the_wait_before_a_retry_is_that_of_the_settings_and_grows() -> None:
    waits = Automation(retry_delay_seconds=5).seconds_before_retry
    assert [waits(retry) for retry in (1, 2, 3)] == [5, 15, 35]


def test_a_run_is_found_by_its_pipeline_however_it_was_started(
    declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    asset = build_asset(declared)
    dg.materialize([asset], instance=instance, resources={declared.spark: NoSpark()})
    [run] = instance.get_runs()
    assert run.tags[PIPELINE_TAG] == "events"

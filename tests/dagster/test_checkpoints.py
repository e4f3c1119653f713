"""Checkpoints as partitions: who adds them, who takes them away, and what replaying some does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from pydantic import Field

from eo_pipeline.dagster.assets import build_checkpoints
from eo_pipeline.dagster.definitions import pipeline_definitions
from eo_pipeline.dagster.mirror import key_requests, live_keys, rearranged, update_keys
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.dagster.sensors import reconcile
from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.operations.maintain import floor_entry
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.testing import child_of, first_entry
from tests.dagster.conftest import AT_ONCE
from tests.dagster.steps import (
    events,
    failure,
    keys,
    launch,
    materialize,
    replay,
    replayed,
    value,
    versions,
)
from tests.dagster.test_sensors import apply, skipped
from tests.dagster.test_sensors import result as result_of
from tests.support.engine import Bench


class DiesInReplay(Pipeline):
    """A pipeline whose first replay is gone right after its first commit."""

    runs: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, pipeline: Pipeline) -> DiesInReplay:
        return cls(**{name: getattr(pipeline, name) for name in type(pipeline).model_fields})

    def replay(self, *arguments: Any, **options: Any) -> Any:
        def gone(report: object) -> None:
            raise SinkUnavailableError("the process was gone here")

        if not self.runs:
            options["on_checkpoint"] = gone
        self.runs.append("run")
        return super().replay(*arguments, **options)


@pytest.fixture
def declared(bench: Bench) -> DagsterPipeline:
    """The bench's pipeline without files between, which cost more than they show here."""
    return DagsterPipeline(bench.pipeline(inline_records=1_000), AT_ONCE)


@pytest.fixture
def filled(bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance) -> Bench:
    """Versions 1 to 4, of 100, 100, 100 and 50 records, made by one run."""
    bench.topic.write(350, partitions=range(4))
    assert materialize(declared, instance).success
    return bench


def written_by(bench: Bench) -> dict[int, int]:
    """By checkpoint: the transactions that wrote rows of it which are there now."""
    query = "select _eo_checkpoint, max(xmin::text::bigint) from events group by 1"
    return dict(bench.table.query(query))


def changed(before: dict[int, int], after: dict[int, int]) -> list[int]:
    return sorted(v for v in before.keys() | after.keys() if before.get(v) != after.get(v))


@pytest.mark.core
def test_a_run_adds_its_checkpoints_as_partitions_with_ranges_and_never_asks_for_one(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    assert keys(instance, declared) == [1, 2, 3, 4]
    assert replayed(instance, declared) == [("1", 1), ("2", 2), ("3", 3), ("4", 4)]
    last = events(instance, declared.checkpoints)[-1].metadata
    assert (value(last, "records"), value(last, "rows")) == (50, 50)
    assert {"started_at", "seconds", "transaction_id"} <= last.keys()
    ranges = last["ranges"]
    assert isinstance(ranges, dg.TableMetadataValue)
    assert sum(int(str(row.data["offsets"])) for row in ranges.records) == 50

    graph = pipeline_definitions(declared.pipeline).resolve_asset_graph()
    assert {k for k in graph.get_all_asset_keys() if graph.get(k).is_partitioned} == {
        declared.checkpoints
    }
    assert graph.get(declared.checkpoints).group_name != graph.get(declared.table).group_name
    # the UI's Materialize button leaves the job aside: nothing it selects has a partition
    job = pipeline_definitions(declared.pipeline).resolve_job_def(declared.job)
    assert job.partitions_def is None


@pytest.mark.core
def test_a_selected_range_is_replayed_in_one_run_and_nothing_else_changes(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    before = written_by(filled)

    result = replay(declared, instance, 2, 3, reason="a fixed transform")

    assert result.success
    assert changed(before, written_by(filled)) == [2, 3]
    assert filled.table.coordinates() == Counter(filled.topic.written)
    assert replayed(instance, declared)[4:] == [("2", 5), ("3", 6)]
    assert versions(instance, declared.table) == [1, 2, 3, 4, 5, 6]
    assert versions(instance, declared.offsets) == [0, 1, 2, 3, 4, 5, 6]
    assert keys(instance, declared) == [1, 2, 3, 4]
    shown = events(instance, declared.offsets)[-1].metadata
    assert [value(shown, k) for k in ("operation", "target", "reason", "asked_by")] == [
        "replay",
        "3",
        "a fixed transform",
        f"dagster run {result.run_id}",
    ]
    assert "event log is complete up to version 6" in skipped(reconcile(declared, instance, None))
    assert materialize(declared, instance).success
    filled.topic.write(10)
    checks = materialize(declared, instance).get_asset_check_evaluations()
    assert checks
    assert all(check.passed for check in checks)


def metadata_of(event: dg.DagsterEvent) -> list[tuple[str, Any]]:
    return list(event.step_output_data.metadata.items())


def test_the_replay_job_takes_checkpoints_that_do_not_lie_side_by_side(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    before = written_by(filled)
    dry = launch(declared, instance, "replay", versions=[4, 1], dry_run=True)
    assert dry.success
    looked = launch(declared, instance, "replay", versions=[4, 1], preview=True, key=["id"])
    assert looked.success
    told = {k: v for e in looked.all_events if e.is_successful_output for k, v in metadata_of(e)}
    rows = filled.table.query("select count(*) from events where _eo_checkpoint in (1, 4)")
    assert [(value(told, "rows_changed"), value(told, "rows_unchanged"))] == [(0, rows[0][0])]
    assert "(by id)" in str(value(told, "preview"))
    assert changed(before, written_by(filled)) == []

    assert launch(declared, instance, "replay", versions=[4, 1]).success

    assert changed(before, written_by(filled)) == [1, 4]
    assert replayed(instance, declared)[4:] == [("1", 5), ("4", 6)]
    unknown = launch(declared, instance, "replay", first=3, last=9)
    assert "there is no version 9" in failure(unknown, f"{declared.op}_replay_plan")
    none = launch(declared, instance, "replay")
    assert "Select the checkpoints by either" in failure(none, f"{declared.op}_replay_plan")


def test_a_replay_that_dies_half_way_goes_on_where_it_was(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    """Scenario: the sink goes away after the first of three replays was committed and before it
    was told. Outcome: the retry tells of it, and replays only the other two.
    """
    dying = DagsterPipeline(DiesInReplay.of(declared.pipeline), declared.automation)

    assert replay(dying, instance, 1, 3).success

    assert replayed(instance, declared)[4:] == [("1", 5), ("2", 6), ("3", 7)]
    assert [e.target for e in declared.pipeline.history(5)] == [1, 2, 3]


def test_what_ran_without_dagster_becomes_partitions_and_a_rewind_there_takes_them_away(
    bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(350, partitions=range(4))
    declared.pipeline.run()
    cursor = apply(instance, reconcile(declared, instance, None))
    assert keys(instance, declared) == [1, 2, 3, 4]
    # the newest once more, with the table to choose from
    each_once = [("1", 1), ("2", 2), ("3", 3), ("4", 4)]
    assert replayed(instance, declared) == [*each_once, ("4", 4)]
    assert "live_versions" in events(instance, declared.checkpoints)[-1].metadata

    declared.pipeline.rewind(2)
    cursor = apply(instance, reconcile(declared, instance, cursor))

    assert keys(instance, declared) == [1, 2]
    assert versions(instance, declared.offsets)[-1] == 5
    # a run that finds the rewind first does the same, and the reconciler has nothing to add
    declared.pipeline.rewind(1)
    assert materialize(declared, instance).success
    assert keys(instance, declared) == [1, 7, 8, 9]
    tick = reconcile(declared, instance, cursor)
    assert "event log is complete up to version 9" in skipped(tick)
    assert apply(instance, tick)
    assert keys(instance, declared) == [1, 7, 8, 9]


def test_a_key_that_somebody_deleted_comes_back(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    """Scenario: "Delete partitions" on the asset's page in the UI."""
    cursor = apply(instance, reconcile(declared, instance, None))
    instance.delete_dynamic_partition(declared.partitions, "2")
    instance.delete_dynamic_partition(declared.partitions, "4")
    tick = reconcile(declared, instance, cursor)
    cursor = apply(instance, tick)
    assert keys(instance, declared) == [1, 2, 3, 4]
    assert result_of(tick).asset_events == [], "nothing is reported twice"
    assert not result_of(reconcile(declared, instance, cursor)).dynamic_partitions_requests
    # ... and no key of what a rewind took away
    declared.pipeline.rewind(2)
    cursor = apply(instance, reconcile(declared, instance, cursor))
    apply(instance, reconcile(declared, instance, cursor))
    assert keys(instance, declared) == [1, 2]


def test_what_stands_is_a_table_on_the_overview_with_what_one_chooses_by(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    assert replay(declared, instance, 2, 2, reason="a wrong rate").success
    cursor = apply(instance, reconcile(declared, instance, None))
    shown = events(instance, declared.checkpoints)[-1]
    assert shown.partition == "4", "the newest that can be picked"
    assert "ranges" in shown.metadata, "and all that was said of it"
    table = shown.metadata["live_versions"]
    assert isinstance(table, dg.TableMetadataValue)
    chosen_by = ("version", "operation", "of", "rows", "reason")
    assert [tuple(row.data[k] for k in chosen_by) for row in table.records] == [
        (5, "replay", 2, 100, "a wrong rate"),
        (4, "forward", None, 50, ""),
        (3, "forward", None, 100, ""),
        (2, "forward", None, 100, ""),
        (1, "forward", None, 100, ""),
    ]
    assert all("Z" in str(row.data["committed_at"]) for row in table.records)
    # nothing new, nothing told
    assert result_of(reconcile(declared, instance, cursor)).asset_events == []
    assert launch(
        declared, instance, "rewind", to={"version": 3}, reason="too far", dry_run=False
    ).success
    apply(instance, reconcile(declared, instance, cursor))
    table = events(instance, declared.checkpoints)[-1].metadata["live_versions"]
    assert isinstance(table, dg.TableMetadataValue)
    top = table.records[0].data
    assert [top[k] for k in ("version", "operation", "of", "reason")] == [6, "rewind", 3, "too far"]
    assert [row.data["version"] for row in table.records] == [6, 3, 2, 1]


@pytest.mark.core
def test_a_checkpoint_that_no_longer_stands_is_refused_with_the_engines_sentence(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    declared.pipeline.rewind(2)
    result = replay(declared, instance, 3, 4)
    said = failure(result, f"{declared.op}_checkpoints")
    assert "version 3 is no longer live: version 5 rewound to 2" in said
    assert declared.pipeline.history()[-1].version == 5
    # it told of the rewind before it refused, so that they cannot be picked any more
    assert keys(instance, declared) == [1, 2]
    with pytest.raises(dg.DagsterInvalidInvocationError, match="Nonexistent partition keys"):
        replay(declared, instance, 4, 4)


def test_only_the_newest_stay_to_be_picked_and_the_ledger_keeps_all(
    filled: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    few = DagsterPipeline(declared.pipeline, Automation(checkpoint_partitions=2))
    apply(instance, reconcile(few, instance, None))
    assert keys(instance, declared) == [3, 4]
    assert len(declared.pipeline.history()) == 5
    # an old one can still be replayed: the job names versions, not partitions
    assert launch(declared, instance, "replay", versions=[1]).success
    assert replayed(instance, declared)[-1] == ("1", 5)


@pytest.mark.parametrize(
    ("keys", "wanted", "removed", "added"),
    [
        ("", "12", "", "12"),
        ("12", "123", "", "3"),
        ("123", "23", "1", ""),
        ("13", "123", "3", "23"),
        ("321", "123", "321", "123"),
        ("1x2", "12", "x", ""),
        ("12", "", "12", ""),
    ],
)
def test_a_key_that_comes_late_is_put_in_its_place(
    keys: str, wanted: str, removed: str, added: str
) -> None:
    assert rearranged(list(keys), list(wanted)) == (list(removed), list(added))


def test_partitions_are_replayed_by_one_run_however_many(declared: DagsterPipeline) -> None:
    policy = build_checkpoints(declared).backfill_policy
    assert policy == dg.BackfillPolicy.single_run()


def test_checkpoints_below_the_ledgers_floor_are_no_partitions_any_more(
    declared: DagsterPipeline,
) -> None:
    """Nobody can replay them. Scenario: the reconciler meets the floor, and what came after it."""
    ledger = [first_entry("p")]
    for _ in range(4):
        ledger.append(read_something(child_of(ledger[-1], 1)))
    floor = floor_entry(ledger[-1], 3, lambda version: ledger[version], "run")
    later = read_something(child_of(floor, 1))
    keys = ["1", "2", "3", "4"]
    requests = key_requests(declared, keys, live_keys(declared, keys, [floor, later]))
    assert requests == [
        dg.DeleteDynamicPartitionsRequest(declared.partitions, ["1", "2"]),
        dg.AddDynamicPartitionsRequest(declared.partitions, ["6"]),
    ]
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(declared.partitions, ["1", "2", "3", "4"])
        update_keys(declared, instance, floor)
        assert list(instance.get_dynamic_partitions(declared.partitions)) == ["3", "4"]


def read_something(entry: LedgerEntry) -> LedgerEntry:
    return replace(entry, ranges=(OffsetRange("t", 0, entry.version, entry.version + 1),))

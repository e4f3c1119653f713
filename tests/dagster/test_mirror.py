"""How ledger entries look in Dagster: versions, partitions, and which entry an event reports."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from eo_pipeline.dagster.definitions import pipeline_definitions
from eo_pipeline.dagster.mirror import (
    LIVE,
    EntryEvent,
    live_keys,
    of_entry,
    reported_id,
    update_keys,
    with_live_rows,
)
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.ledger.entry import Costs, Counts, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.testing import child_of, first_entry


@pytest.fixture
def declared() -> DagsterPipeline:
    source = {"bootstrap_servers": "h:1", "topics": ["t"], "value_format": "raw"}
    config = {"name": "p", "source": source, "sink": {"type": "console"}}
    return DagsterPipeline(Pipeline.from_config(config), Automation(checkpoint_partitions=3))


def ledger() -> list[LedgerEntry]:
    """Start, three checkpoints, a rewind to the first, a fifth version, a replay of the first."""
    entries = [first_entry("p")]
    for _ in range(3):
        entries.append(read_something(child_of(entries[-1], 10)))
    back = child_of(entries[-1], operation=Operation.REWIND, target=1)
    entries.append(replace(back, ranges=()))
    entries.append(read_something(child_of(entries[-1], 10)))
    again = child_of(entries[-1], 10, operation=Operation.REPLAY, target=1)
    return [*entries, read_something(again)]


def read_something(entry: LedgerEntry) -> LedgerEntry:
    return replace(entry, ranges=(OffsetRange("t", 0, entry.version, entry.version + 1),))


def test_the_data_version_is_the_ledgers_version_and_the_transaction_says_which_entry_it_is(
    declared: DagsterPipeline,
) -> None:
    for entry in ledger():
        for event in of_entry(declared, entry):
            result, logged = event.result(), event.materialization()
            assert result.data_version == dg.DataVersion(str(entry.version))
            assert (logged.tags or {})["dagster/data_version"] == str(entry.version)
            assert reported_id(logged) == entry.id
    assert reported_id(dg.AssetMaterialization("x", tags={"dagster/data_version": "1"})) is None


def test_the_offsets_come_last_and_a_replay_is_of_the_checkpoint_it_replayed(
    declared: DagsterPipeline,
) -> None:
    told = [[(e.key, e.partition) for e in of_entry(declared, entry)] for entry in ledger()]
    table, offsets = (declared.table, None), (declared.offsets, None)
    assert told == [
        [offsets],
        *([(declared.checkpoints, str(n)), table, offsets] for n in (1, 2, 3)),
        [table, offsets],
        [(declared.checkpoints, "5"), table, offsets],
        [(declared.checkpoints, "1"), table, offsets],
    ]


def test_partitions_are_the_versions_of_the_newest_checkpoints_that_stand(
    declared: DagsterPipeline,
) -> None:
    """By a run, an entry after the other, and by the reconciler, all at once."""
    entries = ledger()
    with dg.DagsterInstance.ephemeral() as instance:
        keys = []
        for entry in entries:
            update_keys(declared, instance, entry)
            keys.append(",".join(instance.get_dynamic_partitions(declared.partitions)))
    assert keys == ["", "1", "1,2", "1,2,3", "1", "1,5", "1,5"]
    assert live_keys(declared, [], entries) == ["1", "5"]
    assert live_keys(declared, [], entries[:4]) == ["1", "2", "3"]
    few = replace(declared, automation=Automation(checkpoint_partitions=2))
    assert live_keys(few, [], entries[:4]) == ["2", "3"]


def test_the_numbers_of_a_checkpoint_add_up(declared: DagsterPipeline) -> None:
    entry = replace(
        child_of(first_entry("p")),
        ranges=(OffsetRange("t", 0, 0, 700), OffsetRange("t", 1, 0, 54)),
        counts=Counts(records=650, rows=650, costs=Costs(lag=20)),
    )
    for event in of_entry(declared, entry):
        shown = dg.AssetMaterialization("x", metadata=event.metadata).metadata
        assert [shown[k].value for k in ("records", "offsets_without_record")] == [650, "104"]
        # what waited when it was planned is a plot; what waits after it is 0 by its nature
        assert [shown[k].value for k in ("lag_before", "lag_after")] == [774, "20"]


def test_no_event_that_was_reported_without_a_step_is_unsynced() -> None:
    source = {"bootstrap_servers": "h:1", "topics": ["t"], "value_schema": "id BIGINT"}
    config = {"name": "p", "source": source, "sink": {"type": "console"}}
    declared = DagsterPipeline(Pipeline.from_config(config), Automation())
    code = {"code_version": declared.pipeline.code_version}
    entries = [replace(entry, details=code) for entry in ledger()]
    definitions = pipeline_definitions(declared.pipeline)
    with dg.DagsterInstance.ephemeral() as instance:
        for entry in entries:
            update_keys(declared, instance, entry)
            for event in of_entry(declared, entry):
                instance.report_runless_asset_event(event.event())
        status = CachingStaleStatusResolver(
            instance, definitions.resolve_asset_graph(), LoadingContextForTest(instance)
        )
        partitions = instance.get_dynamic_partitions(declared.partitions)
        wanted: list[tuple[dg.AssetKey, str | None]] = [
            (declared.checkpoints, p) for p in partitions
        ]
        wanted += [(declared.table, None), (declared.offsets, None)]
        shown = {(key, p): status.get_status(key, p) for key, p in wanted}
    assert len(partitions) == 2
    assert set(shown.values()) == {StaleStatus.FRESH}


def test_a_run_keeps_the_table_of_live_versions_that_dagster_shows(
    declared: DagsterPipeline,
) -> None:
    """Row upon row, as long as they follow each other."""
    entries = ledger()

    def versions_shown(before: list[int], new: list[LedgerEntry]) -> list[object] | None:
        event = EntryEvent(declared.checkpoints, new[-1].id, {"rows": 1})
        rows = [{"version": version} for version in before]
        shown = with_live_rows(event, rows, new).metadata.get(LIVE)
        return [r.data["version"] for r in shown.records] if shown else None

    assert versions_shown([], entries[:3]) == [2, 1]
    assert versions_shown([2, 1], entries[3:4]) == [3, 2, 1]
    assert versions_shown([3, 2, 1], entries[5:6]) is None, "a rewind is not shown yet"
    assert versions_shown([3, 2, 1], entries[4:6]) is None, "it takes rows away"
    assert versions_shown([], entries[5:6]) is None, "nothing is known of those before"

"""What makes a table newer in Dagster's eyes: a run that read something, and no way back."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from eo_pipeline.dagster.mirror import of_entry
from eo_pipeline.dagster.naming import Automation, DagsterPipeline, Freshness
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.testing import child_of, first_entry


@pytest.fixture
def forward() -> LedgerEntry:
    return child_of(first_entry("orders"), 10)


def declared(freshness: Freshness | None) -> DagsterPipeline:
    config = {
        "name": "orders",
        "source": {"bootstrap_servers": "x:1", "topics": ["orders"], "value_schema": "id BIGINT"},
        "sink": {"type": "parquet", "path": "/lake/orders"},
    }
    return DagsterPipeline(Pipeline.from_config(config), Automation(freshness=freshness))


@pytest.mark.parametrize("operation", [Operation.REPLAY, Operation.REWIND])
def test_going_back_turns_no_freshness_policy_green(
    forward: LedgerEntry, operation: Operation
) -> None:
    """Found before: a replay of an old checkpoint was a materialization of the table, and a policy
    that was red for want of new records passed.
    """
    watched, other = declared(Freshness(fail_minutes=5)), declared(None)
    back = replace(child_of(forward, 10, operation=operation, target=1))
    for pipeline, kind in ((watched, dg.AssetObservation), (other, dg.AssetMaterialization)):
        made = {event.key: event.event() for event in of_entry(pipeline, back)}
        assert type(made[pipeline.table]) is kind
        assert type(made[pipeline.offsets]) is dg.AssetMaterialization
        assert (made[pipeline.table].tags or {})["dagster/data_version"] == "2"
        [told] = [e.event() for e in of_entry(pipeline, forward) if e.key == pipeline.table]
        assert type(told) is dg.AssetMaterialization


def test_an_instance_keeps_the_last_time_that_something_new_came(forward: LedgerEntry) -> None:
    watched = declared(Freshness(fail_minutes=5))
    back = child_of(forward, 10, operation=Operation.REPLAY, target=1)
    with dg.DagsterInstance.ephemeral() as instance:
        for entry in (forward, back):
            for event in of_entry(watched, entry):
                instance.report_runless_asset_event(event.event())
        latest = instance.get_latest_materialization_event(watched.table)
        assert latest is not None
        assert latest.asset_materialization is not None
        assert (latest.asset_materialization.tags or {})["dagster/data_version"] == "1"
        seen = instance.fetch_observations(watched.table, limit=5).records
        found = [each.asset_observation.tags for each in seen if each.asset_observation]
        assert [tags["dagster/data_version"] for tags in found] == ["2"]

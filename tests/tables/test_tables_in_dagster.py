"""Several tables of one pipeline as assets of Dagster: each is told of what changed in it."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from eo_pipeline.dagster.component import KafkaPipelineComponent
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.pipeline import Pipeline
from tests.dagster.steps import materialize
from tests.tables.test_appearing import Events, events, table
from tests.tables.test_postgres_tables import Shop, shop

__all__ = ["events", "shop", "table"]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def rows_of(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[tuple[object, ...]]:
    """Version, rows, and rows in all, of each event of the asset, oldest first."""
    page = instance.fetch_materializations(key, limit=100, ascending=True)
    events = [record.asset_materialization for record in page.records]
    names = ("version", "rows", "dagster/row_count")
    return [tuple(event.metadata[name].value for name in names) for event in events if event]


@pytest.mark.core
def test_a_table_is_materialized_by_the_checkpoints_that_change_it(
    shop: Shop, instance: dg.DagsterInstance
) -> None:
    shop.write(21)
    declared = DagsterPipeline(shop.pipeline(), Automation())
    members = declared.members
    assert materialize(declared, instance).success
    shop.write(8)  # orders alone: a customer comes with each tenth
    assert materialize(declared, instance).success
    assert rows_of(instance, members["orders"]) == [("1", 21, 21), ("2", 8, 29)]
    assert rows_of(instance, members["order_lines"]) == [("1", 42, 42), ("2", 16, 58)]
    assert rows_of(instance, members["customers"]) == [("1", 3, 3)]
    declared.pipeline.rewind(1)
    assert materialize(declared, instance).success  # reports the rewind, and reads again
    assert rows_of(instance, members["orders"])[2:] == [("3", 0, 21), ("4", 8, 29)]
    assert rows_of(instance, members["customers"])[1:] == [("3", 0, 3)]


def test_a_table_that_appeared_has_materializations_without_a_definition(
    events: Events, instance: dg.DagsterInstance
) -> None:
    declared = DagsterPipeline(events.pipeline(), Automation())
    assert declared.members == {}
    code_version = declared.pipeline.code_version
    events.write({"order": 20})
    assert materialize(declared, instance).success
    events.write({"order": 5, "note": 7})
    assert materialize(declared, instance).success
    assert rows_of(instance, dg.AssetKey(["events", "raw_order"])) == [("1", 20, 20), ("2", 5, 25)]
    assert rows_of(instance, dg.AssetKey(["events", "raw_note"])) == [("2", 7, 7)]
    assert rows_of(instance, declared.table) == [("1", 20, 20), ("2", 12, 32)]
    history = declared.pipeline.history()
    assert {entry.details.get("code_version") for entry in history[1:]} == {code_version}


def test_a_document_has_tables_that_appear(events: Events) -> None:
    attributes = {**events.config, "sensors": "stopped"}
    del attributes["overlap"]
    component = KafkaPipelineComponent.resolve_from_dict(attributes)
    pipeline = Pipeline.from_config(component.pipeline_config())
    events.write({"order": 2})
    pipeline.run()
    head = pipeline.head()
    assert head is not None
    assert head.values == {"raw_order": "order"}

"""Rows read back by checkpoint: with every column, and exactly where that can be. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.capabilities import Selected, is_own_form
from eo_pipeline.staging.rows import StagedTable
from eo_pipeline.testing.all_types import ALL_TYPES
from tests.sinks.sql.sql_world import SqlWorld
from tests.sinks.sql.sql_worlds import MYSQLS, world

__all__ = ["world"]

POSTGRES = pytest.mark.parametrize("world", ["postgres"], indirect=True)

#: What MySQL has no value for.
NO_NUMBERS = {"single": [1.5, -2.5, None], "double": [0.1, 0.2, None]}


def of(checkpoint: int, table: pa.Table) -> StagedTable:
    number = pa.array([checkpoint] * table.num_rows, pa.int64())
    index = table.schema.get_field_index(CHECKPOINT_COLUMN)
    return StagedTable.in_memory(table.set_column(index, CHECKPOINT_COLUMN, number))


def by_id(batches: Any) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for batch in batches for row in batch.to_pylist()}


@POSTGRES
def test_postgres_gives_every_type_back(world: SqlWorld) -> None:
    world.publish(world.sink(), of(1, ALL_TYPES), of(2, ALL_TYPES.slice(0, 1)))
    with world.sink().open("p") as session:
        found = by_id(session.rows_of(Selected(1, 1)))
        assert repr(found) == repr(by_id(of(1, ALL_TYPES).batches()))
        assert session.counts_of(Selected(0, 2)) == {1: 3, 2: 1}
        assert session.counts_of(Selected(0, 2, (1,))) == {2: 1}
        assert len(by_id(session.rows_of(Selected(0, 2, limit=2)))) == 2


@pytest.mark.parametrize("world", MYSQLS, indirect=True)
def test_mysql_gives_back_what_it_has(world: SqlWorld) -> None:
    table = ALL_TYPES
    for name, values in NO_NUMBERS.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pa.array(values, table.schema.field(name).type))
    world.publish(world.sink(), of(1, table), of(2, table.slice(0, 1)))
    with world.sink().open("p") as session:
        found = by_id(session.rows_of(Selected(1, 1)))
        assert session.counts_of(Selected(0, 2)) == {1: 3, 2: 1}
        [batch] = session.rows_of(Selected(2, 2))
    expected = by_id(of(1, table).batches())
    own = {field.name for field in batch.schema if is_own_form(field)}
    # arrays are JSON there, of which MySQL has a form of its own and MariaDB text
    assert own <= {"words", "numbers", "prices", "instants"}
    for number, row in expected.items():
        for name in row.keys() - {"words", "numbers", "prices", "instants", "instant"}:
            assert found[number][name] == row[name], name
        instant = row["instant"]
        assert found[number]["instant"] == (instant and instant.replace(tzinfo=None))


@POSTGRES
def test_columns_that_a_database_spells_in_its_own_way_are_text_and_marked(
    world: SqlWorld,
) -> None:
    world.run(
        f'CREATE TABLE t (id bigint, code uuid, "{CHECKPOINT_COLUMN}" bigint, took interval, '
        "twice bigint GENERATED ALWAYS AS (id * 2) STORED)"
    )
    code = "0123abcd-0000-0000-0000-000000000001"
    row = pa.table({"id": [1], "code": [code], CHECKPOINT_COLUMN: pa.array([1], pa.int64())})
    world.publish(world.sink(), StagedTable.in_memory(row))
    with world.sink().open("p") as session:
        [batch] = session.rows_of(Selected(0, 1))
    own = {field.name for field in batch.schema if is_own_form(field)}
    assert own == {"code", "took"}
    assert batch.to_pylist() == [
        {"id": 1, "code": code, CHECKPOINT_COLUMN: 1, "took": None, "twice": 2}
    ]

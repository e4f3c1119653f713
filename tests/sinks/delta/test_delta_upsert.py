"""Rows that replace each other in a Delta table."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from eo_pipeline.errors import (
    RefusedError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from tests.sinks.delta.delta_world import World, world

__all__ = ["world"]


# Upserts.


@pytest.fixture
def flights(world: World) -> World:
    world.settings = {"mode": "upsert", "key": ["id"], "sequence_by": ["day", "hour"]}
    return world


def state(checkpoint: int, *rows: tuple[int, int, int, str]) -> pa.Table:
    ids, days, hours, texts = zip(*rows, strict=True)
    columns = {"id": ids, "day": days, "hour": hours, "text": texts}
    return pa.table({**columns, CHECKPOINT_COLUMN: [checkpoint] * len(rows)})


def test_of_rows_with_one_key_the_newest_stays(flights: World) -> None:
    first = state(1, (1, 1, 9, "old"), (1, 2, 1, "new"), (2, 1, 1, "two"))
    second = state(2, (1, 2, 0, "late"), (2, 1, 1, "again"), (3, 1, 1, "three"), (3, 1, 0, "x"))
    flights.forward(first, second)
    assert {row["id"]: row["text"] for row in flights.rows()} == {1: "new", 2: "again", 3: "three"}


def test_a_merge_that_changes_nothing_still_moves_the_ledger(flights: World) -> None:
    """delta-rs makes no commit for it, and says nothing."""
    flights.forward(state(1, (1, 5, 5, "new")))
    version = flights.observe().version()
    entry = flights.forward(state(2, (1, 4, 4, "late")))
    assert flights.history()[-1].id == entry.id
    assert flights.observe().version() == version + 1
    assert [row["text"] for row in flights.rows()] == ["new"]


def test_a_new_column_leaves_the_table_what_it_was(flights: World) -> None:
    """A merge of delta-rs that adds it gives the table another id, no name, no description, and
    takes from its columns that they may not be null.
    """
    columns = [pa.field(f.name, f.type, f.name != "id") for f in state(1, (1, 1, 1, "a")).schema]
    DeltaTable.create(
        str(flights.root),
        Schema.from_arrow(pa.schema(columns)),
        name="flights",
        description="of the users'",
        configuration={"delta.logRetentionDuration": "interval 9 days"},
    )
    flights.forward(state(1, (1, 1, 1, "a"), (2, 1, 1, "b")))
    before = flights.observe()
    wider = state(2, (1, 1, 2, "c")).append_column("tail", pa.array(["N1"]))
    flights.forward(wider)
    flights.forward(wider.set_column(1, "day", pa.array([3])), state(4, (5, 1, 1, "e")))
    after = flights.observe()
    assert {row["id"]: row["tail"] for row in flights.rows()} == {1: "N1", 2: None, 5: None}
    assert after.metadata() == before.metadata() or str(after.metadata()) == str(before.metadata())
    assert [f for f in after.schema().fields if f.name != "tail"] == before.schema().fields
    flights.rewind(1)
    assert {row["id"]: row["text"] for row in flights.rows()} == {1: "a", 2: "b"}
    assert str(flights.observe().metadata()) == str(before.metadata())
    flights.forward(wider)


def test_a_new_column_and_its_rows_are_two_commits_of_which_the_second_has_rows_and_ledger(
    flights: World,
) -> None:
    flights.forward(state(1, (1, 1, 1, "a")))
    version = flights.observe().version()
    flights.forward(state(2, (2, 1, 2, "c")).append_column("tail", pa.array(["N1"])))
    assert flights.observe().version() == version + 2
    between = DeltaTable(str(flights.root), version=version + 1)
    assert between.to_pyarrow_table()["id"].to_pylist() == [1]
    assert between.transaction_version("eo:p") == 1


def test_a_merge_that_adds_a_local_time_leaves_a_table_that_can_be_read(flights: World) -> None:
    """Local times need a feature of the table, without which no reader opens it any more."""
    flights.forward(state(1, (1, 1, 1, "a")))
    noon = pa.array([datetime(2013, 1, 1, 12)], pa.timestamp("us"))  # noqa: DTZ001 - a local time
    flights.forward(state(2, (2, 1, 1, "b")).append_column("departs", noon))
    departs = {row["id"]: row["departs"] for row in flights.rows()}
    assert departs == {1: None, 2: noon[0].as_py()}


def test_a_row_without_key_or_sequence_is_refused(flights: World) -> None:
    flights.forward(state(1, (1, 1, 1, "a")))
    with pytest.raises(RefusedError, match="'day'"):
        flights.forward(state(2, (2, 1, 1, "b")).set_column(1, "day", pa.nulls(1, pa.int64())))


def test_rows_to_merge_wait_in_no_visible_folder(flights: World, world: World) -> None:
    assert flights.sink().staging_folders().rows is None
    assert World(world.root).sink().staging_folders().rows == world.root / "eo_rows"


# Without sequence_by: offsets tell the age, within one Kafka partition and nowhere else.


@pytest.fixture
def by_offset(world: World) -> World:
    world.settings = {"mode": "upsert", "key": ["id", "name"]}
    return world


def records(
    checkpoint: int, *places: tuple[str | None, int | None, int | None], name: str = "n"
) -> pa.Table:
    """A row for each record's topic, partition and offset, all of one key."""
    topics, partitions, offsets = zip(*places, strict=True)
    return pa.table(
        {
            "id": [1] * len(places),
            "name": [name] * len(places),
            "_eo_topic": pa.array(topics, pa.string()),
            "_eo_partition": pa.array(partitions, pa.int32()),
            "_eo_offset": pa.array(offsets, pa.int64()),
            CHECKPOINT_COLUMN: [checkpoint] * len(places),
        }
    )


def test_within_a_partition_the_later_offset_wins(by_offset: World) -> None:
    by_offset.forward(records(1, ("a", 0, 8), ("a", 0, 9), ("a", 0, 7)))
    assert [row["_eo_offset"] for row in by_offset.rows()] == [9]
    by_offset.forward(records(2, ("a", 0, 1)), records(3, ("a", 3, 1), name="m"))
    assert sorted((row["name"], row["_eo_offset"]) for row in by_offset.rows()) == [
        ("m", 1),
        ("n", 1),
    ]


@pytest.mark.parametrize("elsewhere", [("a", 1, 3), ("b", 0, 3)])
def test_a_key_in_two_partitions_of_one_checkpoint_is_refused(
    by_offset: World, elsewhere: tuple[str, int, int]
) -> None:
    by_offset.forward(records(1, ("a", 0, 1), name="another"))
    with pytest.raises(RefusedError, match=r"id = 1, name = 'n'.*a partition 0.*sequence_by"):
        by_offset.forward(records(2, ("a", 0, 1000), elsewhere))
    assert len(by_offset.rows()) == 1


def test_a_key_that_moved_since_its_row_was_written_is_refused(by_offset: World) -> None:
    by_offset.forward(records(1, ("a", 0, 1000)))
    with pytest.raises(RefusedError, match=r"id = 1, name = 'n'.*a partition 0.*a partition 5"):
        by_offset.forward(records(2, ("a", 5, 3)))
    assert [row["_eo_offset"] for row in by_offset.rows()] == [1000]


def test_a_row_that_does_not_say_where_it_came_from_is_refused(by_offset: World) -> None:
    with pytest.raises(RefusedError, match=r"'_eo_partition'.*null in 1 row"):
        by_offset.forward(records(1, ("a", 0, 7), ("a", None, 8)))

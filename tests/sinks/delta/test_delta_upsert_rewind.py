"""Upserted rows as they were: exact where Delta's history allows it, refused where it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of
from tests.sinks.delta.delta_world import World


def states(checkpoint: int, *ids: int, **columns: pa.Array) -> pa.Table:
    """What checkpoint ``checkpoint`` says of each key."""
    numbers = pa.array([checkpoint] * len(ids), pa.int64())
    return pa.table({"id": pa.array(ids, pa.int64()), CHECKPOINT_COLUMN: numbers, **columns})


@pytest.fixture
def world(tmp_path: Path) -> World:
    upsert = {"mode": "upsert", "key": ["id"], "sequence_by": [CHECKPOINT_COLUMN]}
    return World(tmp_path / "table", upsert)


def held(world: World) -> dict[int, int]:
    """By key: the checkpoint whose row is there."""
    return {row["id"]: row[CHECKPOINT_COLUMN] for row in world.rows()}


@pytest.mark.parametrize("partition_by", [[], ["kind"]])
def test_what_was_overwritten_is_back(world: World, partition_by: list[str]) -> None:
    """Scenario: keys overwritten and added, a column added, OPTIMIZE in between; back, on, back."""
    world.settings["partition_by"] = partition_by
    kind = pa.array(["a b=ü%", "x"])
    world.forward(states(1, 1, 2, kind=kind), states(2, 2, 3, kind=kind))
    world.forward(states(3, 1, 4, kind=kind, tail=pa.array(["N1", "N2"])))
    world.observe().optimize.z_order(["id"])
    world.forward(states(4, 3, 5, kind=kind))
    assert held(world) == {1: 3, 2: 2, 3: 4, 4: 3, 5: 4}
    entry = world.rewind(2)
    assert held(world) == {1: 1, 2: 2, 3: 2}
    assert world.history()[-1].id == entry.id
    world.forward(states(6, 3, kind=kind[:1], tail=pa.array(["N3"])))
    assert held(world) == {1: 1, 2: 2, 3: 6}
    assert {row["tail"] for row in world.rows()} == {None, "N3"}
    world.rewind(1)
    assert held(world) == {1: 1, 2: 1}
    world.rewind(0)
    assert held(world) == {}
    world.forward(states(9, 1, kind=kind[:1]))
    assert held(world) == {1: 9}


def test_to_before_the_first_checkpoint_of_a_table_that_was_there(world: World) -> None:
    columns = pa.schema([("id", pa.int64()), (CHECKPOINT_COLUMN, pa.int64())])
    DeltaTable.create(str(world.root), Schema.from_arrow(columns))
    write_deltalake(str(world.root), pa.table({"id": [7]}), mode="append", schema_mode="merge")
    world.forward(states(1, 7, 8), states(2, 8))
    world.rewind(0)
    assert [(row["id"], row[CHECKPOINT_COLUMN]) for row in world.rows()] == [(7, None)]


def test_of_a_rewind_the_state_it_left_can_be_had_back(world: World) -> None:
    world.forward(states(1, 1), states(2, 1))
    back = world.rewind(1)
    world.forward(states(4, 1))
    world.rewind(back.version)
    assert held(world) == {1: 1}


def foreign_rows(world: World) -> None:
    rows = states(0, 77)
    write_deltalake(str(world.root), rows, mode="append")


def foreign_setting(world: World) -> None:
    world.observe().alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})


def vacuum(world: World) -> None:
    table = world.observe()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def cut_a_file_short(world: World) -> None:
    old = DeltaTable(str(world.root), version=0)
    path = world.root / pa.table(old.get_add_actions())["path"][0].as_py()
    path.write_bytes(path.read_bytes()[:-1])


def replayed(world: World) -> None:
    """From when the table was appended to."""
    world.settings = {}
    world.replay(1, states(1, 5))
    world.settings = {"mode": "upsert", "key": ["id"], "sequence_by": [CHECKPOINT_COLUMN]}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (foreign_rows, "a commit of somebody else"),
        (foreign_setting, "a commit of somebody else"),
        (vacuum, "not there or not whole"),
        (cut_a_file_short, "not there or not whole"),
        (World.forget, "is cleaned up"),
        (replayed, "was replayed by version 3"),
    ],
)
def test_a_state_that_is_lost_or_would_lose_something_is_refused(
    world: World, event: Callable[[World], None], reason: str
) -> None:
    head = world.forward(states(1, 1, 2), states(2, 1))
    event(world)
    head = world.head() or head
    before = held(world)
    with world.sink().open("p") as session:
        with pytest.raises(RefusedError, match=reason) as beforehand:
            session.check_going_back(rewind(head))
        with pytest.raises(RefusedError) as published:
            session.publish(rewind(head), StagedOutput())
        assert str(published.value) == str(beforehand.value)
        assert session.head() == head
    assert held(world) == before


def test_a_replay_is_refused_with_a_way_out(world: World) -> None:
    head = world.forward(states(1, 1), states(2, 1))
    entry = child_of(head, operation=Operation.REPLAY, target=2)
    with world.sink().open("p") as session, pytest.raises(RefusedError, match="rewind to 1 and"):
        session.check_going_back(entry)


def rewind(head: LedgerEntry) -> LedgerEntry:
    return child_of(head, operation=Operation.REWIND, target=1)

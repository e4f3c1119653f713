"""A table that somebody sets back by RESTORE is told until it is set right."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from eo_pipeline.errors import TableRolledBackError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.testing import child_of
from tests.sinks.delta.delta_world import (
    World,
    append_of_another_application,
    in_memory,
    rows_of,
    world,
)

__all__ = ["world"]


def said_of(world: World) -> TableRolledBackError | None:
    with world.sink().open(world.pipeline) as session:
        return session.rolled_back(session.head())


def test_runs_are_refused_until_the_table_is_set_forward_again(world: World) -> None:
    world.forward(*(rows_of(n) for n in (1, 2, 3)))
    assert said_of(world) is None
    newest = world.observe().version()
    world.observe().restore(newest - 2)
    append_of_another_application(world)
    said = rf"up to version 1\..*Set it to its version {newest} again.*`eo rewind 1`"
    assert said_of(world) is not None
    with pytest.raises(TableRolledBackError, match=said):
        world.forward()
    world.observe().restore(newest)
    assert said_of(world) is None
    world.forward()
    assert world.checkpoints() == dict.fromkeys((1, 2, 3, 4), 3)


def test_the_ledger_goes_back_as_far_or_further_and_runs_go_on(world: World) -> None:
    world.forward(*(rows_of(n) for n in (1, 2, 3)))
    world.observe().restore(world.observe().version() - 1)
    with pytest.raises(TableRolledBackError):
        world.replay(1, rows_of(1))
    with pytest.raises(TableRolledBackError):
        world.rewind(3)
    world.rewind(1)
    assert said_of(world) is None
    world.forward()
    assert world.checkpoints() == dict.fromkeys((1, 5), 3)


def test_rows_that_a_rewind_took_back_are_not_there_beside_those_read_since(world: World) -> None:
    world.forward(*(rows_of(n) for n in (1, 2)))
    before = world.observe().version()
    world.rewind(1)
    world.forward()
    world.observe().restore(before)
    with pytest.raises(TableRolledBackError, match="up to version 2"):
        world.forward()


def test_a_restore_to_what_is_behind_the_newest_commit_does_no_harm(world: World) -> None:
    world.forward()
    append_of_another_application(world)
    append_of_another_application(world)
    world.observe().restore(world.observe().version() - 1)
    assert said_of(world) is None
    world.forward()
    assert world.checkpoints() == {1: 3, 2: 3, None: 3}


def test_by_a_moment_and_to_before_the_pipeline_began(world: World) -> None:
    append_of_another_application(world)
    theirs = world.observe().history(1)[0]["timestamp"]
    world.forward()
    world.observe().restore(datetime.fromtimestamp((theirs + 1) / 1000, UTC))
    with pytest.raises(TableRolledBackError, match=r"holds an older state.*`eo rewind 0`"):
        world.forward()


def test_behind_a_log_that_was_cleaned_up(world: World) -> None:
    world.forward(*(rows_of(n) for n in (1, 2, 3)))
    world.observe().create_checkpoint()
    world.forward()
    newest = world.observe().version()
    world.observe().restore(newest - 1)
    for version in range(newest - 1):
        (world.root / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(TableRolledBackError, match="up to version 3"):
        world.forward()


def test_an_upserted_table_goes_back_as_far(world: World) -> None:
    world.settings = {"mode": "upsert", "key": ["id"], "sequence_by": ["n"]}
    for number in (1, 2, 3):
        columns = {"id": pa.array([7], pa.int64()), "n": pa.array([number], pa.int64())}
        world.forward(pa.table({**columns, CHECKPOINT_COLUMN: columns["n"]}))
    world.observe().restore(world.observe().version() - 1)
    head = world.head()
    assert head is not None
    with pytest.raises(TableRolledBackError, match="`eo rewind 2`"):
        world.commit(child_of(head, 3), in_memory(rows_of(4, n=pa.array([4] * 3, pa.int64()))))
    world.rewind(2)
    assert [row["n"] for row in world.rows()] == [2]
    assert said_of(world) is None

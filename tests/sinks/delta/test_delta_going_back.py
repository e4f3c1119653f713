"""What it takes to take rows out of a Delta table, and where it is refused."""

from __future__ import annotations

import os
from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pytest

from eo_pipeline.errors import (
    RefusedError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from tests.sinks.delta.delta_world import (
    ID_ONLY,
    World,
    append_of_another_application,
    optimize,
    rows_of,
    table_of,
    with_deleted_row,
    with_features,
    world,
)
from tests.sinks.maintaining import AT_ONCE, maintain

__all__ = ["world"]


# Going back.


def nothing(world: World) -> None:
    """The table as the pipeline wrote it."""


@pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize("layout", [nothing, optimize])
@pytest.mark.parametrize("partition_by", [[], [CHECKPOINT_COLUMN], ["kind"]])
def test_a_rewind_takes_out_exactly_the_later_checkpoints(
    world: World, layout: Callable[[World], None], partition_by: list[str], files: bool
) -> None:
    world.settings["partition_by"] = partition_by
    batches = [rows_of(v, kind=pa.array(["a/b c=ü%"] * 3)) for v in range(1, 5)]
    world.forward(*batches, files=files)
    if layout is optimize and partition_by != [CHECKPOINT_COLUMN]:
        world.optimize()
    entry = world.rewind(2)
    assert world.checkpoints() == {1: 3, 2: 3}
    assert world.history()[-1].id == entry.id
    world.forward(rows_of(6, kind=pa.array(["b"] * 3)))
    assert world.checkpoints() == {1: 3, 2: 3, 6: 3}


@pytest.mark.parametrize("layout", [nothing, optimize])
def test_a_rewind_that_matches_nothing_still_moves_the_ledger(
    world: World, layout: Callable[[World], None]
) -> None:
    """delta-rs makes no commit for a delete without rows, and says nothing."""
    world.forward(rows_of(1), rows_of(2))
    layout(world)
    entry = world.rewind(2)
    assert world.history()[-1].id == entry.id
    assert world.checkpoints() == {1: 3, 2: 3}


def test_a_rewind_leaves_rows_that_are_not_the_pipelines(world: World) -> None:
    world.forward(rows_of(1), rows_of(2))
    append_of_another_application(world)
    world.rewind(1)
    assert world.checkpoints() == {1: 3, None: 3}
    world.optimize()
    world.rewind(0)
    assert world.checkpoints() == {None: 3}


@pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize("layout", [nothing, optimize])
@pytest.mark.parametrize("partition_by", [[], ["kind"]])
@pytest.mark.parametrize("count", [0, 2, 5])
def test_a_replay_replaces_one_checkpoint(
    world: World,
    layout: Callable[[World], None],
    partition_by: list[str],
    count: int,
    files: bool,
) -> None:
    world.settings["partition_by"] = partition_by
    kinds = pa.array(["x", "x", "x"])
    world.forward(*(rows_of(v, kind=kinds) for v in range(1, 4)))
    layout(world)
    again = rows_of(2, count, kind=pa.array(["y"] * count, pa.string()))
    entry = world.replay(2, again, files=files and count > 0)
    assert world.checkpoints() == {1: 3, 3: 3} | ({2: count} if count else {})
    assert {r["kind"] for r in world.rows() if r[CHECKPOINT_COLUMN] == 2} <= {"y"}
    assert world.history()[-1].id == entry.id


def test_a_replay_and_a_rewind_after_a_replay_find_the_files_it_wrote(world: World) -> None:
    """Scenario: files in folders with odd names, written by delta-rs for a replay, taken out."""
    world.settings["partition_by"] = ["kind"]
    kinds = pa.array(["a/b c=ü%", None, "x"])
    world.forward(*(rows_of(v, kind=kinds) for v in range(1, 4)))
    world.optimize()
    for count in (5, 2, 4):
        world.replay(2, rows_of(2, count, kind=pa.array(["a/b c=ü%"] * count)))
        assert world.checkpoints() == {1: 3, 2: count, 3: 3}
    world.rewind(1)
    assert world.checkpoints() == {1: 3}


def test_a_file_that_delta_rs_would_remove_under_another_name_is_refused(world: World) -> None:
    """Spark writes paths with letters beyond ASCII as they are, delta-rs encodes them: a rewind
    would rewrite the file's rows and leave the file too. Tried with delta-rs 1.6.6.
    """
    world.settings["partition_by"] = ["kind"]
    world.forward(*(rows_of(v, kind=pa.array(["ü"] * 3)) for v in (1, 2, 3)))
    world.optimize()
    newest = max((world.root / "_delta_log").glob("*.json"))
    newest.write_text(newest.read_text().replace('"kind=%25C3%25BC', '"kind=ü'))
    for path in world.root.glob("kind=*"):
        path.rename(world.root / "kind=ü")
    assert world.checkpoints() == {1: 3, 2: 3, 3: 3}
    with pytest.raises(RefusedError, match="ASCII"):
        world.rewind(2)
    assert world.checkpoints() == {1: 3, 2: 3, 3: 3}


def append_only(world: World) -> None:
    world.observe().alter.set_table_properties({"delta.appendOnly": "true"})


def share(world: World) -> None:
    World(world.root, pipeline="other").forward(rows_of(1))


def merge_instead(world: World) -> None:
    world.settings |= {"mode": "upsert", "key": ["id"], "sequence_by": ["id"]}


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [(append_only, "appendOnly"), (share, "share it")],
)
def test_where_rows_cannot_be_taken_back_a_rewind_is_refused_early(
    world: World, obstacle: Callable[[World], None], reason: str
) -> None:
    world.forward(rows_of(1), rows_of(2))
    obstacle(world)
    before = world.checkpoints()
    with pytest.raises(RefusedError, match=reason):
        world.rewind(1)
    assert world.checkpoints() == before
    assert len(world.history()) == 3


def test_an_upsert_into_an_append_only_table_is_refused(world: World) -> None:
    merge_instead(world)
    world.forward(rows_of(1))
    append_only(world)
    with pytest.raises(RefusedError, match="appendOnly"):
        world.forward(rows_of(2))


def test_a_table_with_deletion_vectors_takes_rows_and_gives_none_back(world: World) -> None:
    world.forward(rows_of(1))
    with_features(world, "deletionVectors", reader=True)
    with_deleted_row(world)
    world.forward(rows_of(2))
    with pytest.raises(RefusedError, match="deletion vectors"):
        world.rewind(1)
    with world.sink().open("p") as session, pytest.raises(RefusedError, match="deletionVectors"):
        list(session.lineage())
    assert maintain(world.sink(), "p", AT_ONCE)["remove"].files == 0
    assert pl.read_delta(str(world.root)).height == 5


def test_a_table_that_may_have_deletion_vectors_and_has_none_is_like_any_other(
    world: World,
) -> None:
    """Spark makes every table so, and takes the vectors away again by REORG TABLE."""
    table_of(world, ID_ONLY)
    with_features(world, "deletionVectors", reader=True)
    vectors = world.root / "deletion_vector_of_an_older_version.bin"
    vectors.write_bytes(b"...")
    os.utime(vectors, (0, 0))
    world.forward(*(rows_of(v) for v in range(1, 7)))
    with world.sink().open("p") as session:
        assert sum(found.num_rows for found in session.lineage()) == 18
    maintain(world.sink(), "p", AT_ONCE)
    assert len(world.files()) == 1
    world.replay(2, rows_of(2, 1))
    world.rewind(4)
    maintain(world.sink(), "p", AT_ONCE)
    assert dict(pl.read_delta(str(world.root))[CHECKPOINT_COLUMN].value_counts().iter_rows()) == {
        1: 3,
        2: 1,
        3: 3,
        4: 3,
    }
    assert vectors.exists()

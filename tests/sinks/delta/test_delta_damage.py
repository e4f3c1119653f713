"""Files of a Delta table that were lost or cut, and rows that its rules forbid: what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from eo_pipeline.errors import DamagedError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from tests.sinks.delta.delta_world import World, rows_of, world

__all__ = ["world"]

UPSERT = {"mode": "upsert", "key": ["id"], "sequence_by": ["id"]}


def file_of(world: World, checkpoint: int) -> Path:
    """The one data file with the rows of ``checkpoint``, by the log."""
    actions = pa.table(world.observe().get_add_actions(flatten=True)).to_pylist()
    [found] = [a["path"] for a in actions if a[f"max.{CHECKPOINT_COLUMN}"] == checkpoint]
    return world.root / str(found)


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(("harm", "said"), [(lose, "is gone"), (cut, "bytes")])
def test_a_damaged_data_file_is_named_with_its_checkpoint_and_the_replay_that_mends_it(
    world: World, harm: object, said: str
) -> None:
    world.forward(rows_of(1), rows_of(2), rows_of(3), files=True)
    path = file_of(world, 2)
    harm(path)  # type: ignore[operator]
    with world.sink().open("p") as session, pytest.raises(DamagedError) as damaged:
        list(session.lineage())
    text = str(damaged.value)
    assert path.name in text
    assert said in text
    assert "rows of checkpoint 2." in text
    assert "`eo replay 2`" in text
    assert "\x1b" not in text
    assert not damaged.value.retryable

    world.replay(2, rows_of(2), files=True)

    with world.sink().open("p") as session:
        assert sum(batch.num_rows for batch in session.lineage()) == 9


def test_a_merge_that_needs_a_lost_file_is_told_so_and_is_no_unknown_commit(world: World) -> None:
    world.settings = UPSERT
    world.forward(rows_of(1))
    head = world.head()
    lose(file_of(world, 1))
    with pytest.raises(DamagedError, match="Bring the files back from a backup") as damaged:
        world.forward(rows_of(1))
    assert "replay" not in str(damaged.value)
    assert world.head() == head


def test_a_log_with_a_torn_entry_is_damaged_and_not_merely_away(world: World) -> None:
    world.forward(rows_of(1), rows_of(2))
    newest = max((world.root / "_delta_log").glob("*.json"))
    newest.write_text(newest.read_text()[:40])
    with pytest.raises(DamagedError, match="_delta_log"):
        world.head()


def test_a_null_that_the_table_forbids_is_refused_by_a_merge_too(world: World) -> None:
    world.settings = UPSERT
    world.forward(rows_of(1, text=pa.array(["a", "b", "c"])))
    log = max((world.root / "_delta_log").glob("*.json"))
    _forbid_null(world, "text")
    with pytest.raises(RefusedError, match="text"):
        world.forward(rows_of(2, text=pa.array(["a", None, "c"])))
    assert max((world.root / "_delta_log").glob("*.json")).name > log.name
    assert world.checkpoints() == {1: 3}
    world.forward(rows_of(2, text=pa.array(["a", "b", "c"])))
    assert world.checkpoints() == {1: 3, 2: 3}


def _forbid_null(world: World, name: str) -> None:
    """What ``ALTER TABLE ... SET NOT NULL`` of another engine writes."""
    lines = [
        line
        for path in sorted((world.root / "_delta_log").glob("*.json"))
        for line in path.read_text().splitlines()
    ]
    metadata = json.loads([line for line in lines if '"metaData"' in line][-1])
    schema = json.loads(metadata["metaData"]["schemaString"])
    for each in schema["fields"]:
        each["nullable"] = each["nullable"] and each["name"] != name
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    version = world.observe().version() + 1
    path = world.root / "_delta_log" / f"{version:020}.json"
    path.write_text(json.dumps({"commitInfo": {"operation": "x"}}) + "\n" + json.dumps(metadata))

"""Files of a Delta table that were lost or cut, and rows that its rules forbid: what is said."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from eo_pipeline.errors import ConfigError, DamagedError, RefusedError, UnexpectedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.lake.maintenance import stopped
from tests.sinks.delta.delta_world import ID_ONLY, World, rows_of, table_of, with_features, world
from tests.sinks.maintaining import maintain

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


# What does This is permanent is not tried again and again.


def test_what_delta_rs_cannot_read_is_no_passing_trouble(world: World) -> None:
    """A negative decimal, which Spark or an earlier release laid the table out by."""
    world.settings = {"partition_by": ["c"]}
    cent = pa.array([Decimal("12.34")] * 3)
    world.forward(*(rows_of(number, c=cent) for number in range(1, 7)))
    for commit in (world.root / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace('"c":"12.34"', '"c":"-12.34"'))
        commit.write_text(commit.read_text().replace('"c": "12.34"', '"c":"-12.34"'))
    with world.sink().open("p") as session, pytest.raises(DamagedError, match="This is permanent"):
        list(session.lineage())
    with pytest.raises(UnexpectedError, match=r"maintenance stopped: .*-12\.-34") as stopped:
        maintain(world.sink(), "p")
    assert not stopped.value.retryable
    world.forward(rows_of(7, c=cent))


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), pa.ArrowTypeError("x"), pa.ArrowInvalid("x"), KeyError("x"), TypeError("x")],
)
def test_what_python_and_arrow_say_of_a_value_they_say_again(error: Exception) -> None:
    assert not stopped(Path("table"), error).retryable


@pytest.mark.parametrize("error", [OSError("x"), TimeoutError("x"), RuntimeError("x")])
def test_a_disk_and_a_connection_may_be_better_the_next_time(error: Exception) -> None:
    assert stopped(Path("table"), error).retryable


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_a_table_whose_commits_a_catalog_takes_is_refused_by_name(
    world: World, feature: str
) -> None:
    table_of(world, ID_ONLY)
    with_features(world, feature, reader=True)
    with pytest.raises(ConfigError, match="catalogManaged, formerly catalogOwned-preview"):
        world.head()


def test_a_feature_that_only_a_setting_names_is_refused_by_name(world: World) -> None:
    table_of(world, ID_ONLY)
    log = world.root / "_delta_log" / f"{0:020d}.json"
    setting = '"configuration":{"delta.feature.catalogManaged":"supported"}'
    log.write_text(log.read_text().replace('"configuration":{}', setting))
    with pytest.raises(ConfigError, match="the feature catalogManaged"):
        world.head()


def test_a_log_that_cannot_be_read_is_not_said_to_be_as_it_was(world: World) -> None:
    """The newest commit may be the one that spoiled it."""
    world.forward()
    (world.root / "_delta_log" / f"{1:020d}.json").write_text("{")
    with pytest.raises(DamagedError) as damaged, world.sink().open("p") as session:
        session.open_table()  # type: ignore[attr-defined]
    assert "Nothing was changed" not in str(damaged.value)
    assert not damaged.value.retryable

"""Commits that are written without opening the table, behind one of our own: what they cost, that
others read them, and that they follow the one version they were made for.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import CommitUnknownError, FencedError, RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.delta import log
from eo_pipeline.sinks.delta import log as checkpoints_module
from eo_pipeline.sinks.delta.log import LedgerCommits
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.storage.paths import Place, hard_link
from eo_pipeline.testing import child_of
from tests.sinks.delta.delta_world import (
    World,
    append_of_another_application,
    in_memory,
    rows_of,
    world,
)
from tests.support.calls import calls_of

__all__ = ["world"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What delta-rs is asked for that looks through the log: it lists the folder each time."""
    names = ("__init__", "create_write_transaction", "create_checkpoint", "cleanup_metadata")
    return calls_of(DeltaTable, names, monkeypatch)


def behind_own(world: World, checkpoints: int = 3) -> LedgerEntry:
    """The head; the next checkpoint needs no open table."""
    return world.forward(*(rows_of(number) for number in range(1, checkpoints + 1)))


def log_of(world: World) -> list[Path]:
    return sorted((world.root / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize("checkpoints", [3, 15])
def test_a_checkpoint_behind_another_of_its_own_asks_delta_rs_for_nothing(
    world: World, asked: Counter[str], checkpoints: int, files: bool
) -> None:
    """However many there are, and in a run of its own each."""
    head = behind_own(world, checkpoints)
    asked.clear()
    with world.sink().open("p") as session:
        session.verified(session.recover())
        entry = session.identified(child_of(head, 3))
        session.never_null()
        staged = world.staged(rows_of(entry.version), entry, files=files)
        assert session.publish(entry, staged) is CommitOutcome.COMMITTED
    assert asked == {}
    assert world.checkpoints()[entry.version] == 3


def test_checkpoints_of_the_log_are_the_rarer_the_more_files_they_hold(
    world: World, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds all files: at equal distances a log would grow with the square."""
    monkeypatch.setattr(checkpoints_module, "ACTIONS_A_COMMIT", 1)
    head = world.forward(rows_of(1))
    with world.sink().open("p") as session:
        for number in range(2, 81):
            head = child_of(head, 1)
            session.publish(head, in_memory(rows_of(number, 1)))
    found = [path.name[:20] for path in (world.root / "_delta_log").glob("*.checkpoint.parquet")]
    assert sorted(map(int, found)) == [9, 29, 69]
    assert asked["create_checkpoint"] == asked["cleanup_metadata"] == 3


def test_what_is_added_is_read_by_others_as_ever(world: World) -> None:
    """Scenario: a table laid out by columns whose values are odd; one checkpoint is empty."""
    world.settings["partition_by"] = ["day", "name"]
    days = pa.array([date(2026, 1, 1), None, date(2026, 1, 1)])
    names = pa.array(["a/b %41=", "é ", None])
    for number in range(1, 5):
        world.forward(rows_of(number, day=days, name=names))
    head = world.head()
    assert head is not None
    world.commit(child_of(head, 0))
    assert '"engineInfo": "eo-pipeline"' in log_of(world)[-2].read_text()
    rows = [row for row in world.rows() if row[CHECKPOINT_COLUMN] in (2, 4)]
    kept = [{k: v for k, v in row.items() if k not in ("id", CHECKPOINT_COLUMN)} for row in rows]
    key = str
    assert sorted(kept[:3], key=key) == sorted(kept[3:], key=key)
    assert world.checkpoints() == {1: 3, 2: 3, 3: 3, 4: 3}
    told = [commit["operation"] for commit in world.observe().history()]
    assert told == ["WRITE"] * 4 + ["CREATE TABLE"]


def test_what_delta_rs_and_we_write_of_the_same_rows_differs_in_nothing_a_reader_uses(
    world: World,
) -> None:
    """The second checkpoint's commit is delta-rs's, the third's is not."""
    behind_own(world)
    theirs, ours = (_actions(path) for path in log_of(world)[1:])
    assert [*ours] == [*theirs]
    used = {"partitionValues", "dataChange", "stats", "path", "size", "modificationTime"}
    assert {*ours["add"]} == used
    assert {name: type(value) for name, value in ours["add"].items()} == {
        name: type(value) for name, value in theirs["add"].items() if name in used
    }
    assert ours["txn"].keys() == theirs["txn"].keys()


def _actions(commit: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    return {name: value for line in lines for name, value in line.items()}


def test_a_null_where_the_table_takes_none_is_refused_without_opening_it(
    world: World, asked: Counter[str]
) -> None:
    schema = Schema.from_json(
        json.dumps(
            {
                "type": "struct",
                "fields": [
                    {"name": "id", "type": "long", "nullable": False, "metadata": {}},
                    {"name": CHECKPOINT_COLUMN, "type": "long", "nullable": True, "metadata": {}},
                ],
            }
        )
    )
    DeltaTable.create(str(world.root), schema)
    head = behind_own(world)
    asked.clear()
    with world.sink().open("p") as session:
        assert session.never_null() == {"id"}
        nulls = rows_of(4).set_column(0, "id", pa.nulls(3, pa.int64()))
        with pytest.raises(RefusedError, match="does not take null in id"):
            session.publish(child_of(head, 3), in_memory(nulls))
    assert asked["create_write_transaction"] == 0
    assert world.checkpoints() == {1: 3, 2: 3, 3: 3}


def test_a_column_that_the_table_lacks_is_added_to_it(world: World) -> None:
    behind_own(world)
    for number in (4, 5, 6):
        world.forward(rows_of(number, more=pa.array(["x"] * 3)))
    assert world.checkpoints() == dict.fromkeys(range(1, 7), 3)
    assert Counter(row["more"] for row in world.rows()) == {None: 9, "x": 9}


def test_what_a_table_was_is_not_taken_for_what_it_is(world: World) -> None:
    """Scenario: a person adds a column that may not hold what rows hold; then the file that says
    what the table was is changed by hand.
    """
    behind_own(world)
    world.observe().alter.add_columns(
        list(Schema.from_arrow(pa.schema([("id2", pa.string())])).fields)
    )
    with pytest.raises(SchemaChangeError, match="id2"):
        world.forward(rows_of(4, id2=pa.array([1, 2, 3])))
    world.forward(rows_of(4), rows_of(5))
    for path in (world.root / "_eo_ledger/p/tables").iterdir():
        path.write_text(path.read_text().replace("id2", "id3"))
    world.forward(rows_of(6, id3=pa.array(["x"] * 3)))
    assert world.checkpoints() == dict.fromkeys(range(1, 7), 3)
    assert Counter(row["id3"] for row in world.rows()) == {None: 15, "x": 3}


# Compare-and-swap.


def test_a_second_run_of_ours_between_is_fenced(world: World) -> None:
    head = behind_own(world)
    mine, rival = child_of(head, 3), child_of(head, 3)

    def rival_first(point: CrashPoint) -> None:
        if point is CrashPoint.ENTRY_SENT:
            world.commit(rival, in_memory(rows_of(4)))

    with pytest.raises(FencedError), world.sink().open("p") as session:
        session.publish(mine, in_memory(rows_of(5)), rival_first)
    assert world.checkpoints() == {1: 3, 2: 3, 3: 3, 4: 3}


def test_a_commit_that_lands_where_nobody_reads_is_made_again(world: World) -> None:
    """Scenario: while it is written others commit, and a log that keeps nothing forgets the very
    version whose name it takes: the name is free, and nobody looks there any more.
    """
    entry = child_of(behind_own(world), 3)
    behind = world.observe().version()
    done: list[int] = []

    def others(point: CrashPoint) -> None:
        if point is CrashPoint.ENTRY_SENT and not done:
            done.append(1)
            append_of_another_application(world)
            append_of_another_application(world)
            world.forget()
            assert not (world.root / f"_delta_log/{behind + 1:020d}.json").exists()

    world.commit(entry, in_memory(rows_of(4)), others)
    assert (world.root / f"_delta_log/{behind + 1:020d}.json").exists()
    assert world.head() == world.history()[4]
    assert world.checkpoints()[4] == 3


@pytest.mark.parametrize("landed", [True, False])
def test_an_error_of_the_file_system_is_an_unknown_outcome(
    world: World, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Outcome: the same transaction tried again lands exactly once, and what the first try left is
    removed by the next run.
    """
    entry = child_of(behind_own(world), 3)

    def torn(place: Place, to: Place) -> None:
        if landed:
            hard_link(place, to)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(log, "hard_link", torn)
        with pytest.raises(CommitUnknownError), world.sink().open("p") as session:
            session.publish(entry, in_memory(rows_of(4)))
    with world.sink().open("p") as session:
        outcome = session.publish(entry, in_memory(rows_of(4)))
    assert outcome is (CommitOutcome.ALREADY_COMMITTED if landed else CommitOutcome.COMMITTED)
    assert world.checkpoints() == {1: 3, 2: 3, 3: 3, 4: 3}
    with world.sink().open("p") as session:
        session.recover()
    assert len(world.ledger_files()) == 5


def test_a_name_that_is_taken_by_our_own_commit_is_our_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a file server makes the link, loses its answer, and is asked again."""
    entry = child_of(behind_own(world), 3)

    def twice(place: Place, to: Place) -> None:
        hard_link(place, to)
        hard_link(place, to)

    monkeypatch.setattr(log, "hard_link", twice)
    world.commit(entry, in_memory(rows_of(4)))
    assert world.checkpoints() == {1: 3, 2: 3, 3: 3, 4: 3}
    assert len(world.ledger_files()) == 5


@pytest.mark.parametrize("gap", [1, 2, 40, 200])
def test_commits_behind_a_gap_of_the_log_are_seen(tmp_path: Path, gap: int) -> None:
    """As long as they are more than the gap is wide, or the gap is small."""
    width = gap if gap > 31 else 1
    for version in (*range(5), *range(5 + gap, 5 + gap + width)):
        (tmp_path / f"{version:020d}.json").touch()
    commits = LedgerCommits(tmp_path, "p")
    assert not commits.is_last(4)
    assert commits.is_last(5 + gap + width - 1)

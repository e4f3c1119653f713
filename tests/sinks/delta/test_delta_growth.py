"""What looking at a long ledger costs: counted in openings of the table and searches of its log."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from eo_pipeline.errors import ConfigError, EoPipelineError
from eo_pipeline.sinks.delta import session as delta_session
from eo_pipeline.sinks.delta.log import LedgerCommits
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of
from tests.sinks.delta.delta_world import (
    World,
    append_of_another_application,
    rows_of,
    world,
)
from tests.sinks.maintaining import maintain
from tests.support.calls import calls_of

__all__ = ["world"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often delta-rs is asked for what costs more the longer the log is."""
    names = ("__init__", "transaction_version")
    return calls_of(DeltaTable, names, monkeypatch)


@pytest.mark.parametrize("checkpoints", [2, 3, 11])
def test_a_run_that_finds_nothing_does_not_open_the_table(
    world: World, calls: Counter[str], checkpoints: int
) -> None:
    for _ in range(checkpoints):
        head = world.forward()
    calls.clear()
    with world.sink().open("p") as session:
        found = session.verified(session.recover())
    assert found is not None
    assert found.id == head.id
    assert calls == {}


def changed_by_hand(world: World) -> None:
    world.observe().alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def of_another_pipeline(world: World) -> None:
    World(world.root, pipeline="other").forward()


def kept_otherwise(world: World) -> None:
    (world.root / "_delta_log/_last_checkpoint").write_text('{"version": 4}')


def hint_cut(world: World) -> None:
    (world.root / "_delta_log/_last_checkpoint").write_text('{"version"')


@pytest.mark.parametrize(
    "act",
    [
        append_of_another_application,
        changed_by_hand,
        of_another_pipeline,
        kept_otherwise,
        hint_cut,
        lambda world: world.rewind(1),
    ],
)
def test_behind_anything_else_a_run_opens_the_table(
    world: World, calls: Counter[str], act: Callable[[World], object]
) -> None:
    for _ in range(3):
        world.forward()
    act(world)
    with world.sink().open("p") as session:
        assert isinstance(session, delta_session.DeltaSession)
        session.open_table()
        head = session.head()
    calls.clear()
    with world.sink().open("p") as session:
        found = session.verified(session.recover())
    assert found is not None
    assert found == head
    assert calls["__init__"] == 1


def test_a_layout_that_was_changed_is_refused_without_a_look_at_more(world: World) -> None:
    for _ in range(3):
        world.forward()
    with pytest.raises(ConfigError, match="partitioned by nothing, not by id"):
        world.sink(partition_by=["id"]).open("p")


def test_a_commit_is_not_made_in_a_gap_of_the_log(world: World) -> None:
    """The look of a run would take what is before the gap for the newest."""
    for _ in range(4):
        world.forward()
    log = world.root / "_delta_log"
    (log / f"{2:020d}.json").unlink()
    before = sorted(path.name for path in log.iterdir())
    head = world.head()
    assert head is not None
    assert head.version == 2
    with pytest.raises(EoPipelineError):
        world.commit(child_of(head, 3), StagedOutput(rows=StagedTable.in_memory(rows_of(3))))
    assert sorted(path.name for path in log.iterdir()) == before


def test_a_checkpoint_opens_the_table_once_and_searches_nothing(
    world: World, calls: Counter[str]
) -> None:
    head = world.forward()
    calls.clear()
    with world.sink().open("p") as session:
        session.verified(session.recover())
        entry = session.identified(child_of(head, 3))
        session.never_null()
        rows = StagedOutput(rows=StagedTable.in_memory(rows_of(entry.version)))
        assert session.publish(entry, rows) is CommitOutcome.COMMITTED
    assert calls == {"__init__": 1}


def test_the_head_is_searched_for_behind_another_ones_commit(
    world: World, calls: Counter[str]
) -> None:
    head = world.forward()
    append_of_another_application(world)
    with world.sink().open("p") as session:
        found = session.head()
    assert found is not None
    assert found.id == head.id
    assert calls["transaction_version"] > 0


def test_the_files_that_maintenance_took_out_are_not_decoded_by_a_look_behind_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be ten thousand, all in the newest commit."""
    for _ in range(6):
        head = world.forward()
    maintain(world.sink(), "p")
    newest = world.root / f"_delta_log/{world.observe().version():020d}.json"
    assert newest.read_text().count('"remove"') == 6
    decoded: list[str] = []
    loads = json.loads

    def kept(text: Any, **options: Any) -> Any:
        decoded.append(str(text))
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", kept)
    with world.sink().open("p") as session:
        found = session.verified(session.recover())
    assert found is not None
    assert found.id == head.id
    assert decoded
    assert not [text for text in decoded if '"remove"' in text]


def test_what_somebody_says_of_a_commit_is_not_taken_for_a_transaction(world: World) -> None:
    head = world.forward()
    told = {"txn": json.dumps({"appId": "eo:p", "version": 9})}
    properties = CommitProperties(custom_metadata=told)
    write_deltalake(str(world.root), rows_of(9), mode="append", commit_properties=properties)
    with world.sink().open("p") as session:
        found = session.head()
    assert found is not None
    assert found.id == head.id


def test_what_others_commit_is_seen_by_a_session_that_is_open(world: World) -> None:
    world.forward()
    with world.sink().open("p") as session:
        session.head()
        head = world.forward()
        found = session.head()
    assert found is not None
    assert found.id == head.id


def test_a_table_that_was_made_anew_is_not_taken_for_the_one_that_is_open(world: World) -> None:
    """Scenario: it has the same version again when the session looks."""
    world.forward()
    other = World(world.root.with_name("other"))
    other.forward()
    with world.sink().open("p") as session:
        first = session.table_identity()
        shutil.rmtree(world.root / "_delta_log")
        shutil.copytree(other.root / "_delta_log", world.root / "_delta_log")
        now = session.table_identity()
    assert now == {"table": str(other.observe().metadata().id)}
    assert now != first


@pytest.mark.parametrize(("version", "kept"), [(5, False), (10, True)])
def test_a_short_ledgers_log_has_a_checkpoint_every_ten_commits(
    world: World, version: int, kept: bool
) -> None:
    for _ in range(version):
        world.forward()
    assert any(world.root.rglob("*.checkpoint.parquet")) is kept


@pytest.mark.parametrize("action", ["metaData", "protocol"])
def test_a_commit_that_makes_another_table_of_it_says_nothing_of_the_table(
    world: World, action: str
) -> None:
    world.forward(rows_of(1), rows_of(2))
    log = world.root / "_delta_log"
    assert LedgerCommits(log, "p").newest() is not None
    with (log / f"{1:020d}.json").open("a") as commit:
        commit.write(json.dumps({action: {}}) + "\n")
    assert LedgerCommits(log, "p").newest() is None

"""Maintenance of a Delta table: beside runs and readers, killed, raced; going back behind it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import RefusedError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.capabilities import Maintenance
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.delta.table import FLOOR
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.paths import Place, files_below
from eo_pipeline.testing import child_of, first_entry
from eo_pipeline.testing.all_types import ALL_TYPES
from eo_pipeline.testing.faults import dies
from tests.sinks.delta.delta_world import (
    World,
    optimize,
    rows_of,
    world,
)
from tests.sinks.maintaining import AT_ONCE, POINTS, at, killed_at, maintain
from tests.sinks.test_lake_widening import FEW, FEW_IN_WIDE, MANY, NARROW, WIDE, batch
from tests.sinks.test_values_given_back import of
from tests.support.chaos import rest_is_chaos
from tests.support.store_folder import StoreFolder, on_stores

__all__ = ["world"]


def grow(world: World, checkpoints: int = 6) -> dict[int | None, int]:
    """Small checkpoints, and what the table holds then."""
    for _ in range(checkpoints):
        world.forward()
    return world.checkpoints()


def test_small_files_become_one_and_rows_and_ledger_stay(world: World) -> None:
    before = grow(world)
    history = world.history()
    done = maintain(world.sink(), "p")
    assert (done["compact"].files, done["compact"].files_after) == (6, 1)
    assert len(world.files()) == 1
    assert world.checkpoints() == before
    assert world.history() == history


def test_a_dry_run_says_so_and_changes_nothing(world: World) -> None:
    grow(world)
    version = world.observe().version()
    told = maintain(world.sink(), "p", AT_ONCE, dry_run=True)["compact"]
    assert (told.files, told.files_after) == (6, 1)
    assert world.observe().version() == version
    assert len(world.files()) == 6


def test_where_there_is_nothing_to_do_nothing_is_committed(world: World) -> None:
    """So that a run is never made to try again by maintenance that did nothing."""
    grow(world)
    maintain(world.sink(), "p")
    version = world.observe().version()
    maintain(world.sink(), "p")
    assert world.observe().version() == version


@pytest.mark.parametrize("settings", [{}, {"partition_by": ["kind"]}], ids=["plain", "partitioned"])
def test_a_rewind_and_a_replay_behind_it_are_exact(
    world: World, settings: dict[str, object]
) -> None:
    world.settings = settings
    kind = pa.array(["a b=ü%", "x", None])
    for n in range(1, 7):
        world.forward(rows_of(n, kind=kind))
    somebody_elses = rows_of(1, kind=kind).set_column(1, CHECKPOINT_COLUMN, pa.nulls(3, pa.int64()))
    write_deltalake(str(world.root), somebody_elses, mode="append")
    foreign = {None: 3}
    maintain(world.sink(), "p", AT_ONCE)
    assert len(world.files()) == (3 if settings else 1), "one of each partition"
    world.replay(2, rows_of(2, 2, kind=kind[:2]))
    assert world.checkpoints() == {1: 3, 2: 2, 3: 3, 4: 3, 5: 3, 6: 3} | foreign
    world.rewind(4)
    assert world.checkpoints() == {1: 3, 2: 2, 3: 3, 4: 3} | foreign
    world.forward(rows_of(9, kind=kind))
    maintain(world.sink(), "p", AT_ONCE)
    assert world.checkpoints() == {1: 3, 2: 2, 3: 3, 4: 3, 9: 3} | foreign
    kinds = {row["id"]: row.get("kind") for row in world.rows() if row[CHECKPOINT_COLUMN] == 4}
    assert kinds == {400: "a b=ü%", 401: "x", 402: None}


def test_values_of_every_type_are_the_same(world: World) -> None:
    for n in range(1, 7):
        number = ALL_TYPES.column_names.index(CHECKPOINT_COLUMN)
        own = pa.array([n] * 3, pa.int64())
        world.forward(ALL_TYPES.set_column(number, CHECKPOINT_COLUMN, own))
    before = values(world)
    maintain(world.sink(), "p", AT_ONCE)
    assert len(world.files()) == 1
    assert values(world) == before


def test_rows_from_before_a_column_and_a_nested_field_are_the_same(world: World) -> None:
    narrow = pa.schema([field for field in NARROW if field.name in "sl"])
    wide = pa.schema([field for field in WIDE if field.name in "sl"])
    narrow = pa.schema([pa.field(f.name, only_first(wide.field(f.name).type)) for f in narrow])
    for n in range(1, 4):
        staged = batch(n, narrow, {name: FEW[name] for name in "sl"})
        assert staged.table is not None
        world.forward(staged.table)
    for n in range(4, 7):
        staged = batch(n, wide, {name: MANY[name] for name in "sl"})
        assert staged.table is not None
        world.forward(staged.table)
    maintain(world.sink(), "p", AT_ONCE)
    assert len(world.files()) == 1
    rows = [{name: row[name] for name in "sl"} for row in world.rows()]
    assert (
        rows
        == [{name: FEW_IN_WIDE[name] for name in "sl"}] * 3
        + [{name: MANY[name] for name in "sl"}] * 3
    )


def only_first(kind: pa.DataType) -> pa.DataType:
    """Without the field that comes later."""
    if pa.types.is_list(kind):
        return pa.list_(only_first(kind.value_type))
    return pa.struct([kind.field(0)])


def values(world: World) -> str:
    with world.sink().open("p") as session:
        shown = pa.Table.from_batches(session.values())
    return of(shown.sort_by([(CHECKPOINT_COLUMN, "ascending"), ("id", "ascending")]))


# Races.


def forward(world: World) -> dict[int | None, int]:
    world.forward()
    return dict.fromkeys(range(1, 8), 3)


def widened(world: World) -> dict[int | None, int]:
    world.forward(rows_of(7, more=pa.array([1, 2, 3])))
    return dict.fromkeys(range(1, 8), 3)


def rewound(world: World) -> dict[int | None, int]:
    world.rewind(2)
    return {1: 3, 2: 3}


def replayed(world: World) -> dict[int | None, int]:
    world.replay(2, rows_of(2, 1))
    return {1: 3, 2: 1, 3: 3, 4: 3, 5: 3, 6: 3}


def put_together_by_others(world: World) -> dict[int | None, int]:
    optimize(world)
    return dict.fromkeys(range(1, 7), 3)


def emptied_by_others(world: World) -> dict[int | None, int]:
    write_deltalake(str(world.root), rows_of(1), mode="overwrite")
    return {1: 3}


RACES = [forward, widened, rewound, replayed, put_together_by_others, emptied_by_others]


@pytest.mark.parametrize("event", RACES)
def test_what_others_commit_while_files_are_written_stands(
    world: World, event: Callable[[World], dict[int | None, int]]
) -> None:
    grow(world)
    expected: list[dict[int | None, int]] = []
    hook = at(CrashPoint.ROWS_SENT, lambda: expected.append(event(world)))
    maintain(world.sink(), "p", AT_ONCE, reach=hook)
    assert world.checkpoints() == expected[0]
    maintain(world.sink(), "p", AT_ONCE)
    assert world.checkpoints() == expected[0]
    world.forward()


def test_a_run_that_meets_maintenance_commits_behind_it(world: World) -> None:
    """Scenario: the run has opened the table when maintenance commits."""
    grow(world)
    head = world.head()
    assert head is not None
    entry = child_of(head, 3)
    met = at(CrashPoint.ENTRY_SENT, lambda: maintain(world.sink(), "p", AT_ONCE))
    world.commit(entry, world.staged(rows_of(7), entry), met)
    assert world.checkpoints() == dict.fromkeys(range(1, 8), 3)
    assert len(world.files()) == 2


def test_of_two_maintenances_the_older_stops(world: World) -> None:
    before = grow(world)
    second = at(CrashPoint.ROWS_SENT, lambda: maintain(world.sink(), "p", AT_ONCE))
    with pytest.raises(SinkUnavailableError, match="another maintenance of the table has begun"):
        maintain(world.sink(), "p", AT_ONCE, reach=second)
    assert world.checkpoints() == before
    assert len(world.files()) == 1


def test_two_compactions_of_delta_rs_at_once_would_double_every_row(world: World) -> None:
    """Why that of delta-rs is not used. Once this fails, it may be."""
    before = grow(world)
    late = world.observe()
    optimize(world)
    late.optimize.compact()
    assert world.checkpoints() == {number: 2 * rows for number, rows in before.items()}


# Killed.


@pytest.mark.parametrize("point", rest_is_chaos(POINTS, but=[CrashPoint.ROWS_SENT]))
def test_killed_anywhere_nothing_is_lost_and_the_next_one_goes_on(
    world: World, point: CrashPoint
) -> None:
    grow(world)
    world.rewind(5)
    before = world.checkpoints()
    dies(killed_at, world.sink(), "p", point)
    assert world.checkpoints() == before
    for path in (world.root / "eo_rows").rglob("*.parquet"):
        os.utime(path, (0, 0))  # what the killed one wrote was written long ago
    world.forward(rows_of(8))
    maintain(world.sink(), "p", AT_ONCE)
    maintain(world.sink(), "p", AT_ONCE)
    assert world.checkpoints() == before | {8: 3}
    left = {str(path) for path in (world.root / "eo_rows").rglob("*.parquet")}
    assert left == set(world.files())


# What is removed, and what is not.


def test_a_reader_of_the_version_before_reads_on(world: World) -> None:
    before = grow(world)
    reader = world.observe()
    maintain(world.sink(), "p")
    table = reader.to_pyarrow_table()
    assert table.num_rows == sum(before.values())
    past = DeltaTable(str(world.root), version=3)
    assert past.to_pyarrow_table().num_rows == 12


def test_what_a_live_run_has_staged_is_never_removed(world: World) -> None:
    """However long ago: it may commit it at this moment."""
    grow(world)
    head = world.head()
    assert head is not None
    entry = child_of(head, 3)
    staged = world.staged(rows_of(7), entry, files=True)
    for path in (world.root / "eo_rows").rglob("*.parquet"):
        os.utime(path, (0, 0))
    maintain(world.sink(), "p", AT_ONCE)
    world.commit(entry, staged)
    assert world.checkpoints()[7] == 3


def test_what_nobody_knows_is_removed_when_it_is_old(world: World) -> None:
    grow(world)
    young, old = world.root / "young.parquet", world.root / "ü %20 old.parquet"
    for path in (young, old):
        path.write_bytes(b"what a killed merge left")
    os.utime(old, (time.time() - 8 * 24 * 3600,) * 2)
    done = maintain(world.sink(), "p", AT_ONCE)
    assert (young.exists(), old.exists()) == (True, False)
    assert done["remove"].files == 1


# A table of upserts, whose rewind needs what left the table.


@pytest.fixture
def upserted(tmp_path: Path) -> World:
    rule = {"mode": "upsert", "key": ["id"], "sequence_by": [CHECKPOINT_COLUMN]}
    world = World(tmp_path / "table", rule)
    for n in range(1, 8):
        ids = pa.array([n] if n < 7 else [1, 7], pa.int64())
        numbers = pa.array([n] * len(ids), pa.int64())
        world.forward(pa.table({"id": ids, CHECKPOINT_COLUMN: numbers}))
    return world


def test_an_upserted_table_goes_back_behind_maintenance(upserted: World) -> None:
    before = upserted.checkpoints()
    done = maintain(upserted.sink(), "p")
    assert done["compact"].files_after < done["compact"].files
    assert upserted.checkpoints() == before == {2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 2}
    upserted.rewind(6)
    assert upserted.checkpoints() == dict.fromkeys(range(1, 7), 1)
    maintain(upserted.sink(), "p")
    upserted.rewind(3)
    assert upserted.checkpoints() == dict.fromkeys(range(1, 4), 1)


def test_below_the_floor_it_is_refused_with_the_reason_before_anything_is_gone(
    upserted: World,
) -> None:
    """Scenario: maintenance has set the floor, and dies before it removes the first file."""
    dies(killed_at, upserted.sink(), "p", CrashPoint.PLANNED)
    head = upserted.head()
    assert head is not None
    before = upserted.checkpoints()
    entry = child_of(head, operation=Operation.REWIND, target=3)
    with (
        upserted.sink().open("p") as session,
        pytest.raises(RefusedError, match=r"maintenance may have deleted files removed befor"),
    ):
        session.publish(entry, StagedOutput())
    assert upserted.checkpoints() == before


def test_a_restore_that_meets_the_floor_is_refused(upserted: World) -> None:
    """Scenario: maintenance takes its turn after the rewind has looked, and before it commits."""
    head = upserted.head()
    assert head is not None
    before = upserted.checkpoints()
    entry = child_of(head, operation=Operation.REWIND, target=3)
    met = at(CrashPoint.ENTRY_SENT, lambda: maintain(upserted.sink(), "p", AT_ONCE))
    with upserted.sink().open("p") as session, pytest.raises(RefusedError, match="maintenance may"):
        session.publish(entry, StagedOutput(), met)
    assert upserted.checkpoints() == before


@pytest.mark.parametrize(
    ("setting", "hours"), [(None, 48), ("interval 1 days", 24), ("interval 9 weeks", 48)]
)
def test_the_floor_is_where_the_log_still_tells_what_left_the_table(
    world: World, setting: str | None, hours: int
) -> None:
    """Later a file looks as old as it was written, and may be removed before ``keep`` is over."""
    grow(world)
    if setting:
        name = "delta.deletedFileRetentionDuration"
        world.observe().alter.set_table_properties({name: setting})
    maintain(world.sink(), "p", Maintenance(keep="2d"))
    floor = world.observe().transaction_version(FLOOR)
    assert floor is not None
    margin = 1
    assert time.time() - floor / 1000 == pytest.approx((hours - margin) * 3600, abs=60)


# In a bucket, and in a container of Azure's.


@on_stores("bucket", "azure")
def test_in_a_store(store: StoreFolder) -> None:
    sink = DeltaSink(path=f"{store.uri}/kept/flights", storage=store.storage)
    head = publish(sink, 6)
    told = maintain(sink, "p", AT_ONCE, dry_run=True)
    assert told["compact"].files_after == 1
    dies(killed_at, sink, "p", CrashPoint.ROWS_SENT)
    done = maintain(sink, "p", AT_ONCE)
    assert (done["compact"].files, done["compact"].files_after) == (6, 1)
    with sink.open("p") as session:
        entry = child_of(head, operation=Operation.REWIND, target=4)
        session.publish(entry, StagedOutput())
        lineage = pa.Table.from_batches(session.lineage())
    assert lineage[CHECKPOINT_COLUMN].value_counts().to_pylist() == [
        {"values": n, "counts": 3} for n in range(1, 5)
    ]
    maintain(sink, "p", AT_ONCE)
    rows = [found.place for found in files_below(of_rows(sink))]
    written_anew = [place for place in rows if "published" in str(place)]
    assert len(written_anew) == 1, "without the rows that the rewind took"
    assert len(rows) == 2, "what the killed one wrote is young and stays, the rest is gone"


def of_rows(sink: DeltaSink) -> Place:
    return sink.root / "eo_rows"


def publish(sink: DeltaSink, checkpoints: int) -> LedgerEntry:
    with sink.open("p") as session:
        head = first_entry("p")
        session.publish(head, StagedOutput())
        for n in range(1, checkpoints + 1):
            head = child_of(head, 3)
            session.publish(head, StagedOutput(rows=StagedTable.in_memory(rows_of(n))))
        return head

"""Delta Lake's own traps: what delta-rs accepts, loses or leaves behind unless one takes care."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from eo_pipeline.checkpoint import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    RefusedError,
    SchemaChangeError,
    SinkError,
)
from eo_pipeline.sinks.base import CommitOutcome
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.lake.ledger import LedgerFiles
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.staged import StagedOutput, StagedTable
from eo_pipeline.testing import CrashRequested, child_of, dead_letters, raise_at
from tests.contract.delta_world import World, rows_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "table")


def in_memory(table: pa.Table) -> StagedOutput:
    return StagedOutput(rows=StagedTable.in_memory(table))


# Compare-and-swap.


def publish_apart(root: str, entries: list[LedgerEntry], barrier: Any, results: Any) -> None:
    sink = DeltaSink(path=root)
    for entry in entries:
        barrier.wait(60)
        try:
            with sink.open("p") as session:
                outcome = str(session.publish(entry, in_memory(rows_of(entry.version))))
        except FencedError:
            outcome = "fenced"
        results.put((entry.version, entry.transaction_id, outcome))


def test_of_several_processes_exactly_one_gets_each_version(world: World) -> None:
    """Scenario: three processes at once, each round on top of what the first of them wrote."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    head = world.forward()
    rivals = [[child_of(head, 3)] for _ in range(3)]
    processes = [
        context.Process(target=publish_apart, args=(str(world.root), mine, barrier, results))
        for mine in rivals
    ]
    for process in processes:
        process.start()
    outcomes = sorted(results.get(timeout=60)[2] for _ in rivals)
    for process in processes:
        process.join(60)
    assert outcomes == ["committed", "fenced", "fenced"]
    assert world.checkpoints() == {1: 3, 2: 3}


def optimize(world: World) -> None:
    world.optimize()


def append_of_another_application(world: World) -> None:
    foreign = rows_of(1).set_column(1, CHECKPOINT_COLUMN, pa.nulls(3, pa.int64()))
    other = CommitProperties(app_transactions=[Transaction("other", 7)])
    write_deltalake(str(world.root), foreign, mode="append", commit_properties=other)


def update_by_a_person(world: World) -> None:
    world.observe().update({"id": "id + 1000"}, predicate=f"{CHECKPOINT_COLUMN} = 1")


def delete_by_a_person(world: World) -> None:
    world.observe().delete("id = 100")


def setting_by_a_person(world: World) -> None:
    world.observe().alter.set_table_properties({"delta.checkpointInterval": "77"})


def column_by_a_person(world: World) -> None:
    new = Schema.from_arrow(pa.schema([("remark", pa.string())])).fields[0]
    world.observe().alter.add_columns([new])


def checkpoint_and_vacuum(world: World) -> None:
    table = world.observe()
    table.create_checkpoint()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=False)


@pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize(
    "foreign",
    [
        optimize,
        append_of_another_application,
        update_by_a_person,
        delete_by_a_person,
        setting_by_a_person,
        column_by_a_person,
        checkpoint_and_vacuum,
    ],
)
def test_foreign_work_just_before_our_commit_is_tolerated(
    world: World, foreign: Callable[[World], None], files: bool
) -> None:
    world.forward(rows_of(1), rows_of(2))
    head = world.head()
    assert head is not None
    entry = child_of(head, 3)
    done: list[int] = []

    def once(point: CrashPoint) -> None:
        if point is CrashPoint.ENTRY_SENT and not done:
            done.append(1)
            foreign(world)

    world.commit(entry, world.staged(rows_of(3), entry, files=files), once)

    assert world.checkpoints()[3] == 3
    assert [e.version for e in world.history()] == [0, 1, 2, 3]
    assert len(world.ledger_files()) == 4, "the overtaken try left its ledger file"


def test_a_second_run_of_ours_between_is_fenced(world: World) -> None:
    head = world.forward()
    mine, rival = child_of(head, 3), child_of(head, 3)

    def rival_first(point: CrashPoint) -> None:
        if point is CrashPoint.ENTRY_SENT:
            world.commit(rival, in_memory(rows_of(2)))

    with pytest.raises(FencedError), world.sink().open("p") as session:
        session.publish(mine, in_memory(rows_of(5)), rival_first)
    assert world.checkpoints() == {1: 3, 2: 3}


def test_two_first_rows_at_once_create_one_table(world: World) -> None:
    """Scenario: the table does not exist, and somebody creates it just before our commit."""
    start = world.start()
    mine, rival = child_of(start, 3), child_of(start, 3)

    def rival_first(point: CrashPoint) -> None:
        if point is CrashPoint.ENTRY_SENT:
            world.commit(rival, in_memory(rows_of(1)))

    with pytest.raises(FencedError), world.sink().open("p") as session:
        session.publish(mine, in_memory(rows_of(5)), rival_first)
    assert world.checkpoints() == {1: 3}


def test_a_table_that_another_pipeline_creates_meanwhile_is_joined(world: World) -> None:
    entry = child_of(world.start(), 3)
    other = World(world.root, pipeline="other")

    def other_first(point: CrashPoint) -> None:
        if point is CrashPoint.ENTRY_SENT and not DeltaTable.is_deltatable(str(world.root)):
            other.forward(rows_of(1, 2))

    world.commit(entry, in_memory(rows_of(1)), other_first)
    assert world.checkpoints() == {1: 5}
    assert [e.version for e in other.history()] == [0, 1]


@pytest.mark.parametrize("landed", [True, False])
def test_an_error_nobody_can_explain_is_an_unknown_outcome(
    world: World, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Scenario: delta-rs raises although the commit landed (a failing hook does that), or raises
    without it. Outcome: unknown; the same transaction tried again lands exactly once.
    """
    entry = child_of(world.forward(), 3)
    real = DeltaTable.create_write_transaction

    def torn(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        if landed:
            real(self, *args, **kwargs)
        raise DeltaError("connection reset")

    with monkeypatch.context() as broken:
        broken.setattr(DeltaTable, "create_write_transaction", torn)
        with pytest.raises(CommitUnknownError), world.sink().open("p") as session:
            session.publish(entry, in_memory(rows_of(2)))
    with world.sink().open("p") as session:
        outcome = session.publish(entry, in_memory(rows_of(2)))
    assert outcome is (CommitOutcome.ALREADY_COMMITTED if landed else CommitOutcome.COMMITTED)
    assert world.checkpoints() == {1: 3, 2: 3}


def test_files_that_are_gone_because_another_run_published_them_are_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = child_of(world.forward(), 3)
    staged = world.staged(rows_of(2), entry)

    def too_late(self: StagedOutput) -> None:
        monkeypatch.undo()
        world.commit(entry, staged)
        raise RefusedError("staged file part-00000.parquet is missing")

    monkeypatch.setattr(StagedOutput, "verify", too_late)
    with world.sink().open("p") as session:
        assert session.publish(entry, staged) is CommitOutcome.ALREADY_COMMITTED


def test_a_log_checkpoint_that_fails_does_not_fail_the_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: DeltaTable) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(DeltaTable, "create_checkpoint", full)
    world.forward(*(rows_of(v) for v in range(1, 11)))
    assert "disk full" in caplog.text
    assert world.checkpoints()[10] == 3


def test_the_log_is_checkpointed_as_it_grows(world: World) -> None:
    world.forward(*(rows_of(v) for v in range(1, 12)))
    assert list((world.root / "_delta_log").glob("*.checkpoint.parquet"))


# The ledger and what must not hurt it.


def test_head_and_history_survive_vacuum_and_a_cleaned_log(world: World) -> None:
    world.forward(*(rows_of(v) for v in range(1, 6)))
    world.rewind(3)
    head = world.forward(rows_of(7))
    before = world.history()
    world.forget()
    assert len(list((world.root / "_delta_log").glob("*.json"))) < len(before)
    assert world.history() == before
    assert world.head() == before[-1]
    assert before[-1].id == head.id
    world.forward(rows_of(8))
    assert world.checkpoints() == {1: 3, 2: 3, 3: 3, 7: 3, 8: 3}


def test_decoys_of_lost_attempts_are_not_history_and_recover_removes_them(world: World) -> None:
    head = world.forward()
    for _ in range(3):
        with pytest.raises(CrashRequested):
            world.commit(child_of(head, 3), in_memory(rows_of(2)), raise_at(CrashPoint.ENTRY_SENT))
    assert len(world.ledger_files()) == 5
    with world.sink().open("p") as session:
        assert session.entry(2) is None
        session.recover()
    assert len(world.ledger_files()) == 5, "an attempt at the next version may be alive"
    landed = world.forward(rows_of(2))
    rows = list((world.root / "eo_rows").rglob("*.parquet"))
    assert (len(world.ledger_files()), len(rows)) == (6, 5)
    with world.sink().open("p") as session:
        assert session.entry(2) == world.history()[2]
        session.recover()
    assert len(world.ledger_files()) == 3
    assert len(list((world.root / "eo_rows").rglob("*.parquet"))) == 2
    assert world.checkpoints() == {1: 3, 2: 3}
    assert world.history()[2].id == landed.id


def test_an_old_entry_is_found_in_few_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start()
    with world.sink().open("p") as session:
        head = session.head()
        assert head is not None
        for _ in range(300):
            head = child_of(head)
            session.publish(head, StagedOutput())
    reads: list[object] = []
    real = LedgerFiles._read

    def counted(self: LedgerFiles, pointer: Any) -> Any:
        reads.append(pointer)
        return real(self, pointer)

    monkeypatch.setattr(LedgerFiles, "_read", counted)
    for version in (0, 1, 150, 299):
        reads.clear()
        with world.sink().open("p") as session:
            found = session.entry(version)
        assert found is not None
        assert found.version == version
        assert len(reads) <= 20


def test_a_ledger_file_that_is_gone_is_an_error_in_words(world: World) -> None:
    world.forward()
    for path in (world.root / "_eo_ledger").rglob("000000000001-*.json"):
        path.unlink()
    with pytest.raises(SinkError, match="bring the folder _eo_ledger back"):
        world.head()


def test_a_log_restored_from_a_backup_is_not_mistaken_for_the_newer_one(world: World) -> None:
    """Scenario: the table's log comes back without its last commit, and the version is reused."""
    world.forward(rows_of(1), rows_of(2))
    lost = world.history()[2]
    newest = max((world.root / "_delta_log").glob("*.json"))
    newest.unlink()
    head = world.head()
    assert head is not None
    assert head.version == 1
    world.forward(rows_of(2))
    with pytest.raises(FencedError), world.sink().open("p") as session:
        session.publish(child_of(lost, 3), in_memory(rows_of(3)))


def test_files_a_rewind_took_out_are_removed_by_vacuum(world: World) -> None:
    """Files in a hidden folder would stay for ever, whatever vacuums."""
    world.forward(rows_of(1), files=True)
    world.forward(rows_of(2), files=True)
    world.forward(rows_of(3))
    world.rewind(1)
    assert len(list((world.root / "eo_rows").rglob("*.parquet"))) == 3
    world.forget()
    assert len(list((world.root / "eo_rows").rglob("*.parquet"))) == 1
    assert world.checkpoints() == {1: 3}
    assert len(world.history()) == 5


def test_dead_letters_of_a_lost_attempt_are_never_read(world: World) -> None:
    head = world.forward()
    lost = StagedOutput(StagedTable.in_memory(rows_of(2)), dead_letters(2, [b"lost"]))
    with pytest.raises(CrashRequested):
        world.commit(child_of(head, 3), lost, raise_at(CrashPoint.ENTRY_SENT))
    kept = StagedOutput(StagedTable.in_memory(rows_of(2)), dead_letters(2, [b"kept"]))
    world.commit(child_of(head, 3), kept)
    assert world.sink().dead_letters("p")["value"].to_pylist() == [b"kept"]
    with world.sink().open("p") as session:
        session.recover()
    assert len(list((world.root / "_eo_ledger").rglob("*.parquet"))) == 1
    world.forget()
    assert world.sink().dead_letters("p")["value"].to_pylist() == [b"kept"]


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
    newest.write_text(newest.read_text().replace("%25C3%25BC", "ü").replace("%C3%BC", "ü"))
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


def deletion_vectors(world: World) -> None:
    with_features(world, "deletionVectors", reader=True)


def test_an_upsert_into_an_append_only_table_is_refused(world: World) -> None:
    merge_instead(world)
    world.forward(rows_of(1))
    append_only(world)
    with pytest.raises(RefusedError, match="appendOnly"):
        world.forward(rows_of(2))


def test_a_table_with_deletion_vectors_takes_rows_and_gives_none_back(world: World) -> None:
    table_of(world, ID_ONLY)
    deletion_vectors(world)
    world.forward(rows_of(1), rows_of(2))
    with pytest.raises(RefusedError, match="deletion vectors"):
        world.rewind(1)
    assert world.observe().count() == 6


# Tables with rules of their own.


def with_features(world: World, *features: str, reader: bool = False) -> None:
    """Give a new table's first log entry a protocol with ``features``."""
    log = world.root / "_delta_log" / "00000000000000000000.json"
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(features) if reader else [],
        "writerFeatures": list(features),
    }
    text = json.dumps({"protocol": protocol})
    lines = [text if '"protocol"' in line else line for line in log.read_text().splitlines()]
    log.write_text("\n".join(lines))


def table_of(world: World, schema: pa.Schema, **settings: str) -> DeltaTable:
    return DeltaTable.create(
        str(world.root), Schema.from_arrow(schema), configuration=dict(settings)
    )


ID_ONLY = pa.schema([("id", pa.int64()), (CHECKPOINT_COLUMN, pa.int64())])


def test_a_table_with_a_check_that_files_would_bypass_is_refused(world: World) -> None:
    table_of(world, ID_ONLY).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(ConfigError, match=r"delta\.constraints\.positive"):
        world.start()


def test_a_table_with_a_feature_of_the_future_is_refused(world: World) -> None:
    table_of(world, ID_ONLY)
    with_features(world, "rowTracking")
    with pytest.raises(ConfigError, match="rowTracking"):
        world.start()


def test_a_null_where_the_table_takes_none_is_refused(world: World) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ID_ONLY.field(1)])
    table_of(world, strict)
    world.forward(rows_of(1))
    holes = rows_of(2).set_column(0, "id", pa.array([1, None, 3]))
    with pytest.raises(RefusedError, match="id"):
        world.forward(holes)
    with pytest.raises(RefusedError, match="id"):
        world.forward(rows_of(2).drop_columns(["id"]))
    assert world.checkpoints() == {1: 3}


def test_other_partition_columns_than_the_tables_are_refused(world: World) -> None:
    world.settings["partition_by"] = ["kind"]
    world.forward(rows_of(1, kind=pa.array(["a"] * 3)))
    world.settings["partition_by"] = ["id"]
    with pytest.raises(ConfigError, match="partitioned by kind"):
        world.head()


# Types, names, columns.


def test_a_column_without_time_zone_is_added_to_an_old_table(world: World) -> None:
    """The table's protocol must rise for it; delta-rs does that in the same commit."""
    table_of(world, ID_ONLY)
    wall = datetime(2013, 1, 1, 5, 15)  # noqa: DTZ001 - without a zone is the point
    world.forward(rows_of(1, at=pa.array([wall] * 3, pa.timestamp("us"))))
    assert {row["at"] for row in world.rows()} == {wall}
    assert "timestampNtz" in (world.observe().protocol().writer_features or [])


def test_nested_values_come_back_equal(world: World) -> None:
    nested: list[Any] = [
        {"a": [1, None], "m": [("k", {"d": date(2013, 1, 1)})]},
        None,
        {"a": [], "m": []},
    ]
    kind = pa.struct(
        [
            ("a", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.struct([("d", pa.date32())]))),
        ]
    )
    world.forward(rows_of(1, x=pa.array(nested, kind)))
    world.forward(rows_of(2, x=pa.array(nested, kind)), files=True)
    found = sorted(world.rows(), key=lambda row: row["id"])
    assert [row["x"] for row in found] == nested * 2


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (pa.array([1, 2, 3], pa.uint32()), SchemaChangeError),
        (pa.nulls(3), SchemaChangeError),
        (pa.array([1, 2, 3], pa.time64("us")), SchemaChangeError),
        (pa.array([{"t": 1}] * 3, pa.struct([("t", pa.duration("us"))])), SchemaChangeError),
        (pa.array([1, 2, 3], pa.timestamp("ns", "UTC")), RefusedError),
    ],
    ids=str,
)
def test_what_delta_cannot_hold_is_refused_by_name(
    world: World, values: pa.Array, error: type[RefusedError]
) -> None:
    with pytest.raises(error, match="odd" if error is SchemaChangeError else "would lose data"):
        world.forward(rows_of(1, odd=values))
    assert [entry.version for entry in world.history()] == [0]


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "a=b", "a(b", ""])
def test_a_name_delta_does_not_take_is_refused(world: World, name: str) -> None:
    with pytest.raises(RefusedError, match="Rename"):
        world.forward(rows_of(1, **{name: pa.array([1, 2, 3])}))


def test_a_name_that_differs_in_case_only_is_refused(world: World) -> None:
    world.forward(rows_of(1))
    with pytest.raises(SchemaChangeError, match="'ID'"):
        world.forward(rows_of(2).rename_columns(["ID", CHECKPOINT_COLUMN]))


def test_forms_of_one_type_are_stored_alike(world: World) -> None:
    """What Spark, pandas and Arrow call text or an instant is one column here."""
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    for version, (text, instant) in enumerate(
        [
            (pa.array(["a"] * 3), pa.array([noon] * 3, pa.timestamp("us", "UTC"))),
            (
                pa.array(["a"] * 3, pa.large_string()),
                pa.array([noon] * 3, pa.timestamp("ns", "UTC")),
            ),
            (
                pa.array(["a"] * 3).dictionary_encode(),
                pa.array([noon] * 3, pa.timestamp("s", "Asia/Tokyo")),
            ),
        ],
        start=1,
    ):
        world.forward(rows_of(version, text=text, instant=instant))
    assert {(row["text"], row["instant"]) for row in world.rows()} == {("a", noon)}


# Statistics.


def test_statistics_let_a_reader_skip_and_count(world: World) -> None:
    world.forward(rows_of(1), files=True)
    world.forward(rows_of(2), rows_of(3))
    table = world.observe()
    dataset = table.to_pyarrow_dataset()
    wanted = pa.compute.field("id") == 201
    assert len(list(dataset.get_fragments(filter=wanted))) == 1
    assert dataset.to_table(filter=wanted).num_rows == 1
    assert table.count() == 9


def test_no_bound_of_the_statistics_excludes_a_row(world: World) -> None:
    """Bounds are cut or rounded outwards; where none is certain, there is none."""
    long = "x" * 40
    world.forward(
        rows_of(
            1,
            text=pa.array([long + "a", long + "z", "a"]),
            top=pa.array(["y" * 32 + "\U0010ffff\U0010ffff"] * 3),
            at=pa.array(
                [datetime(2013, 1, 1, 0, 0, 0, 999_999, UTC)] * 3, pa.timestamp("us", "UTC")
            ),
            day=pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
            price=pa.array([Decimal("-1.10"), Decimal("99999999999.99"), None]),
            number=pa.array([1.0, float("nan"), 2.0]),
            end=pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_999)] * 3),  # noqa: DTZ001
        )
    )
    [action] = pa.table(world.observe().get_add_actions(flatten=True)).to_pylist()
    assert action["min.text"] <= "a"
    assert action["max.text"] >= long + "z"
    assert len(action["max.text"]) == 33
    assert action.get("max.top") is None
    assert action["max.at"] == datetime(2013, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert action["min.at"] == datetime(2013, 1, 1, 0, 0, 0, 999_000, UTC)
    assert (action["min.day"], action["max.day"]) == (date(1, 1, 1), date(9999, 12, 31))
    assert (action["min.price"], action["max.price"]) == (
        Decimal("-1.10"),
        Decimal("99999999999.99"),
    )
    assert action.get("max.number") is None
    assert action.get("max.end") is None
    assert action["null_count.day"] == 1
    assert len(world.rows()) == 3


def test_a_table_too_wide_for_statistics_of_the_checkpoint_is_rewound_too(world: World) -> None:
    """Readers load the statistics of the first 32 columns: whose rows a file holds is not known."""
    wide = {f"c{n}": pa.array([n] * 3) for n in range(60)}
    for version in (1, 2, 3):
        rows = rows_of(version)
        world.forward(pa.table({**wide, **{name: rows[name] for name in rows.column_names}}))
    [action, *_] = pa.table(world.observe().get_add_actions(flatten=True)).to_pylist()
    assert action["max.c31"] == 31
    assert action.get(f"max.{CHECKPOINT_COLUMN}") is None
    world.rewind(1)
    assert world.checkpoints() == {1: 3}


# Layout by partition columns.


def test_partition_values_of_every_kind_come_back_equal(world: World) -> None:
    columns = {
        "word": pa.array(["a/b c=ü%:", None, "x"]),
        "day": pa.array([date(2013, 1, 1), None, date(1999, 12, 31)]),
        "yes": pa.array([True, None, False]),
        "price": pa.array([Decimal("1.10"), None, Decimal("-3.00")], pa.decimal128(10, 2)),
        "at": pa.array(
            [datetime(2013, 1, 1, 5, 15, 0, 7, UTC), None, datetime(2000, 1, 1, tzinfo=UTC)]
        ),
    }
    world.settings["partition_by"] = list(columns)
    world.forward(rows_of(1, **columns))
    found = sorted(world.rows(), key=lambda row: row["id"])
    assert [{n: row[n] for n in columns} for row in found] == pa.table(columns).to_pylist()
    frame = pl.read_delta(str(world.root)).sort("id")
    assert frame["day"].to_list() == columns["day"].to_pylist()


def test_files_staged_for_another_layout_are_refused(world: World) -> None:
    """Scenario: promised while the table had no partitions, found after it was made anew."""
    world.settings["partition_by"] = ["word"]
    with pytest.raises(RefusedError, match="2 values of the partition column 'word'"):
        world.forward(rows_of(1, word=pa.array(["a", "b", "b"])), files=True)


def test_a_partitioned_table_must_be_configured_as_such(world: World) -> None:
    world.settings["partition_by"] = ["word"]
    world.forward(rows_of(1, word=pa.array(["a"] * 3)))
    world.settings["partition_by"] = []
    with pytest.raises(ConfigError, match="partitioned by word, not by nothing"):
        world.head()


def test_an_empty_text_to_partition_by_is_refused(world: World) -> None:
    world.settings["partition_by"] = ["word"]
    with pytest.raises(RefusedError, match="word"):
        world.forward(rows_of(1, word=pa.array(["", "a", "b"])))


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


def test_a_merge_adds_a_column_in_its_own_commit(flights: World) -> None:
    flights.forward(state(1, (1, 1, 1, "a"), (2, 1, 1, "b")))
    version = flights.observe().version()
    wider = state(2, (1, 1, 2, "c")).append_column("tail", pa.array(["N1"]))
    flights.forward(wider)
    assert flights.observe().version() == version + 1
    assert {row["id"]: row["tail"] for row in flights.rows()} == {1: "N1", 2: None}


def test_a_row_without_key_or_sequence_is_refused(flights: World) -> None:
    flights.forward(state(1, (1, 1, 1, "a")))
    with pytest.raises(RefusedError, match="'day'"):
        flights.forward(state(2, (2, 1, 1, "b")).set_column(1, "day", pa.nulls(1, pa.int64())))


def test_rows_to_merge_wait_in_no_visible_folder(flights: World, world: World) -> None:
    assert flights.sink().staging_folders().rows is None
    assert World(world.root).sink().staging_folders().rows == world.root / "eo_rows"


# Readers.


def test_polars_and_duckdb_read_the_same(world: World) -> None:
    world.forward(rows_of(1), files=True)
    world.forward(rows_of(2, word=pa.array(["a", None, "ü"])))
    frame = pl.read_delta(str(world.root)).sort("id")
    assert frame["word"].to_list() == [None, None, None, "a", None, "ü"]
    rows = world.observe().to_pyarrow_dataset()
    assert rows is not None
    found = duckdb.sql(f"select count(*), sum({CHECKPOINT_COLUMN}) from rows")
    assert found is not None
    assert found.fetchall() == [(6, 9)]


# Configuration.


@pytest.mark.parametrize("path", ["s3://bucket/table", "abfss://c@a/t", "hdfs://n/t"])
def test_an_object_store_is_refused_in_words(path: str) -> None:
    with pytest.raises(ConfigError, match=r"sink\.path.*not supported yet"):
        sink_from_config({"type": "delta", "path": path})


def test_options_are_never_shown(world: World) -> None:
    sink = world.sink(storage_options={"timeout": "s3cret"})
    assert "s3cret" not in f"{sink!r} {sink} {sink.describe()}"


def test_without_the_package_the_extra_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith("eo_pipeline.sinks.delta.session")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("table", "commit", "rows", "going_back"):
        monkeypatch.delitem(sys.modules, f"eo_pipeline.sinks.delta.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"pip install 'eo-pipeline\[delta\]'"):
        world.sink().open("p")


def test_opening_creates_nothing(world: World) -> None:
    world.head()
    assert not world.root.exists()


def test_the_start_of_a_pipeline_makes_no_table(world: World) -> None:
    world.start()
    assert not DeltaTable.is_deltatable(str(world.root))
    assert os.listdir(world.root) == ["_eo_ledger"]


def test_a_name_that_is_a_path_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="name:"):
        world.sink().open("../x")

"""Delta Lake's own traps: what delta-rs accepts, loses or leaves behind unless one takes care."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import create_table_with_add_actions

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    LedgerDamagedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.delta import session as publication
from eo_pipeline.sinks.delta.commit import ledger_commit, maintenance_commit
from eo_pipeline.sinks.lake.ledger import FIRST, LedgerFiles
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import CrashRequested, child_of, dead_letters, first_entry, raise_at
from tests.sinks.delta.delta_world import (
    World,
    append_of_another_application,
    in_memory,
    optimize,
    rows_of,
    world,
)

__all__ = ["world"]


# Compare-and-swap.


def publish_apart(root: str, entries: list[LedgerEntry], barrier: Any, results: Any) -> None:
    sink = DeltaSink(path=root)
    for entry in entries:
        barrier.wait(240)
        try:
            with sink.open("p") as session:
                outcome = str(session.publish(entry, in_memory(rows_of(entry.version))))
        except FencedError:
            outcome = "fenced"
        results.put((entry.version, entry.transaction_id, outcome))


@pytest.mark.parametrize("behind", [1, 3], ids=["delta-rs commits", "we commit"])
def test_of_several_processes_exactly_one_gets_each_version(world: World, behind: int) -> None:
    """Scenario: three processes at once, each round on top of what the first of them wrote."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    head = world.forward(*(rows_of(number + 1) for number in range(behind)))
    rivals = [[child_of(head, 3)] for _ in range(3)]
    processes = [
        context.Process(target=publish_apart, args=(str(world.root), mine, barrier, results))
        for mine in rivals
    ]
    for process in processes:
        process.start()
    outcomes = sorted(results.get(timeout=240)[2] for _ in rivals)
    for process in processes:
        process.join(240)
    assert outcomes == ["committed", "fenced", "fenced"]
    assert world.checkpoints() == dict.fromkeys(range(1, behind + 2), 3)


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


def test_a_table_that_was_created_and_called_not_created_is_created(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap: that a table is there is no proof that somebody else created it."""
    entry = child_of(world.start(), 3)

    def torn(*args: Any, **kwargs: Any) -> None:
        create_table_with_add_actions(*args, **kwargs)
        raise DeltaError("connection reset")

    monkeypatch.setattr(publication, "create_table_with_add_actions", torn)
    world.commit(entry, in_memory(rows_of(1)))
    assert world.head() == world.history()[1]
    assert world.checkpoints() == {1: 3}


def test_a_try_that_failed_before_its_commit_leaves_no_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # behind two of its own: what the table is has been told then, and stays
    head = world.forward(rows_of(1), rows_of(2))
    before = sorted(world.root.rglob("*"))

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as broken, world.sink().open("p") as session:
        broken.setattr(LedgerFiles, "write", full)
        staged = StagedOutput(in_memory(rows_of(3)).rows, dead_letters(3, [b"{"]))
        with pytest.raises(SinkUnavailableError, match="no space left"):
            session.publish(child_of(head, staged), staged)
    assert [path for path in sorted(world.root.rglob("*")) if path.is_file()] == [
        path for path in before if path.is_file()
    ]
    world.commit(child_of(head, 3), in_memory(rows_of(3)))


def test_files_that_are_gone_because_another_run_published_them_are_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = child_of(world.forward(), 3)
    staged = world.staged(rows_of(2), entry)

    def too_late(self: StagedOutput, _: LedgerEntry) -> None:
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
    with pytest.raises(LedgerDamagedError, match=r"_eo_ledger.*Bring the ledger back"):
        world.head()


@pytest.mark.parametrize("last", [2, 4])
def test_a_log_restored_from_a_backup_is_not_mistaken_for_the_newer_one(
    world: World, last: int
) -> None:
    """Scenario: the table's log comes back without its last commit, and the version is reused."""
    world.forward(*(rows_of(number) for number in range(1, last + 1)))
    with world.sink().open("p") as session:
        lost = session.head()
        assert lost is not None
        newest = max((world.root / "_delta_log").glob("*.json"))
        newest.unlink()
        head = world.head()
        assert head is not None
        assert head.version == last - 1
        world.forward(rows_of(last))
        with pytest.raises(FencedError):
            session.publish(child_of(lost, 3), in_memory(rows_of(last + 1)))


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
        world.commit(child_of(head, lost), lost, raise_at(CrashPoint.ENTRY_SENT))
    kept = StagedOutput(StagedTable.in_memory(rows_of(2)), dead_letters(2, [b"kept"]))
    world.commit(child_of(head, kept), kept)
    assert world.sink().dead_letters("p")["value"].to_pylist() == [b"kept"]
    with world.sink().open("p") as session:
        session.recover()
    assert len(list((world.root / "_eo_ledger").rglob("*.parquet"))) == 1
    world.forget()
    assert world.sink().dead_letters("p")["value"].to_pylist() == [b"kept"]


# Configuration.


@pytest.mark.parametrize("path", ["wasbs://c@a/t", "oss://b/t"])
def test_another_kind_of_store_is_refused_in_words(path: str) -> None:
    with pytest.raises(ConfigError, match=r"sink\.path.*not supported; use a folder, s3://"):
        sink_from_config({"type": "delta", "path": path})


def test_options_are_never_shown(world: World) -> None:
    sink = world.sink(storage_options={"timeout": "s3cret"})
    assert "s3cret" not in f"{sink!r} {sink} {sink.describe()}"


def test_without_the_package_the_extra_is_named(world: World) -> None:
    code = (
        "import sys; sys.modules['deltalake'] = None\n"
        "from eo_pipeline.errors import ConfigError\n"
        "from eo_pipeline.sinks.delta import DeltaSink\n"
        "try: DeltaSink(path=sys.argv[1]).open('p')\n"
        "except ConfigError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(world.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "pip install 'eo-pipeline[delta]'" in done.stdout


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


def test_delta_rs_retries_no_commit_of_ours() -> None:
    """It would put a commit on top of whatever came in between, and call it the same."""
    for arguments in (
        maintenance_commit({}),
        ledger_commit(first_entry("p"), FIRST, {}),
    ):
        assert arguments["commit_properties"].max_commit_retries == 0

"""What a folder of Parquet files does: its one rename, its readers, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    LedgerDamagedError,
    RefusedError,
    SchemaChangeError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.parquet import ParquetSink
from eo_pipeline.sinks.parquet import session as parquet_session
from eo_pipeline.sinks.parquet.session import ParquetSession
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import (
    CrashRequested,
    child_of,
    dead_letters,
    first_entry,
    raise_at,
    to_files,
)

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED


def staged(checkpoint: int, **columns: Any) -> StagedOutput:
    """Two rows of ``checkpoint``."""
    values: dict[str, Any] = {"id": [checkpoint * 10, checkpoint * 10 + 1], **columns}
    table = pa.table({**values, CHECKPOINT_COLUMN: pa.array([checkpoint] * 2, pa.int64())})
    return StagedOutput(rows=StagedTable.in_memory(table))


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    return ParquetSink(path=str(tmp_path / "flights"))


@pytest.fixture
def session(sink: ParquetSink) -> ParquetSession:
    opened = sink.open("events")
    assert isinstance(opened, ParquetSession)
    return opened


def publish(session: SinkSession, count: int, head: LedgerEntry | None = None) -> LedgerEntry:
    """``count`` more checkpoints; a new ledger gets its first entry."""
    if head is None:
        head = first_entry("events")
        assert session.publish(head, StagedOutput()) is COMMITTED
    for _ in range(count):
        head = child_of(head, 2)
        assert session.publish(head, staged(head.version)) is COMMITTED
    return head


class TestReaders:
    def test_duckdb_polars_and_arrow_see_rows_and_checkpoints_and_nothing_else(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        wider = staged(2, tail=["N1", "N2"]).rows
        output = StagedOutput(wider, dead_letters(2, [b"{"]))
        head = child_of(publish(session, 1), output)
        session.publish(head, output)
        with pytest.raises(CrashRequested):
            session.publish(child_of(head, 2), staged(3), raise_at(CrashPoint.ENTRY_SENT))

        expected = [(1, 10, None), (1, 11, None), (2, 20, "N1"), (2, 21, "N2")]
        files = f"{sink.root}/checkpoint=*/*.parquet"
        select = "select checkpoint, id, tail"
        options = "union_by_name = true, hive_partitioning = true"
        query = f"{select} from read_parquet('{files}', {options}) order by id"
        assert duckdb.connect().execute(query).fetchall() == expected
        frame = polars.scan_parquet(files, hive_partitioning=True, extra_columns="ignore")
        wide = polars.scan_parquet(f"{sink.root}/checkpoint=2/*.parquet", hive_partitioning=True)
        names = ["checkpoint", "id"]
        assert frame.select(names).sort("id").collect().rows() == [row[:2] for row in expected]
        assert wide.select([*names, "tail"]).sort("id").collect().rows() == expected[2:]
        arrow = ds.dataset(sink.root, partitioning="hive").to_table(columns=names)
        assert sorted(tuple(row.values()) for row in arrow.to_pylist()) == [
            row[:2] for row in expected
        ]
        assert sink.dead_letters("events").column("value").to_pylist() == [b"{"]

    def test_a_column_with_the_folders_name_is_refused(self, session: ParquetSession) -> None:
        head = publish(session, 0)
        with pytest.raises(SchemaChangeError, match="'Checkpoint'"):
            session.publish(child_of(head, 2), staged(1, Checkpoint=[1, 2]))

    def test_names_that_differ_in_case_are_refused(self, session: ParquetSession) -> None:
        head = publish(session, 1)
        table = pa.table({"ID": [1, 2], CHECKPOINT_COLUMN: pa.array([2, 2], pa.int64())})
        rows = StagedTable.in_memory(table)
        with pytest.raises(SchemaChangeError, match="'ID'"):
            session.publish(child_of(head, 2), StagedOutput(rows))

    def test_a_column_that_went_and_came_back_keeps_its_type(self, session: ParquetSession) -> None:
        head = child_of(publish(session, 0), 2)
        session.publish(head, staged(1, tail=["N1", "N2"]))
        head = publish(session, 1, head)
        with pytest.raises(SchemaChangeError, match="'tail'"):
            session.publish(child_of(head, 2), staged(3, tail=[1, 2]))

    def test_the_entry_says_its_columns_to_people(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        publish(session, 1)
        text = (sink.root / "checkpoint=1" / "_eo_ledger.json").read_text()
        assert json.loads(text)["columns"] == {"id": "int64", CHECKPOINT_COLUMN: "int64"}


class TestTheRename:
    def test_staged_files_are_not_copied_and_may_go(
        self, sink: ParquetSink, session: ParquetSession, tmp_path: Path
    ) -> None:
        entry = child_of(publish(session, 0), 2)
        rows = staged(1).rows
        assert rows is not None
        files = to_files(rows, tmp_path / "staged")
        before = {Path(str(path)).stat().st_ino for path in files.paths()}
        session.publish(entry, StagedOutput(files))
        shutil.rmtree(tmp_path / "staged")
        assert {p.stat().st_ino for p in sink.root.glob("checkpoint=1/*.parquet")} == before

    def test_where_there_are_no_hard_links_files_are_copied(
        self,
        sink: ParquetSink,
        session: ParquetSession,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def no_links(self: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(Path, "hardlink_to", no_links)
        entry = child_of(publish(session, 0), 2)
        rows = staged(1).rows
        assert rows is not None
        session.publish(entry, StagedOutput(to_files(rows, tmp_path / "staged")))
        shutil.rmtree(tmp_path / "staged")
        assert ds.dataset(sink.root, partitioning="hive").count_rows() == 2

    def test_a_lost_reply_is_unknown_and_then_already_committed(
        self, session: ParquetSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Scenario: a network file system renames and its answer gets lost."""
        entry = child_of(publish(session, 0), 2)
        rename = os.rename

        def lost(source: Path, target: Path) -> None:
            rename(source, target)
            raise OSError(errno.EIO, "no answer")

        monkeypatch.setattr(os, "rename", lost)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, staged(1))
        assert session.publish(entry, staged(1)) is ALREADY

    def test_a_rename_asked_for_twice_is_found(
        self, session: ParquetSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Scenario: the file system repeats the request, and the second answer is "no such"."""
        entry = child_of(publish(session, 0), 2)
        rename = os.rename

        def twice(source: Path, target: Path) -> None:
            rename(source, target)
            rename(source, target)

        monkeypatch.setattr(os, "rename", twice)
        assert session.publish(entry, staged(1)) is ALREADY

    def test_staged_files_that_another_run_committed_and_tidied_are_already_committed(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        entry = child_of(publish(session, 0), 2)

        class TidiedMeanwhile(StagedOutput):
            def verify(self, entry: LedgerEntry) -> None:
                assert sink.open("events").publish(entry, staged(1)) is COMMITTED
                raise RefusedError("staged file part-00000.parquet is missing")

        assert session.publish(entry, TidiedMeanwhile(staged(1).rows)) is ALREADY

    def test_an_empty_folder_in_the_way_is_replaced(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        """POSIX rename does that, so a checkpoint's folder always holds its entry."""
        head = publish(session, 0)
        (sink.root / "checkpoint=1").mkdir()
        publish(session, 1, head)
        assert sorted(os.listdir(sink.root / "checkpoint=0")) == ["_eo_ledger.json"]

    def test_a_foreign_folder_in_the_way_is_not_replaced(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        head = publish(session, 0)
        (sink.root / "checkpoint=1").mkdir()
        (sink.root / "checkpoint=1" / "mine.txt").touch()
        with pytest.raises(LedgerDamagedError, match="not made by this pipeline, and") as told:
            session.publish(child_of(head, 2), staged(1))
        assert not told.value.retryable, "it stays until a person moves it away"
        shutil.rmtree(sink.root / "checkpoint=1")
        publish(session, 1, head)

    def test_a_full_disk_is_unavailable_and_leaves_nothing(
        self, sink: ParquetSink, session: ParquetSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        head = publish(session, 1)

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        with monkeypatch.context() as patched:
            # by the name that the sink has: a module that is imported when it is used
            patched.setattr(vars(parquet_session)["pq"], "write_table", full)
            with pytest.raises(SinkUnavailableError, match="no space"):
                session.publish(child_of(head, 2), staged(2))
        assert os.listdir(sink.root / "_eo_publishing") == []
        publish(session, 1, head)

    def test_recover_removes_what_lost_its_version_and_nothing_that_may_live(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        head = publish(session, 0)
        for _ in range(2):
            with pytest.raises(CrashRequested):
                session.publish(child_of(head, 2), staged(1), raise_at(CrashPoint.ENTRY_SENT))
        session.recover()
        assert len(os.listdir(sink.root / "_eo_publishing")) == 2
        publish(session, 1, head)
        session.recover()
        assert os.listdir(sink.root / "_eo_publishing") == []

    def test_a_zombie_whose_folder_was_removed_is_fenced(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        head = publish(session, 0)

        def others_go_on(point: CrashPoint) -> None:
            if point is CrashPoint.ENTRY_SENT:
                other = sink.open("events")
                publish(other, 1, head)
                other.recover()

        with pytest.raises(FencedError):
            session.publish(child_of(head, 2), staged(7), others_go_on)


class TestTheHead:
    @pytest.mark.parametrize("hint", [None, "0", "2", "40", "999", "rubbish", ""])
    def test_is_found_whatever_the_hint_says(
        self, sink: ParquetSink, session: ParquetSession, hint: str | None
    ) -> None:
        head = publish(session, 40)
        path = sink.root / "_eo_head"
        path.unlink()
        if hint is not None:
            path.write_text(hint)
        found = sink.open("events").recover()
        assert found is not None
        assert found.id == head.id
        assert path.read_text() == "40"

    def test_costs_no_listing_however_long_the_ledger(
        self, session: ParquetSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        head = publish(session, 5)

        def listed(*_: object) -> list[str]:
            pytest.fail("the folder was listed")

        monkeypatch.setattr(os, "listdir", listed)
        found = session.head()
        assert found is not None
        assert found.id == head.id
        publish(session, 1, head)

    def test_of_a_folder_from_a_backup_fences_what_was_planned_from_the_newer_one(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        head = publish(session, 3)
        shutil.rmtree(sink.root / "checkpoint=3")
        older = session.recover()
        assert older is not None
        assert older.version == 2
        with pytest.raises(FencedError):
            session.publish(child_of(head, 2), staged(4))
        publish(session, 1, older)

    def test_a_missing_version_is_said_and_never_filled(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        publish(session, 3)
        before = session.entry(1)
        assert before is not None
        shutil.rmtree(sink.root / "checkpoint=2")
        (sink.root / "_eo_head").unlink()
        head = session.head()
        assert head is not None
        assert head.version == 3
        with pytest.raises(FencedError):
            session.publish(child_of(before, 2), staged(2))
        with pytest.raises(LedgerDamagedError, match=r"missing: .*checkpoint=2"):
            list(session.history())

    def test_an_entry_that_was_damaged_is_said(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        publish(session, 1)
        (sink.root / "checkpoint=1" / "_eo_ledger.json").write_text("{")
        with pytest.raises(LedgerDamagedError, match="cannot be read"):
            session.head()


class TestRefusals:
    @pytest.mark.parametrize("operation", [Operation.ADOPT, Operation.ACCEPT_LOSS])
    def test_entries_without_rows_are_folders_with_only_the_entry(
        self, sink: ParquetSink, session: ParquetSession, operation: Operation
    ) -> None:
        entry = child_of(publish(session, 1), operation=operation)
        session.publish(entry, StagedOutput())
        assert os.listdir(sink.root / "checkpoint=2") == ["_eo_ledger.json"]
        publish(session, 1, entry)

    @pytest.mark.parametrize("path", ["s3://bucket/x", "gs://b/x", "abfs://c@a/x", "hdfs://n/x"])
    def test_object_stores_are_refused_in_words(self, path: str) -> None:
        with pytest.raises(ConfigError, match=r"(?s)sink.path.*type: delta or type: iceberg"):
            sink_from_config({"type": "parquet", "path": path})

    def test_a_folder_belongs_to_one_pipeline(
        self, sink: ParquetSink, session: ParquetSession
    ) -> None:
        publish(session, 0)
        with pytest.raises(ConfigError, match="belongs to the pipeline 'events'"):
            sink.open("another")

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="not a folder"):
            ParquetSink(path=str(tmp_path / "file")).open("events")

    def test_opening_makes_nothing(self, sink: ParquetSink, session: ParquetSession) -> None:
        assert session.recover() is None
        assert not sink.root.exists()

    def test_a_file_url_is_a_path(self, tmp_path: Path) -> None:
        folder = tmp_path / "with space"
        assert ParquetSink(path=folder.as_uri()).root == folder

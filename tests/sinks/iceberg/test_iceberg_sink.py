"""What an Iceberg table does: commits that others overtake, going back, maintenance."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.errors import (
    CommitUnknownError,
    FencedError,
    RefusedError,
    SinkError,
    TableRolledBackError,
)
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.iceberg.session import IcebergSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import CrashRequested, child_of, raise_at, to_files
from eo_pipeline.testing.contract import meeting_at
from tests.sinks.iceberg.iceberg_world import (
    ALREADY,
    COMMITTED,
    catalog_in,
    files_in,
    ids,
    of,
    publish,
    rows,
    session,
    sink,
    staged,
    table_of,
)
from tests.sinks.iceberg.test_iceberg_contract import catalog_of, folder_of

__all__ = ["session", "sink"]


def checkpoint_of(path: str) -> str:
    return str(pq.read_table(path.removeprefix("file://"))["_eo_checkpoint"][0])


RETRIES = "commit.retry.num-retries"


def meanwhile(act: Callable[[], object], times: int = 1) -> Reach:
    """Somebody else acts between our look at the table and our commit, the first ``times``."""
    left = times

    def reach(point: CrashPoint) -> None:
        nonlocal left
        if point is CrashPoint.ENTRY_SENT and left:
            left -= 1
            act()

    return reach


def ledger_files(sink: IcebergSink) -> list[Path]:
    return sorted((folder_of(sink) / "_eo_ledger").rglob("*.json"))


def race(sink: IcebergSink, *attempts: tuple[LedgerEntry, StagedOutput]) -> list[object]:
    """Publish all at once, every one with its table loaded before any of them commits."""
    reach = meeting_at(CrashPoint.ENTRY_SENT)

    def attempt(entry: LedgerEntry, output: StagedOutput) -> object:
        with sink.open("events") as session:
            return session.publish(entry, output, reach)

    with ThreadPoolExecutor(len(attempts)) as threads:
        futures = [threads.submit(attempt, *each) for each in attempts]
        return [future.exception() or future.result() for future in futures]


class TestOtherWriters:
    def test_a_foreign_append_in_between_is_followed(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = child_of(publish(session, 1), 2)
        foreign = lambda: table_of(sink).append(pa.table({"id": [-1]}))  # noqa: E731
        assert session.publish(head, staged(2), meanwhile(foreign, times=3)) is COMMITTED
        assert ids(sink) == [-1, -1, -1, *of(1, 2)]
        assert len(ledger_files(sink)) == 3, "files of tokens that lost are gone"

    def test_foreign_properties_and_expired_snapshots_in_between_do_no_harm(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 2)

        def maintain() -> None:
            table = table_of(sink)
            with table.transaction() as transaction:
                transaction.set_properties({"owner": "ops"})
            later = datetime.now(UTC) + timedelta(days=1)
            table.maintenance.expire_snapshots().older_than(later).commit()

        assert session.publish(child_of(head, 2), staged(3), meanwhile(maintain)) is COMMITTED
        assert ids(sink) == of(1, 2, 3)
        assert table_of(sink).properties["owner"] == "ops"

    def test_a_failed_commit_deletes_no_staged_file(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        head = publish(session, 1)
        files = to_files(rows(2), tmp_path / "staged")
        with pytest.raises(FencedError):
            session.publish(
                child_of(head, 2),
                StagedOutput(files),
                meanwhile(lambda: publish(sink.open("events"), 1, head)),
            )
        assert all(path.exists() for path in files.paths())
        assert ids(sink) == of(1, 2)

    def test_of_two_that_have_no_rows_one_is_fenced(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        """Trap: a commit without a snapshot has no requirement, and both would land."""
        head = publish(session, 1)
        rivals = [child_of(head, operation=Operation.ADOPT) for _ in range(2)]
        results = race(sink, *((entry, StagedOutput()) for entry in rivals))
        assert results.count(COMMITTED) == 1, results
        assert sum(isinstance(result, FencedError) for result in results) == 1, results
        before = len(table_of(sink).metadata.snapshots)
        session.publish(child_of(session.head() or head), StagedOutput())
        assert len(table_of(sink).metadata.snapshots) == before + 1

    def test_the_librarys_retries_are_switched_off(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        """Trap: with retries on, a stale run's rows are put on top of the winner's."""
        head = publish(session, 1)
        with table_of(sink).transaction() as transaction:
            transaction.set_properties({RETRIES: "4"})
        results = race(sink, *((child_of(head, 2), staged(c)) for c in (2, 3)))
        assert results.count(COMMITTED) == 1, results
        assert len(ids(sink)) == 4
        assert table_of(sink).properties[RETRIES] == "0"

    def test_the_trap_is_there(self, sink: IcebergSink, session: IcebergSession) -> None:
        """What PyIceberg does with retries on; were it to stop, the test above proves nothing."""
        publish(session, 1)
        with table_of(sink).transaction() as transaction:
            transaction.set_properties({RETRIES: "4"})
        stale, winner = table_of(sink), table_of(sink)
        for handle in (winner, stale):
            handle.append(pa.table({"id": [-1]}))
        assert ids(sink) == [-1, -1, *of(1)]

    def test_somebody_elses_table_is_joined(self, sink: IcebergSink) -> None:
        """Its retries are on, it has columns of its own, and rows of no checkpoint."""
        with sink.open("events"):
            pass
        catalog = catalog_of(sink)
        catalog.create_namespace("ops")
        schema = pa.schema([("id", pa.int64()), ("at", pa.time64("us"))])
        location = f"file://{sink.root}"
        catalog.create_table(sink.table, schema, location=location).append(
            pa.table({"id": [-1], "at": pa.array([1], pa.time64("us"))})
        )
        with sink.open("events") as session:
            publish(session, 2)
        assert ids(sink) == [-1, *of(1, 2)]

    def test_a_required_column_without_values_is_refused(self, sink: IcebergSink) -> None:
        with sink.open("events"):
            pass
        catalog = catalog_of(sink)
        catalog.create_namespace("ops")
        schema = pa.schema([("id", pa.int64()), pa.field("must", pa.string(), nullable=False)])
        catalog.create_table(sink.table, schema, location=f"file://{sink.root}")
        with sink.open("events") as session:
            head = publish(session, 0)
            with pytest.raises(RefusedError, match="must"):
                session.publish(child_of(head, 2), staged(1))
        assert ids(sink) == []


class TestOutcomes:
    def fail_after(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception, *, landed: bool
    ) -> None:
        """The next commit answers with ``error``, whether or not it was made."""
        commit = SqlCatalog.commit_table
        armed = True

        def commit_table(catalog: SqlCatalog, *args: Any) -> Any:
            nonlocal armed
            if not armed:
                return commit(catalog, *args)
            armed = False
            if landed:
                commit(catalog, *args)
            raise error

        monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)

    @pytest.mark.parametrize("landed", [True, False])
    @pytest.mark.parametrize(
        "error", [CommitStateUnknownException("504"), ConnectionError("reset")], ids=repr
    )
    def test_a_lost_reply_is_unknown_and_the_same_transaction_lands_once(
        self,
        sink: IcebergSink,
        session: IcebergSession,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
        landed: bool,
    ) -> None:
        entry = child_of(publish(session, 1), 2)
        self.fail_after(monkeypatch, error, landed=landed)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, staged(2))
        assert ids(sink) == of(1, 2) if landed else of(1)
        assert session.publish(entry, staged(2)) is (ALREADY if landed else COMMITTED)
        assert ids(sink) == of(1, 2)
        session.recover()
        assert len(ledger_files(sink)) == 3

    def test_a_commit_that_waits_for_a_reader_in_vain_is_not_seen_as_made(
        self, tmp_path: Path
    ) -> None:
        """Scenario: somebody reads the catalog's SQLite file for longer than a commit waits.
        Outcome: nobody finds that commit, this session neither; the same transaction lands later.
        """
        catalog = catalog_in(tmp_path, f"file://{tmp_path}/warehouse")
        catalog["properties"]["uri"] += "?timeout=0.1"
        sink = IcebergSink.model_validate({"table": "ops.flights", "catalog": catalog})
        with sink.open("events") as session:
            head = publish(session, 1)
            entry = child_of(head, 2)
            with closing(sqlite3.connect(tmp_path / "catalog.db")) as reader:
                reads = reader.execute("select 1 from iceberg_tables union all select 2")
                reads.fetchone()
                with pytest.raises(CommitUnknownError):
                    session.publish(entry, staged(2))
                held = session.head()
                assert held is not None
                assert held.id == head.id
                reads.close()
            assert session.publish(entry, staged(2)) is COMMITTED
        assert ids(sink) == of(1, 2)

    def test_a_commit_that_landed_and_was_called_failed_has_landed(
        self, sink: IcebergSink, session: IcebergSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Trap: a transport that repeats a request is refused by its own first one. PyIceberg
        deletes the manifests of a refused commit, and the table would be unreadable.
        """
        entry = child_of(publish(session, 1), 2)
        self.fail_after(monkeypatch, CommitFailedException("branch main changed"), landed=True)
        assert session.publish(entry, staged(2)) is COMMITTED
        assert ids(sink) == of(1, 2)
        assert [e.version for e in session.history()] == [0, 1, 2]

    def test_a_table_that_was_made_and_called_not_made_is_made(
        self, sink: IcebergSink, session: IcebergSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = child_of(publish(session, 0), 2)
        self.fail_after(monkeypatch, CommitFailedException("Table already exists"), landed=True)
        assert session.publish(entry, staged(1)) is COMMITTED
        assert ids(sink) == of(1)

    def test_nothing_is_made_before_the_first_rows(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 0)
        with pytest.raises(CrashRequested):
            session.publish(child_of(head, 2), staged(1), raise_at(CrashPoint.ENTRY_SENT))
        assert not catalog_of(sink).table_exists(sink.table)
        publish(session, 1, head)
        assert ids(sink) == of(1)

    def test_the_making_of_the_table_and_new_columns_cost_no_commit_of_their_own(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 1)
        assert len(table_of(sink).metadata.metadata_log) == 0
        session.publish(child_of(head, 2), staged(2, tail=["N1", None]))
        assert len(table_of(sink).metadata.metadata_log) == 1

    def test_a_wider_type_costs_no_commit_of_its_own(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 1, small=pa.array([1, 2], pa.int32()))
        assert len(table_of(sink).metadata.metadata_log) == 0
        session.publish(child_of(head, 2), staged(2, small=pa.array([1, 2**40], pa.int64())))
        assert len(table_of(sink).metadata.metadata_log) == 1
        assert ids(sink) == of(1, 2)

    def test_recover_removes_files_of_attempts_that_lost(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 1)
        with pytest.raises(CrashRequested):
            session.publish(child_of(head, 2), staged(2), raise_at(CrashPoint.ENTRY_SENT))
        session.recover()
        assert len(ledger_files(sink)) == 3, "it may be a live run's"
        publish(session, 1, head)
        session.recover()
        assert len(ledger_files(sink)) == 3
        assert len(list((folder_of(sink) / "data/eo_rows").rglob("*.parquet"))) == 2

    def test_a_changed_head_property_is_said(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 1)
        with table_of(sink).transaction() as transaction:
            transaction.set_properties({"eo.head.events": "7"})
        with pytest.raises(SinkError, match=r"eo\.head\.events"):
            session.head()


class TestGoingBack:
    def test_rewind_takes_later_rows_and_leaves_foreign_ones(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 3)
        table_of(sink).append(pa.table({"id": [-1]}))
        back = child_of(head, operation=Operation.REWIND, target=1)
        assert session.publish(back, StagedOutput()) is COMMITTED
        assert ids(sink) == [-1, *of(1)]
        assert session.publish(back, StagedOutput()) is ALREADY
        publish(session, 1, back)
        assert ids(sink) == [-1, *of(1, 5)]

    def test_rewind_of_rows_that_maintenance_put_into_one_file(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 3)
        table = table_of(sink)
        table.overwrite(table.scan().to_arrow())
        session.publish(child_of(head, operation=Operation.REWIND, target=1), StagedOutput())
        assert ids(sink) == of(1)

    def test_a_file_is_not_written_anew_by_one_who_reads_it_otherwise(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        """Scenario: a file holds several checkpoints, and an array of structs that is null.
        Outcome: PyIceberg, which would make an empty one of it, is not let; whole files go.
        """
        nothing = pa.nulls(2, pa.list_(pa.struct([("x", pa.int32())])))
        head = publish(session, 3, odd=nothing)
        table = table_of(sink)
        first, *later = sorted(files_in(sink), key=lambda path: int(checkpoint_of(path)))
        mixed = f"{tmp_path}/mixed.parquet"
        pq.write_table(pa.concat_tables(map(pq.read_table, later)), mixed)
        with table.transaction() as change:
            change.delete("_eo_checkpoint > 1")
            change.add_files([mixed])
        back = child_of(head, operation=Operation.REWIND, target=2)
        with pytest.raises(RefusedError, match=r"'odd'.*DELETE FROM .* _eo_checkpoint > 2"):
            session.publish(back, StagedOutput())
        assert ids(sink) == of(1, 2, 3)
        back = child_of(head, operation=Operation.REWIND, target=1)
        assert session.publish(back, StagedOutput()) is COMMITTED
        assert files_in(sink) == {first}

    def test_replay_is_not_seen_halfway(self, sink: IcebergSink, session: IcebergSession) -> None:
        head = publish(session, 2)
        entry = child_of(head, 2, operation=Operation.REPLAY, target=1)
        with pytest.raises(CrashRequested):
            session.publish(entry, staged(1), raise_at(CrashPoint.ENTRY_SENT))
        assert ids(sink) == of(1, 2)
        session.publish(entry, staged(1))
        assert len(table_of(sink).metadata.metadata_log) == 2

    def test_a_table_set_back_to_what_expired_snapshots_no_longer_tell_is_told(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 2)
        ours = [each.snapshot_id for each in table_of(sink).metadata.snapshots]
        table_of(sink).append(pa.table({"id": [-1]}))
        [theirs] = {s.snapshot_id for s in table_of(sink).metadata.snapshots} - {*ours}
        table_of(sink).maintenance.expire_snapshots().by_ids(ours).commit()
        head = publish(session, 1, head)
        assert session.rolled_back(head) is None
        table_of(sink).manage_snapshots().rollback_to_snapshot(theirs).commit()
        assert re.search("holds an older state.*`eo rewind 0`", str(session.rolled_back(head)))
        with pytest.raises(TableRolledBackError):
            session.publish(child_of(head, 2), staged(9))
        back = child_of(head, operation=Operation.REWIND, target=0)
        assert session.publish(back, StagedOutput()) is COMMITTED
        assert ids(sink) == [-1]

    def test_a_table_that_somebody_set_back_is_told_until_somebody_sets_it_right(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 4)
        assert session.rolled_back(head) is None
        snapshots = [each.snapshot_id for each in table_of(sink).metadata.snapshots]
        table_of(sink).manage_snapshots().rollback_to_snapshot(snapshots[1]).commit()
        table_of(sink).append(pa.table({"id": [-1]}))
        said = rf"up to version 2.*Set it to snapshot {snapshots[3]} again.*`eo rewind 2`"
        assert re.search(said, str(session.rolled_back(head)))
        with pytest.raises(TableRolledBackError, match=said):
            session.publish(child_of(head, 2), staged(5))
        with pytest.raises(TableRolledBackError):
            session.publish(child_of(head, operation=Operation.REWIND, target=3), StagedOutput())
        back = child_of(head, operation=Operation.REWIND, target=2)
        assert session.publish(back, StagedOutput()) is COMMITTED
        assert session.rolled_back(back) is None
        publish(session, 1, back)
        assert ids(sink) == [-1, *of(1, 2, 6)]

    def test_of_snapshots_that_expired_nothing_is_told(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 2)
        later = datetime.now(UTC) + timedelta(days=1)
        for _ in range(2):
            table_of(sink).append(pa.table({"id": [-1]}))
            table_of(sink).maintenance.expire_snapshots().older_than(later).commit()
        assert session.rolled_back(head) is None
        publish(session, 1, head)

    def test_a_shared_table_does_not_go_back(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 2)
        with sink.open("others") as others:
            publish(others, 1)
        assert ids(sink) == sorted([*of(1, 2), *of(1)])
        with pytest.raises(RefusedError, match="events, others share"):
            session.publish(child_of(head, operation=Operation.REWIND, target=1), StagedOutput())
        assert session.head() == session.entry(2)


class TestMaintenance:
    def test_head_and_history_outlive_the_expiry_of_snapshots(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 5)
        later = datetime.now(UTC) + timedelta(days=1)
        table_of(sink).maintenance.expire_snapshots().older_than(later).commit()
        table_of(sink).append(pa.table({"id": [-1]}))
        table_of(sink).maintenance.expire_snapshots().older_than(later).commit()
        assert len(table_of(sink).metadata.snapshots) == 1
        with sink.open("events") as other:
            head = other.recover()
            assert head is not None
            assert [entry.version for entry in other.history()] == [0, 1, 2, 3, 4, 5]
            publish(other, 1, head)
        assert ids(sink) == [-1, *of(1, 2, 3, 4, 5, 6)]

    def test_manifests_are_merged(self, sink: IcebergSink, session: IcebergSession) -> None:
        head = publish(session, 1)
        with table_of(sink).transaction() as transaction:
            transaction.set_properties({"commit.manifest.min-count-to-merge": "4"})
        publish(session, 12, head)
        snapshot = table_of(sink).current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(table_of(sink).io)) < 6
        assert ids(sink) == of(*range(1, 14))

    def test_old_snapshots_stay_for_time_travel(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        """A commit works on a handle without them; the table keeps them."""
        publish(session, 5)
        table = table_of(sink)
        assert len(table.metadata.snapshots) == 5
        assert len(table.metadata.snapshot_log) == 5
        second = table.metadata.snapshots[1].snapshot_id
        assert table.scan(snapshot_id=second).to_arrow().num_rows == 4

    def test_other_engines_read_it(
        self, sink: IcebergSink, session: IcebergSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # a faster planner, which says that it is not installed
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        publish(session, 2, publish(session, 1), tail=["N1", "N2"])
        expected = [(10, None), (11, None), (20, "N1"), (21, "N2"), (30, "N1"), (31, "N2")]
        table = table_of(sink)
        frame = polars.scan_iceberg(table).select("id", "tail").sort("id").collect()
        assert frame.rows() == expected
        duck = table.scan().to_duckdb("flights")
        found = duck.execute("select id, tail from flights order by id").fetchall()
        assert found == expected

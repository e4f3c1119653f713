"""What an Iceberg table does: commits that others overtake, going back, maintenance, layouts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from eo_pipeline.checkpoint import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    RefusedError,
    SchemaChangeError,
    SinkError,
)
from eo_pipeline.sinks.base import CommitOutcome
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.iceberg.session import IcebergSession
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.staged import StagedFile, StagedOutput, StagedTable
from eo_pipeline.testing import CrashRequested, child_of, first_entry, raise_at, to_files
from eo_pipeline.testing.contract import meeting_at
from tests.contract.test_iceberg_contract import catalog_of

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED
RETRIES = "commit.retry.num-retries"


def rows(checkpoint: int, **columns: Any) -> StagedTable:
    """Two rows of ``checkpoint``."""
    values: dict[str, Any] = {"id": [checkpoint * 10, checkpoint * 10 + 1], **columns}
    table = pa.table({**values, CHECKPOINT_COLUMN: pa.array([checkpoint] * 2, pa.int64())})
    return StagedTable.in_memory(table)


def staged(checkpoint: int, **columns: Any) -> StagedOutput:
    return StagedOutput(rows=rows(checkpoint, **columns))


@pytest.fixture
def sink(tmp_path: Path) -> IcebergSink:
    return IcebergSink(table="ops.flights", warehouse=tmp_path / "warehouse")


@pytest.fixture
def session(sink: IcebergSink) -> IcebergSession:
    return sink.open("events")


def publish(
    session: IcebergSession, count: int, head: LedgerEntry | None = None, **columns: Any
) -> LedgerEntry:
    """``count`` more checkpoints; a new ledger gets its first entry."""
    if head is None:
        head = first_entry(session.pipeline)
        assert session.publish(head, StagedOutput()) is COMMITTED
    for _ in range(count):
        head = child_of(head, 2)
        assert session.publish(head, staged(head.version, **columns)) is COMMITTED
    return head


def table_of(sink: IcebergSink) -> Table:
    return catalog_of(sink).load_table(sink.table)


def ids(sink: IcebergSink) -> list[int]:
    found: list[int] = sorted(table_of(sink).scan().to_arrow()["id"].to_pylist())
    return found


def of(*checkpoints: int) -> list[int]:
    return [number for c in checkpoints for number in (c * 10, c * 10 + 1)]


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
    return sorted((sink.root / "_eo_ledger").rglob("*.json"))


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

    def test_a_changed_type_is_refused_also_if_iceberg_could_widen_it(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 1, small=pa.array([1, 2], pa.int32()))
        with pytest.raises(SchemaChangeError, match="'small'"):
            session.publish(child_of(head, 2), staged(2, small=pa.array([1, 2], pa.int64())))
        assert ids(sink) == of(1)

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
        assert len(list((sink.root / "data/eo_rows").rglob("*.parquet"))) == 2

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

    def test_replay_is_not_seen_halfway(self, sink: IcebergSink, session: IcebergSession) -> None:
        head = publish(session, 2)
        entry = child_of(head, operation=Operation.REPLAY, target=1)
        with pytest.raises(CrashRequested):
            session.publish(entry, staged(1), raise_at(CrashPoint.ENTRY_SENT))
        assert ids(sink) == of(1, 2)
        session.publish(entry, staged(1))
        assert len(table_of(sink).metadata.metadata_log) == 2

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


class TestLayout:
    NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)

    def columns(self, carriers: list[str | None]) -> dict[str, Any]:
        at = [self.NOON, self.NOON + timedelta(days=1)]
        return {"carrier": carriers, "at": pa.array(at, pa.timestamp("us", "UTC"))}

    @pytest.fixture
    def sink(self, tmp_path: Path) -> IcebergSink:
        layout = ("carrier", "day(at)")
        warehouse = tmp_path / "warehouse"
        return IcebergSink(table="ops.flights", warehouse=warehouse, partition_by=layout)

    def partitions(self, sink: IcebergSink) -> list[tuple[Any, ...]]:
        found = table_of(sink).inspect.partitions()["partition"].to_pylist()
        return sorted(tuple(map(str, value.values())) for value in found)

    def test_rows_in_memory_are_cut_by_partition_and_null_has_its_own(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 2, **self.columns(["UA", None]))
        assert self.partitions(sink) == [("None", "2013-01-02"), ("UA", "2013-01-01")]
        scan = table_of(sink).scan("carrier = 'UA'")
        assert sorted(scan.to_arrow()["id"].to_pylist()) == [10, 20]
        assert len(list(scan.plan_files())) == 2
        assert ids(sink) == of(1, 2)

    def files(self, folder: Path, parts: list[pa.Table]) -> StagedOutput:
        """Files as Spark lays them out, one a partition."""
        folder.mkdir()
        written = []
        for number, part in enumerate(parts):
            pq.write_table(part, folder / f"{number}.parquet")
            size = (folder / f"{number}.parquet").stat().st_size
            written.append(StagedFile(f"{number}.parquet", size, part.num_rows))
        total = sum(part.num_rows for part in parts)
        return StagedOutput(StagedTable(parts[0].schema, total, folder, tuple(written)))

    def test_staged_files_of_one_partition_each(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        head = publish(session, 0)
        table = rows(1, **self.columns(["UA", None])).table
        assert table is not None
        output = self.files(tmp_path / "staged", [table.slice(0, 1), table.slice(1, 1)])
        assert session.publish(child_of(head, 2), output) is COMMITTED
        assert self.partitions(sink) == [("None", "2013-01-02"), ("UA", "2013-01-01")]

    def test_a_staged_file_that_mixes_nulls_and_values_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        """Trap: PyIceberg looks at the bounds, and they leave out nulls."""
        head = publish(session, 0)
        columns = {**self.columns(["UA", None]), "at": pa.array([self.NOON] * 2)}
        table = rows(1, **columns).table
        assert table is not None
        with pytest.raises(RefusedError, match="'carrier'"):
            session.publish(child_of(head, 2), self.files(tmp_path / "staged", [table]))

    def test_a_staged_file_without_statistics_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        """Trap: PyIceberg puts such a file into the partition of nulls, without a word."""
        head = publish(session, 0)
        table = rows(1, **self.columns(["UA", "UA"])).table
        assert table is not None
        output = self.files(tmp_path / "staged", [table.slice(0, 1)])
        [path] = output.rows.paths() if output.rows else []
        pq.write_table(table.slice(0, 1), path, write_statistics=False)
        file = StagedFile(path.name, path.stat().st_size, 1)
        bare = StagedTable(table.schema, 1, path.parent, (file,))
        with pytest.raises(RefusedError, match="statistics are missing"):
            session.publish(child_of(head, 2), StagedOutput(bare))

    def test_a_staged_file_with_two_values_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        head = publish(session, 0)
        table = rows(1, **self.columns(["UA", "DL"])).table
        assert table is not None
        with pytest.raises(RefusedError, match="more than one partition"):
            session.publish(child_of(head, 2), self.files(tmp_path / "staged", [table]))

    def test_a_partition_column_after_a_hundred_others_keeps_its_bounds(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        """Trap: PyIceberg keeps bounds of the first hundred columns, and takes null for others."""
        many: dict[str, Any] = {f"c{number}": [1, 2] for number in range(120)}
        publish(session, 1, None, **many, **self.columns(["UA", "DL"]))
        assert self.partitions(sink) == [("DL", "2013-01-02"), ("UA", "2013-01-01")]

    def test_a_table_that_keeps_no_bounds_is_refused(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 1, **self.columns(["UA", "DL"]))
        with table_of(sink).transaction() as transaction:
            transaction.set_properties({"write.metadata.metrics.column.carrier": "none"})
        with pytest.raises(ConfigError, match="keeps no bounds of 'carrier'"):
            sink.open("events")

    def test_the_layout_waits_for_the_first_columns(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 0)
        empty = child_of(head)
        assert session.publish(empty, StagedOutput()) is COMMITTED
        with sink.open("events") as other:
            publish(other, 1, empty, **self.columns(["UA", "DL"]))
        assert len(self.partitions(sink)) == 2

    def test_rewind_and_replay_keep_the_layout(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        columns = self.columns(["UA", "DL"])
        head = publish(session, 3, **columns)
        back = child_of(head, operation=Operation.REWIND, target=2)
        session.publish(back, StagedOutput())
        again = child_of(back, operation=Operation.REPLAY, target=1)
        session.publish(again, staged(1, **columns))
        assert ids(sink) == of(1, 2)
        assert self.partitions(sink) == [("DL", "2013-01-02"), ("UA", "2013-01-01")]

    def test_another_layout_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        publish(session, 1, **self.columns(["UA", "DL"]))
        other = IcebergSink(table="ops.flights", warehouse=tmp_path / "warehouse")
        with pytest.raises(ConfigError, match=r"partitioned by carrier, day\(at\), not by nothing"):
            other.open("events")

    def test_a_transform_that_statistics_do_not_show_is_refused(self, tmp_path: Path) -> None:
        config = {"type": "iceberg", "table": "a.b", "partition_by": ["bucket(id)"]}
        with pytest.raises(ConfigError, match=r"sink.partition_by.*bucket"):
            sink_from_config(config)


class TestConfiguration:
    def test_a_catalog_is_named_with_its_properties_and_shows_no_secret(
        self, tmp_path: Path
    ) -> None:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/own.db",
            "warehouse": f"file://{tmp_path}/lake",
            "token": "s3cret",
        }
        catalog = {"name": "prod", "properties": properties}
        sink = sink_from_config({"type": "iceberg", "table": "a.b", "catalog": catalog})
        assert isinstance(sink, IcebergSink)
        assert "s3cret" not in f"{sink!r} {sink.describe()}"
        assert sink.root == tmp_path / "lake" / "a" / "b"
        with sink.open("events") as session:
            publish(session, 1)
        assert (tmp_path / "own.db").exists()

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"table": "flights"}, "namespace.table"),
            ({"table": "a.b", "location": "s3://bucket/x"}, "not supported yet"),
            ({"table": "a.b", "catalog": {"name": "prod"}}, "location: is required"),
            ({"table": "a.b", "mode": "upsert"}, "mode: upsert is not possible"),
            ({"table": "a.b", "partition_by": ["x", "x"]}, "named twice"),
            ({"table": "a.b", "partition_by": ["day(x"]}, "neither a column nor"),
        ],
    )
    def test_what_cannot_work_is_said_in_words(self, config: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            sink_from_config({"type": "iceberg", **config})

    def test_a_table_that_lies_elsewhere_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        publish(session, 1)
        other = IcebergSink(
            table=sink.table, warehouse=sink.warehouse, location=str(tmp_path / "elsewhere")
        )
        with pytest.raises(ConfigError, match=r"sink.location: .* lies at"):
            other.open("events")

    def test_pyiceberg_is_needed_for_opening_only(self, tmp_path: Path) -> None:
        code = (
            "import sys; sys.modules['pyiceberg'] = None\n"
            "import eo_pipeline\n"
            "from eo_pipeline.errors import ConfigError\n"
            "from eo_pipeline.sinks.iceberg import IcebergSink\n"
            "try: IcebergSink(table='a.b', warehouse=sys.argv[1]).open('p')\n"
            "except ConfigError as error: print(error)\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "pip install 'eo-pipeline[iceberg]'" in done.stdout

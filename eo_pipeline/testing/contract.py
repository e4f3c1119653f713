"""The contract every sink keeps, as tests. Subclass, say how to make a sink and how to read it.

    from eo_pipeline.testing.exactly_once import ExactlyOnceContract

    class TestMySink(ExactlyOnceContract):
        @pytest.fixture
        def sink(self, tmp_path):
            return MySink(path=tmp_path / "store")

        def read_rows(self, sink):
            return [...]  # by another connection: what a reader sees at this moment

A sink that takes rows back subclasses :class:`GoingBackContract` instead. One that promises less
subclasses :class:`SinkContract`, which asks only for what every ledger
must do. Whoever finds a sink that passes and loses or doubles a row has found a missing test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import FencedError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, EntryId, LedgerEntry, Operation
from eo_pipeline.sinks.capabilities import whole_lineage
from eo_pipeline.sinks.config import Guarantee, Sink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.paths import Place
from eo_pipeline.testing.faults import DAMAGES, crash_at, dies
from eo_pipeline.testing.staging import child_of, dead_letters, first_entry, to_files

COMMITTED = CommitOutcome.COMMITTED
ALREADY_COMMITTED = CommitOutcome.ALREADY_COMMITTED

#: Seconds that two publishers wait for each other where a sink lets only one get that far.
RENDEZVOUS_SECONDS = 1.0


class SinkContract:
    """Contract of every sink's ledger, whatever it guarantees about rows."""

    #: Rows of a checkpoint, and the name the tests use for the pipeline.
    rows: ClassVar[int] = 20
    pipeline: ClassVar[str] = "contract"

    #: How the sink can go back; see :class:`eo_pipeline.testing.going_back.GoingBackContract`.
    going_back: ClassVar[tuple[Operation, ...]] = ()

    #: False if rows cannot be read back from the store, and the sink says so.
    tells_lineage: ClassVar[bool] = True

    @pytest.fixture
    def sink(self) -> Sink:
        """A sink on a store that holds nothing yet."""
        raise NotImplementedError

    @pytest.fixture
    def session(self, sink: Sink) -> Iterator[SinkSession]:
        with sink.open(self.pipeline) as session:
            yield session

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        """Every row a reader sees at this moment, by a connection that is not the session's."""
        raise NotImplementedError

    # What the tests are told in.

    def table(self, checkpoint: int, rows: int | None = None) -> pa.Table:
        """Rows of one checkpoint; no two checkpoints share an ``id``."""
        ids = range(checkpoint * 1000, checkpoint * 1000 + (self.rows if rows is None else rows))
        columns = {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"flight {number}" for number in ids], pa.string()),
            "amount": pa.array([Decimal(number) / 100 for number in ids], pa.decimal128(12, 2)),
            CHECKPOINT_COLUMN: pa.array([checkpoint] * len(ids), pa.int64()),
        }
        return pa.table(columns)

    def staged(self, checkpoint: int, rows: int | None = None) -> StagedOutput:
        return StagedOutput(rows=StagedTable.in_memory(self.table(checkpoint, rows)))

    def attempt_folder(self, sink: Sink, tmp_path: Path) -> Place:
        """Return the folder of an attempt's files: in the table, if the sink stages there."""
        rows = sink.staging_folders().rows
        return rows / self.pipeline / tmp_path.name if rows else tmp_path

    def start(self, session: SinkSession) -> LedgerEntry:
        """Publish the start entry and return it."""
        entry = first_entry(self.pipeline)
        assert session.publish(entry, StagedOutput()) is COMMITTED
        return entry

    def forward(self, session: SinkSession, head: LedgerEntry) -> LedgerEntry:
        """Publish one more checkpoint and return its entry."""
        entry = child_of(head, self.rows)
        assert session.publish(entry, self.staged(entry.version)) is COMMITTED
        return entry

    def visible(self, sink: Sink) -> list[tuple[int, int]]:
        """(checkpoint, id) of every row a reader sees, sorted: doubles show."""
        return sorted((row[CHECKPOINT_COLUMN], row["id"]) for row in self.read_rows(sink))

    def rows_of(self, *checkpoints: int) -> list[tuple[int, int]]:
        """Return the rows that :meth:`visible` gives when exactly these checkpoints are there."""
        return [(c, row) for c in sorted(checkpoints) for row in self.table(c)["id"].to_pylist()]

    def race(self, *attempts: Callable[[], object]) -> list[object]:
        """Run ``attempts`` at once, each in its thread; what each returned or raised."""
        with ThreadPoolExecutor(len(attempts)) as threads:
            futures = [threads.submit(attempt) for attempt in attempts]
            return [future.exception() or future.result() for future in futures]

    def publish_apart(
        self, sink: Sink, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        """Publish in a session of its own, as another run does."""
        with sink.open(self.pipeline) as session:
            return session.publish(entry, staged, reach)

    # The ledger.

    def test_a_new_pipeline_has_no_head_and_no_history(self, session: SinkSession) -> None:
        assert session.recover() is None
        assert session.head() is None
        assert session.entry(0) is None
        assert list(session.history()) == []

    def test_an_entry_comes_back_as_it_was_written(self, session: SinkSession) -> None:
        entry = child_of(self.start(session), self.rows)
        session.publish(entry, self.staged(1))
        held = session.head()
        assert held is not None
        assert held.committed_at is not None
        assert replace(held, committed_at=None) == entry
        assert held.stored == (entry.content_hash, entry.content_hash)

    def test_head_entry_and_history_agree(self, sink: Sink, session: SinkSession) -> None:
        entries = [self.start(session)]
        while len(entries) < 6:
            entries.append(self.forward(session, entries[-1]))
        with sink.open(self.pipeline) as other:
            history = list(other.history())
            assert [entry.id for entry in history] == [entry.id for entry in entries]
            assert other.head() == history[-1]
            assert [other.entry(version) for version in range(6)] == history
            assert list(other.history(since=4)) == history[4:]
            assert other.entry(6) is None
        assert sink.heads([self.pipeline]) == {self.pipeline: history[-1]}

    def test_a_commit_repeated_is_already_committed(self, session: SinkSession) -> None:
        entry = child_of(self.start(session), self.rows)
        assert session.publish(entry, self.staged(1)) is COMMITTED
        assert session.publish(entry, self.staged(1)) is ALREADY_COMMITTED

    def test_a_commit_repeated_later_is_already_committed(self, session: SinkSession) -> None:
        """Scenario: a reply was lost, others went on. Outcome: looked up at its version."""
        entry = self.forward(session, self.start(session))
        self.forward(session, entry)
        assert session.publish(entry, self.staged(1)) is ALREADY_COMMITTED

    def test_a_commit_repeated_after_its_files_were_cleaned_is_already_committed(
        self, sink: Sink, session: SinkSession, tmp_path: Path
    ) -> None:
        entry = child_of(self.start(session), self.rows)
        folder = self.attempt_folder(sink, tmp_path)
        rows = to_files(StagedTable.in_memory(self.table(1)), folder)
        assert session.publish(entry, StagedOutput(rows=rows)) is COMMITTED
        for path in rows.paths():
            path.unlink()
        assert session.publish(entry, StagedOutput(rows=rows)) is ALREADY_COMMITTED

    def test_a_stale_run_is_fenced(self, session: SinkSession) -> None:
        start = self.start(session)
        winner = self.forward(session, start)
        with pytest.raises(FencedError) as fenced:
            session.publish(child_of(start, self.rows), self.staged(1))
        assert (fenced.value.version, fenced.value.winner) == (1, winner.transaction_id)

    def test_a_first_entry_is_fenced_by_another(self, session: SinkSession) -> None:
        self.start(session)
        with pytest.raises(FencedError):
            session.publish(first_entry(self.pipeline), StagedOutput())

    def test_a_number_alone_does_not_match(self, session: SinkSession) -> None:
        """Scenario: the ledger came back from a backup and went on, so that the version is right
        and the transaction is another. Outcome: fenced.
        """
        head = self.forward(session, self.start(session))
        elsewhere = replace(head, transaction_id="0" * 32)
        with pytest.raises(FencedError):
            session.publish(child_of(elsewhere, self.rows), self.staged(2))
        assert session.head() == session.entry(1)

    def test_a_version_cannot_be_left_out(self, session: SinkSession) -> None:
        """Scenario: the ledger came back from an older backup, two versions behind."""
        head = self.start(session)
        ahead = replace(head, version=4, parent=EntryId(3, "3" * 32), transaction_id="4" * 32)
        with pytest.raises(FencedError):
            session.publish(child_of(ahead, self.rows), self.staged(5))

    def test_of_two_runs_at_once_exactly_one_wins(self, sink: Sink, session: SinkSession) -> None:
        head = self.start(session)
        reach = meeting_at(CrashPoint.ROWS_SENT)
        rivals = [child_of(head, self.rows) for _ in range(2)]
        results = self.race(
            *(lambda e=e: self.publish_apart(sink, e, self.staged(1), reach) for e in rivals)
        )
        winners = [e for e, result in zip(rivals, results, strict=True) if result is COMMITTED]
        assert len(winners) == 1, results
        assert sum(isinstance(result, FencedError) for result in results) == 1, results
        held = session.entry(1)
        assert held is not None
        assert held.id == winners[0].id

    def test_one_transaction_published_by_two_at_once_lands(
        self, sink: Sink, session: SinkSession
    ) -> None:
        """Scenario: a run and the next one, which found its manifest, commit the same entry."""
        entry = child_of(self.forward(session, self.start(session)), self.rows)
        reach = meeting_at(CrashPoint.ROWS_SENT)
        publish = lambda: self.publish_apart(sink, entry, self.staged(2), reach)  # noqa: E731
        assert sorted(map(str, self.race(publish, publish))) == [ALREADY_COMMITTED, COMMITTED]

    def test_an_empty_batch_moves_the_ledger(self, sink: Sink, session: SinkSession) -> None:
        entry = child_of(self.forward(session, self.start(session)))
        assert session.publish(entry, self.staged(2, rows=0)) is COMMITTED
        self.forward(session, entry)
        assert self.visible(sink) == self.rows_of(1, 3)

    def test_an_entry_without_any_table_moves_the_ledger(self, session: SinkSession) -> None:
        entry = child_of(self.start(session))
        assert session.publish(entry, StagedOutput()) is COMMITTED
        assert session.entry(1) == session.head()

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_damaged_staged_file_is_refused(
        self, sink: Sink, session: SinkSession, tmp_path: Path, damage: str
    ) -> None:
        entry = child_of(self.start(session), self.rows)
        folder = self.attempt_folder(sink, tmp_path)
        rows = to_files(StagedTable.in_memory(self.table(1)), folder)
        last = rows.paths()[-1]
        DAMAGES[damage](last)
        with pytest.raises(RefusedError, match=last.name):
            session.publish(entry, StagedOutput(rows=rows))
        self.nothing_of_it(sink, session)

    @pytest.mark.parametrize("where", ["memory", "files"])
    def test_what_is_published_is_as_much_as_the_entry_says(
        self, sink: Sink, session: SinkSession, tmp_path: Path, where: str
    ) -> None:
        """Scenario: rows were lost or doubled between counting and staging. Outcome: refused, with
        the numbers.
        """
        rows, letters = self.staged(1).rows, dead_letters(1, [b"{"])
        assert rows is not None
        if where == "files":
            folder = self.attempt_folder(sink, tmp_path)
            rows, letters = to_files(rows, folder / "rows"), to_files(letters, folder / "dead")
        right = child_of(self.start(session), staged := StagedOutput(rows, letters))
        counts = right.counts
        for wrong in (
            replace(counts, rows=self.rows + 1),
            replace(counts, rows=0),
            replace(counts, dead_letters=0),
        ):
            entry = replace(right, counts=wrong)
            with pytest.raises(RefusedError, match=f"{self.rows} rows and 1 dead letters"):
                session.publish(entry, staged)
        with pytest.raises(RefusedError, match=f"{self.rows} rows and 0 dead letters"):
            session.publish(right, StagedOutput(rows))
        self.nothing_of_it(sink, session)

    def nothing_of_it(self, sink: Sink, session: SinkSession) -> None:
        """Assert that a refusal on top of the start left nothing, and the next checkpoint lands."""
        assert session.entry(1) is None
        assert self.visible(sink) == []
        self.forward(session, self.head_of(session))
        assert self.visible(sink) == self.rows_of(1)

    def test_what_was_committed_is_there(self, sink: Sink, session: SinkSession) -> None:
        head = self.start(session)
        for _ in range(3):
            head = self.forward(session, head)
        assert self.visible(sink) == self.rows_of(1, 2, 3)

    def test_whether_the_sink_can_go_back_is_said_beforehand(
        self, sink: Sink, session: SinkSession
    ) -> None:
        """Asking changes nothing; where the answer is no, publishing says the same words."""
        head = self.forward(session, self.forward(session, self.start(session)))
        for operation in (Operation.REWIND, Operation.REPLAY):
            entry = child_of(head, operation=operation, target=1)
            if operation in self.going_back:
                session.check_going_back(entry)
            else:
                self.refused_both_times(session, entry)
        assert self.visible(sink) == self.rows_of(1, 2)
        assert self.head_of(session).id == head.id

    def refused_both_times(self, session: SinkSession, entry: LedgerEntry) -> None:
        with pytest.raises(RefusedError, match="Nothing was changed") as beforehand:
            session.check_going_back(entry)
        staged = self.staged(1) if entry.operation is Operation.REPLAY else StagedOutput()
        with pytest.raises(RefusedError) as published:
            session.publish(entry, staged)
        assert str(published.value) == str(beforehand.value)

    def test_lineage_tells_what_a_reader_sees(self, sink: Sink, session: SinkSession) -> None:
        head = self.start(session)
        if not self.tells_lineage:
            with pytest.raises(RefusedError, match="only look at the ledger"):
                list(session.lineage())
            return
        assert list(session.lineage()) == []
        for version in (1, 2):
            head = child_of(head, self.rows)
            assert session.publish(head, self.with_lineage(version)) is COMMITTED
        rows = [tuple(row[name] for name in whole_lineage().names) for row in self.read_rows(sink)]
        assert self.told(session.lineage()) == sorted(rows)
        assert self.told(session.lineage(2)) == sorted(row for row in rows if row[0] == 2)
        telling = session.lineage()
        first = next(telling)
        self.forward(session, head)
        assert self.told([first, *telling]) == sorted(rows)

    def with_lineage(self, checkpoint: int) -> StagedOutput:
        table = self.table(checkpoint)
        ids = table["id"]
        columns = [["events"] * len(ids), [checkpoint] * len(ids), ids.to_pylist()]
        for field, values in zip(list(whole_lineage())[1:], columns, strict=True):
            table = table.append_column(field, [pa.array(values, field.type)])
        return StagedOutput(rows=StagedTable.in_memory(table))

    def told(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[object, ...]]:
        table = pa.Table.from_batches(batches, whole_lineage())
        return sorted(tuple(row.values()) for row in table.to_pylist())

    def test_nothing_secret_is_described(self, sink: Sink) -> None:
        shown = f"{sink!r} {sink.describe()}"
        for name in type(sink).model_fields:
            secret = getattr(getattr(sink, name), "get_secret_value", None)
            assert secret is None or secret() not in shown

    def test_the_promise_is_held_to_the_contract_it_needs(self, sink: Sink) -> None:
        promises_most = sink.guarantee is Guarantee.EXACTLY_ONCE
        assert promises_most == hasattr(self, "test_a_kill_leaves_nothing_and_a_retry_lands_once")

    def head_of(self, session: SinkSession) -> LedgerEntry:
        head = session.head()
        assert head is not None
        return head


def meeting_at(point: CrashPoint) -> Reach:
    """Two publishers wait for each other at ``point``, if the sink lets both get there."""
    barrier = Barrier(2)

    def reach(reached: CrashPoint) -> None:
        if reached == point:
            try:
                barrier.wait(RENDEZVOUS_SECONDS)
            except BrokenBarrierError:
                return  # the sink lets in one at a time: the other one is waiting outside

    return reach


def killed_while_publishing(
    sink: Sink,
    pipeline: str,
    entry: LedgerEntry,
    staged: StagedOutput,
    point: CrashPoint,
    *,
    prints: bool = False,
) -> None:
    """Publish in a process of its own, which dies by SIGKILL at ``point``. A sink that ``prints``
    does so here.
    """
    dies(_publish_and_die, sink, pipeline, entry, staged, point, prints=prints)


def _publish_and_die(
    sink: Sink, pipeline: str, entry: LedgerEntry, staged: StagedOutput, point: CrashPoint
) -> None:
    with sink.open(pipeline) as session:
        session.publish(entry, staged, crash_at(point))

"""The contract of sinks that promise exactly once: rows and entry together, or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    EoPipelineError,
    FencedError,
    LedgerDamagedError,
    RefusedError,
    SchemaChangeError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing.all_types import ALL_TYPES
from eo_pipeline.testing.contract import (
    ALREADY_COMMITTED,
    COMMITTED,
    SinkContract,
    killed_while_publishing,
    meeting_at,
)
from eo_pipeline.testing.faults import CrashRequested, altered_where_it_is_kept, pause_at, raise_at
from eo_pipeline.testing.odd import NOWHERE, ODD_NAMES, ODD_VALUES, comparable, rows_of
from eo_pipeline.testing.staging import child_of, dead_letters, to_files

BEFORE_COMMIT = (CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT)


class ExactlyOnceContract(SinkContract):
    """Contract of a sink with ``Guarantee.EXACTLY_ONCE``."""

    #: The columns of :data:`ALL_TYPES` that the store has no type for, and refuses.
    unstorable: ClassVar[frozenset[str]] = frozenset()

    #: What :data:`ODD_VALUES` and :data:`ODD_NAMES` have that the store has no place for.
    refused_values: ClassVar[frozenset[str]] = NOWHERE
    refused_names: ClassVar[frozenset[str]] = frozenset()

    #: False if zero is all that is left of negative zero, to which it is equal.
    keeps_negative_zero: ClassVar[bool] = True

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        """Every dead letter a reader sees: at least ``offset``, ``value`` and ``error``."""
        raise NotImplementedError

    def test_a_head_that_was_changed_is_not_built_upon(self, session: SinkSession) -> None:
        """Neither a new run nor one that planned before goes on from what other hands wrote."""
        planned = child_of(self.start(session), self.rows)
        session.publish(altered_where_it_is_kept(planned), self.staged(1))
        with pytest.raises(LedgerDamagedError, match="version 1"):
            session.verified(session.head())
        with pytest.raises(LedgerDamagedError, match="version 1"):
            session.publish(child_of(planned, self.rows), self.staged(2))

    def test_a_commit_repeated_adds_no_row(self, sink: Sink, session: SinkSession) -> None:
        entry = self.forward(session, self.start(session))
        self.forward(session, entry)
        assert session.publish(entry, self.staged(1)) is ALREADY_COMMITTED
        assert self.visible(sink) == self.rows_of(1, 2)

    def test_a_stale_run_leaves_nothing(self, sink: Sink, session: SinkSession) -> None:
        start = self.start(session)
        winner = self.forward(session, start)
        with pytest.raises(FencedError):
            session.publish(child_of(start, self.rows), self.staged(7))
        assert self.visible(sink) == self.rows_of(1)
        assert session.head() == session.entry(winner.version)

    def test_rows_of_a_faster_run_are_no_damage(self, sink: Sink, session: SinkSession) -> None:
        """Scenario: a run is frozen between its look at the ledger and that at the rows."""
        start = self.start(session)
        assert self.publish_apart(sink, child_of(start, self.rows), self.staged(1)) is COMMITTED
        assert session.verified(start) == start
        session.refuse_later_rows(start, thorough=True)

    def test_a_zombie_that_wakes_up_leaves_nothing(self, sink: Sink, session: SinkSession) -> None:
        """Scenario: a run sleeps with its rows sent; another one tries, and perhaps wins.
        Outcome: one of them is in the ledger, and the rows are that one's.
        """
        head = self.forward(session, self.start(session))
        zombie, rival = child_of(head, self.rows), child_of(head, self.rows)
        wake_up, asleep = Event(), Event()

        def try_meanwhile() -> object:
            asleep.wait()
            try:
                return self.publish_apart(sink, rival, self.staged(3))
            finally:
                wake_up.set()

        results = self.race(
            lambda: self.publish_apart(
                sink, zombie, self.staged(2), pause_at(CrashPoint.ROWS_SENT, wake_up, asleep)
            ),
            try_meanwhile,
        )
        assert results.count(COMMITTED) == 1, results
        won = zombie if results[0] is COMMITTED else rival
        held = session.head()
        assert held is not None
        assert held.id == won.id
        assert self.visible(sink) == self.rows_of(1, 2 if won is zombie else 3)

    def test_of_two_runs_at_once_only_the_winners_rows_are_there(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.forward(session, self.start(session))
        reach = meeting_at(CrashPoint.ROWS_SENT)
        rivals = {c: child_of(head, self.rows) for c in (2, 3)}
        results = self.race(
            *(
                lambda c=c, e=e: self.publish_apart(sink, e, self.staged(c), reach)
                for c, e in rivals.items()
            )
        )
        won = next(c for c, result in zip(rivals, results, strict=True) if result is COMMITTED)
        assert self.visible(sink) == self.rows_of(1, won)

    def test_one_transaction_published_by_two_at_once_lands_once(
        self, sink: Sink, session: SinkSession
    ) -> None:
        entry = child_of(self.forward(session, self.start(session)), self.rows)
        reach = meeting_at(CrashPoint.ROWS_SENT)
        publish = lambda: self.publish_apart(sink, entry, self.staged(2), reach)  # noqa: E731
        self.race(publish, publish)
        assert self.visible(sink) == self.rows_of(1, 2)

    @pytest.mark.parametrize("point", BEFORE_COMMIT)
    def test_an_abort_leaves_nothing_and_a_retry_lands_once(
        self, sink: Sink, session: SinkSession, point: CrashPoint
    ) -> None:
        entry = child_of(self.forward(session, self.start(session)), self.rows)
        with pytest.raises(CrashRequested):
            session.publish(entry, self.staged(2), raise_at(point))
        assert self.visible(sink) == self.rows_of(1)
        assert session.entry(2) is None
        assert session.publish(entry, self.staged(2)) is COMMITTED
        assert self.visible(sink) == self.rows_of(1, 2)

    @pytest.mark.parametrize("point", BEFORE_COMMIT)
    def test_a_kill_leaves_nothing_and_a_retry_lands_once(
        self, sink: Sink, session: SinkSession, point: CrashPoint, tmp_path: Path
    ) -> None:
        entry = child_of(self.forward(session, self.start(session)), self.rows)
        folder = self.attempt_folder(sink, tmp_path)
        staged = StagedOutput(rows=to_files(StagedTable.in_memory(self.table(2)), folder))
        killed_while_publishing(sink, self.pipeline, entry, staged, point)
        assert self.visible(sink) == self.rows_of(1)
        with sink.open(self.pipeline) as next_run:
            head = next_run.recover()
            assert head is not None
            assert head.version == 1
            assert next_run.publish(entry, staged) is COMMITTED
        assert self.visible(sink) == self.rows_of(1, 2)

    def test_a_reader_sees_nothing_before_the_commit(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.forward(session, self.start(session))
        seen = []
        session.publish(
            child_of(head, self.rows), self.staged(2), lambda _: seen.append(self.visible(sink))
        )
        assert all(view == self.rows_of(1) for view in seen)
        assert self.visible(sink) == self.rows_of(1, 2)

    def test_a_reader_that_polls_never_sees_part_of_a_checkpoint(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.forward(session, self.start(session))
        views: list[list[tuple[int, int]]] = []
        done = Event()

        def poll() -> None:
            while not done.is_set():
                views.append(self.visible(sink))

        reader = Thread(target=poll)
        reader.start()
        try:
            for _ in range(8):
                head = self.forward(session, head)
        finally:
            done.set()
            reader.join()
        whole = [self.rows_of(*range(1, last + 1)) for last in range(1, 10)]
        assert all(view in whole for view in views)
        assert [len(view) for view in views] == sorted(len(view) for view in views)

    def test_what_is_refused_leaves_nothing(self, sink: Sink, session: SinkSession) -> None:
        """Scenario: a result column changes its type. Outcome: refused before any of it shows."""
        head = self.forward(session, self.start(session))
        changed = self.table(2).set_column(1, "name", pa.array(range(self.rows), pa.int64()))
        with pytest.raises(SchemaChangeError, match="name"):
            session.publish(child_of(head, self.rows), _in_memory(changed))
        assert self.visible(sink) == self.rows_of(1)
        self.forward(session, head)
        assert self.visible(sink) == self.rows_of(1, 2)

    def test_a_new_column_is_added_and_older_rows_have_none(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.forward(session, self.start(session))
        wider = self.table(2).append_column("tail", pa.array(["N1"] * self.rows))
        head = child_of(head, self.rows)
        assert session.publish(head, _in_memory(wider)) is COMMITTED
        tails = {(row[CHECKPOINT_COLUMN], row["tail"]) for row in self.read_rows(sink)}
        assert tails == {(1, None), (2, "N1")}
        self.forward(session, head)  # and a result without it still fits
        assert self.visible(sink) == self.rows_of(1, 2, 3)

    def test_an_aborted_column_was_never_there(self, sink: Sink, session: SinkSession) -> None:
        """Or is null in every row, where it comes before the rows so that readers need not wait."""
        head = self.forward(session, self.start(session))
        wider = self.table(2).append_column("tail", pa.array(["N1"] * self.rows))
        staged = _in_memory(wider)
        with pytest.raises(CrashRequested):
            session.publish(child_of(head, staged), staged, raise_at(CrashPoint.ENTRY_SENT))
        assert self.visible(sink) == self.rows_of(1)
        assert all(row.get("tail") is None for row in self.read_rows(sink))

    @pytest.mark.parametrize("where", ["memory", "files"])
    def test_every_type_comes_back_equal(
        self, sink: Sink, session: SinkSession, tmp_path: Path, where: str
    ) -> None:
        table = ALL_TYPES.drop_columns(sorted(self.unstorable))
        rows = StagedTable.in_memory(table)
        folder = self.attempt_folder(sink, tmp_path)
        rows = to_files(rows, folder) if where == "files" else rows
        entry = child_of(self.start(session), rows.rows)
        assert session.publish(entry, StagedOutput(rows=rows)) is COMMITTED
        table_rows = sorted(self.read_rows(sink), key=lambda row: row["id"])
        assert comparable(table_rows) == comparable(rows_of(table))

    def test_types_without_a_place_are_refused_by_name(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.start(session)
        for name in sorted(self.unstorable):
            table = ALL_TYPES.select(["id", name, CHECKPOINT_COLUMN])
            with pytest.raises(RefusedError, match=name):
                session.publish(child_of(head, 3), _in_memory(table))
        assert self.visible(sink) == []

    @pytest.mark.parametrize("where", ["memory", "files"])
    def test_odd_values_come_back_equal_or_are_refused_by_name(
        self, sink: Sink, session: SinkSession, tmp_path: Path, where: str
    ) -> None:
        columns = {case.replace(" ", "_"): values for case, values in ODD_VALUES.items()}
        refused = {case.replace(" ", "_") for case in self.refused_values}
        self.publish_odd(sink, session, columns, refused, tmp_path if where == "files" else None)

    @pytest.mark.parametrize("where", ["memory", "files"])
    def test_odd_names_come_back_equal_or_are_refused(
        self, sink: Sink, session: SinkSession, tmp_path: Path, where: str
    ) -> None:
        columns = {name: pa.array([1, None], pa.int64()) for name in ODD_NAMES.values()}
        refused = {ODD_NAMES[case] for case in self.refused_names}
        self.publish_odd(sink, session, columns, refused, tmp_path if where == "files" else None)

    def publish_odd(
        self,
        sink: Sink,
        session: SinkSession,
        columns: Mapping[str, pa.Array],
        refused: Collection[str],
        folder: Path | None,
    ) -> None:
        """Each of ``columns`` in a checkpoint of its own: it lands, or it is refused by its name
        before anything is committed, and the next one lands all the same.
        """
        head, kept, answers = self.start(session), [], {}
        for number, (name, values) in enumerate(columns.items()):
            table = self.odd_table(head.version + 1, name, values)
            rows = StagedTable.in_memory(table)
            if folder is not None:
                rows = to_files(rows, self.attempt_folder(sink, folder / str(number)))
            entry = child_of(head, staged := StagedOutput(rows))
            try:
                assert session.publish(entry, staged) is COMMITTED
            except EoPipelineError as error:
                answers[name] = error
                assert self.head_of(session).id == head.id
            else:
                head = entry
                kept += rows_of(table)
        described = {name: f"{type(error).__name__}: {error}" for name, error in answers.items()}
        strange = {
            name: described[name]
            for name, error in answers.items()
            if not isinstance(error, RefusedError) or not _names(error, name)
        }
        assert strange == {}
        assert set(described) == set(refused), described
        head = self.forward(session, head)
        table_rows = [row for row in self.read_rows(sink) if row[CHECKPOINT_COLUMN] != head.version]
        assert self.told_apart(table_rows) == self.told_apart(kept)

    def told_apart(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """By id, without the columns of other checkpoints, as values that equal themselves only."""
        ordered = sorted(rows, key=lambda row: row["id"])
        signed = self.keeps_negative_zero
        return [
            {name: comparable(v, signed_zero=signed) for name, v in row.items() if v is not None}
            for row in ordered
        ]

    def odd_table(self, checkpoint: int, name: str, values: pa.Array) -> pa.Table:
        ids = range(checkpoint * 1000, checkpoint * 1000 + len(values))
        numbers = pa.array([checkpoint] * len(values), pa.int64())
        columns = {"id": pa.array(ids, pa.int64()), name: values, CHECKPOINT_COLUMN: numbers}
        return pa.table(columns)

    def test_dead_letters_land_with_the_rows(self, sink: Sink, session: SinkSession) -> None:
        staged = StagedOutput(self.staged(1).rows, dead_letters(1, [b"{", b"\xff"]))
        entry = child_of(self.start(session), staged)
        with pytest.raises(CrashRequested):
            session.publish(entry, staged, raise_at(CrashPoint.ENTRY_SENT))
        assert self.read_dead_letters(sink) == []
        assert session.publish(entry, staged) is COMMITTED
        letters = sorted(self.read_dead_letters(sink), key=lambda letter: letter["offset"])
        assert [letter["value"] for letter in letters] == [b"{", b"\xff"]
        assert {letter["error"] for letter in letters} == {"not JSON"}
        assert self.visible(sink) == self.rows_of(1)

    def test_a_reset_leaves_nothing_and_it_can_start_anew_or_it_is_refused(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.forward(session, self.forward(session, self.start(session)))
        try:
            assert session.reset(dry_run=True)
        except RefusedError:
            with pytest.raises(RefusedError):
                session.reset(dry_run=False)
            assert (self.visible(sink), session.head()) == (self.rows_of(1, 2), session.entry(2))
            return
        assert self.visible(sink) == self.rows_of(1, 2), "a dry run drops nothing"
        held = session.entry(2)
        assert held is not None
        assert held.id == head.id
        session.reset(dry_run=False)
        session.reset(dry_run=False)  # again is no error
        assert session.head() is None
        with sink.open(self.pipeline) as anew:
            self.forward(anew, self.start(anew))
        assert self.visible(sink) == self.rows_of(1)

    def test_a_session_outlives_its_errors(self, sink: Sink, session: SinkSession) -> None:
        head: LedgerEntry = self.start(session)
        for version in (1, 2, 3):
            staged = self.staged(version)
            with pytest.raises(CrashRequested):
                session.publish(child_of(head, staged), staged, raise_at(CrashPoint.ROWS_SENT))
            head = self.forward(session, head)
        assert self.visible(sink) == self.rows_of(1, 2, 3)


def _in_memory(table: pa.Table) -> StagedOutput:
    return StagedOutput(rows=StagedTable.in_memory(table))


def _names(error: EoPipelineError, column: str) -> bool:
    return column in str(error) or repr(column)[1:-1] in str(error)

"""The contract of a sink that takes rows back: the whole of it, and what going back must not break.

    class TestMySink(GoingBackContract): ...  # instead of ExactlyOnceContract

A sink that cannot go back is held to its refusal by :class:`SinkContract`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import ClassVar

import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import FencedError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing.contract import (
    ALREADY_COMMITTED,
    COMMITTED,
    killed_while_publishing,
    meeting_at,
)
from eo_pipeline.testing.exactly_once import ExactlyOnceContract
from eo_pipeline.testing.faults import CrashRequested, raise_at
from eo_pipeline.testing.staging import child_of, dead_letters, to_files

_OTHER_COUNT = 7


class GoingBackContract(ExactlyOnceContract):
    """Contract of a sink whose ``check_going_back`` says yes."""

    #: one that replaces rows by key may be able to rewind only
    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND, Operation.REPLAY)

    def committed(self, session: SinkSession, checkpoints: int = 3) -> LedgerEntry:
        """The head after ``checkpoints`` of them."""
        head = self.start(session)
        for _ in range(checkpoints):
            head = self.forward(session, head)
        return head

    def back(
        self, head: LedgerEntry, operation: Operation, target: int, rows: int | None = None
    ) -> tuple[LedgerEntry, StagedOutput]:
        """A rewind to ``target``, or a replay of it with so many rows."""
        is_replay = operation is Operation.REPLAY
        staged = self.staged(target, rows) if is_replay else StagedOutput()
        return child_of(head, staged, operation=operation, target=target), staged

    def after(self, operation: Operation) -> list[tuple[int, int]]:
        """Return the visible rows of three checkpoints once the first is the target of
        ``operation``, which is a replay with :data:`_OTHER_COUNT` rows.
        """
        if operation is Operation.REWIND:
            return self.rows_of(1)
        again = [(1, number) for number in self.table(1, _OTHER_COUNT)["id"].to_pylist()]
        return again + self.rows_of(2, 3)

    def each_way(self, head: LedgerEntry) -> list[tuple[LedgerEntry, StagedOutput]]:
        return [self.back(head, operation, 1, _OTHER_COUNT) for operation in self.going_back]

    def test_a_rewind_takes_exactly_what_came_after(self, sink: Sink, session: SinkSession) -> None:
        """Scenario: back, on from there, back again to before anything. Outcome: each time the
        rows of later checkpoints are gone and no other, and the ledger went on.
        """
        head, staged = self.back(self.committed(session), Operation.REWIND, 1)
        session.check_going_back(head)
        assert self.visible(sink) == self.rows_of(1, 2, 3)
        assert session.publish(head, staged) is COMMITTED
        assert self.visible(sink) == self.rows_of(1)
        assert self.head_of(session).id == head.id
        assert session.publish(head, staged) is ALREADY_COMMITTED
        on = self.forward(session, head)
        assert session.publish(head, staged) is ALREADY_COMMITTED
        assert self.visible(sink) == self.rows_of(1, 5)
        nothing, _ = self.back(on, Operation.REWIND, 5)
        assert session.publish(nothing, StagedOutput()) is COMMITTED
        assert self.visible(sink) == self.rows_of(1, 5)
        begin, _ = self.back(nothing, Operation.REWIND, 0)
        assert session.publish(begin, StagedOutput()) is COMMITTED
        assert self.visible(sink) == []
        self.forward(session, begin)
        assert self.visible(sink) == self.rows_of(8)
        assert [entry.version for entry in session.history()] == list(range(9))

    def test_a_replay_replaces_exactly_its_checkpoint(
        self, sink: Sink, session: SinkSession, tmp_path: Path
    ) -> None:
        """Scenario: more rows, none, other files; then a rewind that spares it and one to it."""
        if Operation.REPLAY not in self.going_back:
            return  # held to its refusal by SinkContract
        head = self.committed(session)
        for count in (_OTHER_COUNT, 0, None):
            head, staged = self.back(head, Operation.REPLAY, 2, count)
            session.check_going_back(head)
            assert session.publish(head, staged) is COMMITTED
            again = [(2, number) for number in self.table(2, count)["id"].to_pylist()]
            assert self.visible(sink) == sorted([*self.rows_of(1, 3), *again])
        assert session.publish(head, staged) is ALREADY_COMMITTED
        head, _ = self.back(head, Operation.REPLAY, 2, _OTHER_COUNT)
        rows = StagedTable.in_memory(self.table(2, _OTHER_COUNT))
        files = to_files(rows, self.attempt_folder(sink, tmp_path))
        assert session.publish(head, StagedOutput(files)) is COMMITTED
        again = [(2, number) for number in self.table(2, _OTHER_COUNT)["id"].to_pylist()]
        assert self.visible(sink) == sorted([*self.rows_of(1, 3), *again])
        head, _ = self.back(head, Operation.REWIND, 2)
        assert session.publish(head, StagedOutput()) is COMMITTED
        assert self.visible(sink) == [*self.rows_of(1), *again]
        head, _ = self.back(self.forward(session, head), Operation.REWIND, 1)
        assert session.publish(head, StagedOutput()) is COMMITTED
        assert self.visible(sink) == self.rows_of(1)

    def test_dead_letters_go_back_with_the_rows(self, sink: Sink, session: SinkSession) -> None:
        head = self.start(session)
        for version in (1, 2, 3):
            letters = dead_letters(version, [b"first"] * version)
            staged = StagedOutput(self.staged(version).rows, letters)
            head = child_of(head, staged)
            session.publish(head, staged)
        if Operation.REPLAY in self.going_back:
            staged = StagedOutput(self.staged(1).rows, dead_letters(1, [b"again"]))
            head = child_of(head, staged, operation=Operation.REPLAY, target=1)
            session.publish(head, staged)
            assert self.letters(sink) == [b"again", *[b"first"] * 5]
        head, _ = self.back(head, Operation.REWIND, 2)
        session.publish(head, StagedOutput())
        assert len(self.letters(sink)) == 3
        head, _ = self.back(head, Operation.REWIND, 0)
        session.publish(head, StagedOutput())
        assert self.letters(sink) == []

    def letters(self, sink: Sink) -> list[bytes]:
        return sorted(letter["value"] for letter in self.read_dead_letters(sink))

    def test_a_stale_way_back_is_fenced_and_changes_nothing(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.committed(session)
        stale = self.each_way(head)
        newest = self.forward(session, head)
        for entry, staged in stale:
            with pytest.raises(FencedError):
                session.publish(entry, staged)
        assert self.visible(sink) == self.rows_of(1, 2, 3, 4)
        assert self.head_of(session).id == newest.id

    def test_of_a_way_back_and_a_run_at_once_one_wins(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.committed(session, 2)
        reach = meeting_at(CrashPoint.ENTRY_SENT)
        back, nothing = self.back(head, Operation.REWIND, 1)
        forward = child_of(head, self.rows)
        results = self.race(
            lambda: self.publish_apart(sink, back, nothing, reach),
            lambda: self.publish_apart(sink, forward, self.staged(3), reach),
        )
        assert results.count(COMMITTED) == 1, results
        assert sum(isinstance(result, FencedError) for result in results) == 1, results
        went_back = results[0] is COMMITTED
        assert self.visible(sink) == (self.rows_of(1) if went_back else self.rows_of(1, 2, 3))
        assert self.head_of(session).id == (back if went_back else forward).id

    @pytest.mark.parametrize("point", [CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT])
    def test_a_killed_way_back_leaves_nothing_and_a_retry_lands_once(
        self, sink: Sink, session: SinkSession, point: CrashPoint
    ) -> None:
        """Aborts at the same points leave nothing either."""
        head = self.committed(session)
        attempts = self.each_way(head)
        for entry, staged in attempts:
            with pytest.raises(CrashRequested):
                session.publish(entry, staged, raise_at(point))
            killed_while_publishing(sink, self.pipeline, entry, staged, point)
            assert self.visible(sink) == self.rows_of(1, 2, 3)
        entry, staged = attempts[-1]
        with sink.open(self.pipeline) as next_run:
            recovered = next_run.recover()
            assert recovered is not None
            assert recovered.id == head.id
            assert next_run.publish(entry, staged) is COMMITTED
            next_run.recover()
        assert self.visible(sink) == self.after(entry.operation)
        self.forward(session, entry)

    def test_a_reader_that_polls_never_sees_half_of_a_way_back(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.committed(session)
        views: list[list[tuple[int, int]]] = []
        done = Event()

        def poll() -> None:
            while not done.is_set():
                views.append(self.visible(sink))

        whole = [self.rows_of(1, 2, 3)]
        with ThreadPoolExecutor(1) as threads:
            polling = threads.submit(poll)
            try:
                for operation in reversed(self.going_back):
                    head, staged = self.back(head, operation, 1, _OTHER_COUNT)
                    session.publish(head, staged)
                    whole.append(self.visible(sink))
            finally:
                done.set()
            polling.result()
        assert whole[1] == self.after(self.going_back[-1])
        assert all(view in whole for view in views)
        order = [whole.index(view) for view in views]
        assert order == sorted(order)

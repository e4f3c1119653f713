"""The contract of ledgers that are pruned below a floor. A store that keeps all of its own says why
by ``keeps_ledger``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from eo_pipeline.errors import FencedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.operations.maintain import floor_entry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing.contract import COMMITTED, SinkContract
from eo_pipeline.testing.staging import child_of

_CHECKPOINTS = 12
_FLOOR = 9


class PruningContract(SinkContract):
    """Contract of :meth:`~eo_pipeline.sinks.capabilities.Maintained.prune`."""

    def floor_set(
        self, session: SinkSession, floor: int = _FLOOR, checkpoints: int = _CHECKPOINTS
    ) -> list[LedgerEntry]:
        """All entries of a ledger whose newest sets a floor, oldest first."""
        entries = [self.start(session)]
        for _ in range(checkpoints):
            entries.append(self.forward(session, entries[-1]))
        return [*entries, self.raised(session, floor)]

    def raised(self, session: SinkSession, floor: int) -> LedgerEntry:
        """The entry that sets the ``floor`` on top of the head."""
        head = session.head()
        assert head is not None
        entry = floor_entry(head, floor, session.entry, "a test")
        assert session.publish(entry, StagedOutput()) is COMMITTED
        return entry

    def assert_kept(self, session: SinkSession, entries: Sequence[LedgerEntry]) -> None:
        """Exactly these are found, each by its version, the last as the head."""
        first, last = entries[0].version, entries[-1].version
        read_entries = list(session.history(first))
        assert [entry.id for entry in read_entries] == [entry.id for entry in entries]
        assert [session.entry(version) for version in range(first, last + 1)] == read_entries
        assert session.verified(session.head()) == read_entries[-1]

    def test_entries_below_the_floor_go_and_rows_and_all_else_stay(
        self, sink: Sink, session: SinkSession
    ) -> None:
        assert session.keeps_ledger is None
        entries = self.floor_set(session)
        described = session.prune(dry_run=True)
        self.assert_kept(session, entries[_FLOOR:])
        assert session.prune(dry_run=False) == described > 0
        assert session.prune(dry_run=False) == 0
        rows = self.rows_of(*range(1, _CHECKPOINTS + 1))
        with sink.open(self.pipeline) as other:
            assert other.recover() == session.head()
            for open_session in (session, other):
                self.assert_kept(open_session, entries[_FLOOR:])
                assert list(open_session.history()) == list(open_session.history(_FLOOR))
                assert not any(open_session.entry(version) for version in range(1, _FLOOR))
        assert self.visible(sink) == rows

    def test_on_a_pruned_ledger_runs_go_on_and_it_is_pruned_again(
        self, sink: Sink, session: SinkSession
    ) -> None:
        """Long enough that each entry finds those that are there through all that went, by sessions
        that never saw what went.
        """
        entries = self.floor_set(session)
        session.prune(dry_run=False)
        for floor in (_CHECKPOINTS, _CHECKPOINTS + 9):
            with sink.open(self.pipeline) as other:
                for _ in range(_CHECKPOINTS):
                    entries.append(self.forward(other, entries[-1]))
                entries.append(self.raised(other, floor))
                assert other.prune(dry_run=False) > 0
            with sink.open(self.pipeline) as other:
                self.assert_kept(other, entries[floor:])
        checkpoints = [entry.version for entry in entries if entry.counts.rows]
        assert self.visible(sink) == self.rows_of(*checkpoints)

    def test_what_was_planned_below_the_floor_is_fenced(
        self, sink: Sink, session: SinkSession
    ) -> None:
        """By a run that slept since, before what is below has gone and after. What landed is not
        found any more then, and lands no second time.
        """
        entries = self.floor_set(session)
        planned = [child_of(entries[version], self.rows) for version in (2, _FLOOR - 1)]
        before = self.visible(sink)
        for stale in (planned, [*planned, entries[3]]):
            for entry in stale:
                with pytest.raises(FencedError):
                    self.publish_apart(sink, entry, self.staged(entry.version))
            session.prune(dry_run=False)
        assert self.visible(sink) == before
        self.assert_kept(session, entries[_FLOOR:])

    def test_a_floor_and_a_run_that_meet_cannot_both_land(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head = self.start(session)
        for _ in range(3):
            head = self.forward(session, head)
        floor = floor_entry(head, 2, session.entry, "a test")
        run = child_of(head, self.rows)
        self.publish_apart(sink, run, self.staged(run.version))
        with pytest.raises(FencedError):
            session.publish(floor, StagedOutput())
        newest = session.head()
        assert newest is not None
        assert (newest.id, newest.floor) == (run.id, 0)

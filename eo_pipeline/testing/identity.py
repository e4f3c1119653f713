"""The contract of sinks whose table and ledger can be lost apart, as tests. Mix it in after a
:class:`~eo_pipeline.testing.contract.SinkContract`, and say how each is lost.
"""

from __future__ import annotations

import pytest

from eo_pipeline.errors import (
    ConfigError,
    LedgerDamagedError,
    RefusedError,
    TableReplacedError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing.contract import SinkContract
from eo_pipeline.testing.staging import child_of


class IdentityContract(SinkContract):
    """A ledger speaks for one table, and a name is not a table."""

    def lose_ledger(self, sink: Sink) -> None:
        """Take away what says where the pipeline stands, and leave the rows."""
        raise NotImplementedError

    def lose_table(self, sink: Sink) -> None:
        """Take away the table, and leave the ledger."""
        raise NotImplementedError

    def lose_newest_entry(self, sink: Sink) -> None:  # noqa: ARG002
        """Take away the newest entry alone, and leave its rows."""
        pytest.skip("an entry is kept in what holds its rows, or cannot be taken out by itself")

    def look(self, sink: Sink) -> LedgerEntry | None:
        """As every run does first."""
        with sink.open(self.pipeline) as session:
            head = session.verified(session.recover())
            session.refuse_later_rows(head, thorough=True)
            return head

    def written(self, session: SinkSession, checkpoints: int = 2) -> LedgerEntry:
        """The last of some checkpoints, each of which says what it is committed into."""
        head = self.start(session)
        for _ in range(checkpoints):
            head = session.identified(child_of(head, self.rows))
            outcome = session.publish(head, self.staged(head.version))
            assert outcome is CommitOutcome.COMMITTED
        return head

    def test_what_was_committed_is_found_as_it_is(self, sink: Sink) -> None:
        assert self.look(sink) is None
        with sink.open(self.pipeline) as session:
            head = self.written(session)
            recorded = dict(head.identity.sink)
        seen = self.look(sink)
        assert seen is not None
        assert seen.id == head.id
        assert recorded
        assert dict(seen.identity.sink) == recorded

    def test_rows_without_a_ledger_are_not_doubled_by_beginning_anew(self, sink: Sink) -> None:
        with sink.open(self.pipeline) as session:
            self.written(session)
        self.lose_ledger(sink)
        with pytest.raises(LedgerDamagedError, match="holds rows of checkpoints"):
            self.look(sink)
        assert self.visible(sink) == self.rows_of(1, 2)

    def test_rows_above_the_ledgers_head_are_not_doubled(self, sink: Sink) -> None:
        """Found before: the run went on, and the rows of the entry that was lost were there
        twice.
        """
        with sink.open(self.pipeline) as session:
            self.written(session)
            assert not session.has_later_rows(thorough=True)
        self.lose_newest_entry(sink)
        with pytest.raises(LedgerDamagedError, match="version 2 is missing, and the table holds"):
            self.look(sink)

    def test_a_ledger_without_its_table_is_not_gone_on_with(self, sink: Sink) -> None:
        with sink.open(self.pipeline) as session:
            self.written(session)
        self.lose_table(sink)
        with pytest.raises((TableReplacedError, LedgerDamagedError)):
            self.look(sink)

    def test_what_was_reset_begins_anew_again_and_again(self, sink: Sink) -> None:
        """Found before: it did once, and then the table was another ledger's for good."""
        for _ in range(3):
            with sink.open(self.pipeline) as session:
                assert self.look(sink) is None
                head = self.written(session)
                try:
                    session.reset(dry_run=True)
                except RefusedError:
                    pytest.skip("what was written here is left to a person")
            seen = self.look(sink)
            assert seen is not None
            assert seen.id == head.id
            with sink.open(self.pipeline) as session:
                session.reset(dry_run=False)
            assert self.visible(sink) == []

    def test_before_the_first_row_a_table_may_come_and_go(self, sink: Sink) -> None:
        with sink.open(self.pipeline) as session:
            start = self.start(session)
            session.publish(session.identified(child_of(start)), StagedOutput())
        seen = self.look(sink)
        assert seen is not None
        assert seen.version == 1


class MannerContract(IdentityContract):
    """Contract of sinks with several manners of writing rows."""

    def in_another_manner(self, sink: Sink) -> Sink:
        """Return the sink of the same table with another mode, key or format."""
        raise NotImplementedError

    def test_rows_do_not_go_in_otherwise_than_before(self, sink: Sink) -> None:
        """Found before: upserts, then append, then a rewind gave an empty table."""
        other = self.in_another_manner(sink)
        with sink.open(self.pipeline) as session:
            first = session.identified(child_of(self.start(session)))
            session.publish(first, StagedOutput())
        assert self.look(other) is not None, "no row depends on it yet"
        with sink.open(self.pipeline) as session:
            entry = session.identified(child_of(first, self.rows))
            session.publish(entry, self.staged(entry.version))
        with pytest.raises(ConfigError, match="were written with mode"):
            self.look(other)
        assert self.look(sink) is not None

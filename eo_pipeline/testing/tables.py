"""The contract of a sink that fills several tables in one transaction.

    class TestSeveral(TablesContract):
        @pytest.fixture
        def sink(self, tmp_path):
            return self.together(lambda name: MySink(path=tmp_path / "store", table=name))

        def read_tables(self, sink):
            return {name: [...]}  # by another connection, in one snapshot

For a sink whose class says ``tables_session_class``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import EoPipelineError, FencedError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Counts, LedgerEntry, Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.sinks.tables import Appearing, TablesSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing.contract import ALREADY_COMMITTED, COMMITTED, killed_while_publishing
from eo_pipeline.testing.staging import child_of, first_entry

#: What is visible: of each table the checkpoint and the id of each row.
Visible = Mapping[str, list[tuple[int, int]]]


class TablesContract:
    """Contract of several tables under one ledger."""

    pipeline: ClassVar[str] = "contract"
    names: ClassVar[tuple[str, ...]] = ("orders", "order_lines")
    #: False where a reader of several tables may see one before another
    whole: ClassVar[bool] = True
    #: False if nothing that was published can be taken back
    goes_back: ClassVar[bool] = True
    rows: ClassVar[int] = 10

    @pytest.fixture
    def sink(self) -> TablesSink:
        """Tables on a store that holds nothing yet; see :meth:`together`."""
        raise NotImplementedError

    def read_tables(self, sink: TablesSink) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Rows of each table that a reader sees at this moment; none of a table that is absent."""
        raise NotImplementedError

    @classmethod
    def together(
        cls, member: Callable[[str], Sink], names: Sequence[str] | None = None
    ) -> TablesSink:
        """The sinks of ``names`` as one."""
        members = {name: member(name).one_of_several() for name in names or cls.names}
        return TablesSink.model_validate({"members": members})

    @pytest.fixture
    def session(self, sink: TablesSink) -> Iterator[SinkSession]:
        with sink.open(self.pipeline) as session:
            yield session

    # What the tests are told in.

    def staged(self, version: int, names: Sequence[str]) -> StagedOutput:
        """Rows of one checkpoint for each of ``names``; no two checkpoints share an ``id``."""
        ids = range(version * 1000, version * 1000 + self.rows)
        columns = {"id": pa.array(ids, pa.int64()), "name": [f"row {number}" for number in ids]}
        columns[CHECKPOINT_COLUMN] = pa.array([version] * self.rows, pa.int64())
        rows = StagedTable.in_memory(pa.table(columns))
        return StagedOutput(tables={name: StagedOutput(rows=rows) for name in names})

    def entry(
        self, head: LedgerEntry, session: SinkSession, staged: StagedOutput, **back: Any
    ) -> LedgerEntry:
        """The entry on top of ``head`` that counts what is ``staged``."""
        counted = {
            name: Counts(
                rows=output.rows.rows if output.rows else 0,
                dead_letters=output.dead_letters.rows if output.dead_letters else 0,
            )
            for name, output in staged.tables.items()
        }
        child = child_of(head, sum(counts.rows for counts in counted.values()), **back)
        letters = sum(counts.dead_letters for counts in counted.values())
        counts = replace(child.counts, dead_letters=letters, tables=counted)
        return session.identified(replace(child, counts=counts))

    def forward(
        self, session: SinkSession, head: LedgerEntry, names: Sequence[str] | None = None
    ) -> LedgerEntry:
        """Publish one more checkpoint, and return its entry."""
        staged = self.staged(head.version + 1, names or self.names)
        entry = self.entry(head, session, staged)
        assert session.publish(entry, staged) is COMMITTED
        return entry

    def start(self, session: SinkSession) -> LedgerEntry:
        entry = session.identified(first_entry(self.pipeline))
        assert session.publish(entry, StagedOutput()) is COMMITTED
        return entry

    def visible(self, sink: TablesSink) -> Visible:
        return {
            name: sorted((row[CHECKPOINT_COLUMN], row["id"]) for row in rows)
            for name, rows in self.read_tables(sink).items()
            if rows
        }

    def expected(self, **checkpoints: Sequence[int]) -> Visible:
        """Visible rows if these checkpoints filled the tables of these names."""
        return {
            name: [(c, c * 1000 + number) for c in sorted(versions) for number in range(self.rows)]
            for name, versions in checkpoints.items()
        }

    # The rules.

    def test_one_entry_makes_the_rows_of_all_tables_visible(
        self, sink: TablesSink, session: SinkSession
    ) -> None:
        first, second = self.names
        head = self.forward(session, self.start(session))
        assert self.visible(sink) == self.expected(**{first: [1], second: [1]})
        head = self.forward(session, head, [second])
        assert self.visible(sink) == self.expected(**{first: [1], second: [1, 2]})
        with sink.open(self.pipeline) as other:
            held = other.head()
            assert held is not None
            assert held.id == head.id
            assert {*held.counts.tables} == {second}
            assert {*held.identity.tables} == {*self.names}

    @pytest.mark.parametrize("point", [CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT])
    def test_a_kill_shows_all_tables_or_none_and_a_retry_lands_once(
        self, sink: TablesSink, session: SinkSession, point: CrashPoint
    ) -> None:
        head = self.forward(session, self.start(session))
        before = self.visible(sink)
        staged = self.staged(2, self.names)
        entry = self.entry(head, session, staged)
        killed_while_publishing(sink, self.pipeline, entry, staged, point)
        after = self.expected(**{name: [1, 2] for name in self.names})
        if self.whole:
            assert self.visible(sink) in (before, after)
        with sink.open(self.pipeline) as other:
            other.recover()
            assert other.publish(entry, staged) in (COMMITTED, ALREADY_COMMITTED)
        assert self.visible(sink) == after

    def test_a_stale_run_is_fenced_with_all_its_tables(
        self, sink: TablesSink, session: SinkSession
    ) -> None:
        head = self.forward(session, self.start(session))
        with sink.open(self.pipeline) as rival:
            late = self.entry(head, session, self.staged(2, self.names))
            self.forward(rival, head, self.names[:1])
            before = self.visible(sink)
            with pytest.raises(FencedError):
                session.publish(late, self.staged(2, self.names))
        assert self.visible(sink) == before

    def test_a_table_that_the_counts_do_not_have_is_refused(
        self, sink: TablesSink, session: SinkSession
    ) -> None:
        head = self.forward(session, self.start(session))
        before = self.visible(sink)
        staged = self.staged(2, self.names)
        with pytest.raises(RefusedError):
            session.publish(self.entry(head, session, self.staged(2, self.names[:1])), staged)
        assert self.visible(sink) == before

    def test_one_rewind_and_one_replay_are_of_all_tables(
        self, sink: TablesSink, session: SinkSession
    ) -> None:
        head = self.start(session)
        for _ in range(3):
            head = self.forward(session, head)
        replayed = self.staged(2, self.names[:1])
        replay = self.entry(head, session, replayed, operation=Operation.REPLAY, target=2)
        before = self.visible(sink)
        if not self.goes_back:
            with pytest.raises(EoPipelineError):
                session.check_going_back(replay)
            with pytest.raises(EoPipelineError):
                session.publish(replay, replayed)
            assert self.visible(sink) == before
            return
        first, second = self.names
        assert session.publish(replay, replayed) is COMMITTED
        assert self.visible(sink) == self.expected(**{first: [1, 2, 3], second: [1, 3]})
        nothing = StagedOutput()
        rewind = self.entry(replay, session, nothing, operation=Operation.REWIND, target=1)
        assert session.publish(rewind, nothing) is COMMITTED
        assert self.visible(sink) == self.expected(**{first: [1], second: [1]})

    def test_a_table_that_joins_begins_with_its_first_rows(
        self, sink: TablesSink, session: SinkSession
    ) -> None:
        """Also in a session that is open: where tables appear."""
        first, second = self.names
        few = TablesSink.model_validate({"members": {first: sink.members[first]}})
        with few.open(self.pipeline) as growing:
            head = self.forward(growing, self.start(growing), [first])
            growing.take_in(sink)
            head = self.forward(growing, head)
        assert self.visible(sink) == self.expected(**{first: [1, 2], second: [2]})
        with few.open(self.pipeline) as shrunk:
            staged = self.staged(3, self.names)
            entry = self.entry(head, session, staged)
            with pytest.raises(RefusedError, match=f"{second} too"):
                shrunk.publish(entry, staged)

    def test_the_ledger_needs_no_table(self, sink: TablesSink) -> None:
        """Scenario: tables appear. Outcome: the first entry comes before any of them."""
        holder = next(iter(sink.members.values())).without_rows()
        names = {name: name for name in self.names}
        appearing = Appearing(holder, "{value}", {}, 10, (), None)
        empty = TablesSink.model_validate({"members": {}, "appearing": appearing})
        full = {"members": sink.members, "appearing": appearing._replace(names=names)}
        with empty.open(self.pipeline) as session:
            head = self.start(session)
            assert self.visible(sink) == {}
            session.take_in(TablesSink.model_validate(full))
            head = self.forward(session, head)
            assert head.values == names
        assert self.visible(sink) == self.expected(**{name: [1] for name in self.names})

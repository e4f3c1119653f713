"""Several tables of one database, published by one transaction with one ledger entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product

from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import Publication, goes_back
from eo_pipeline.sinks.sql.session import SqlPublication, SqlSession
from eo_pipeline.sinks.tables import TablesSession, TablesSink
from eo_pipeline.staging.rows import StagedOutput

#: What the ledger names as the table of a pipeline with several.
TARGET = "tables of {}"

Ask = Callable[[SqlSession], object]


class SqlTablesSession(TablesSession[SqlSession]):
    """A session for each table, all on one connection. The ledger is that of the first."""

    keeps_itself = SqlSession.keeps_itself
    keeps_ledger = None

    def _member(self, name: str, sink: Sink) -> SqlSession:  # noqa: ARG002
        store = self.first.store if self.first else None
        target = TARGET.format(self.pipeline)
        session: SqlSession = sink._session_class()(sink, self.pipeline, store, target)
        return session

    def take_in(self, sink: TablesSink) -> None:
        there = {*self.members}
        super().take_in(sink)
        self._refuse_folded()
        new = [member for name, member in self.members.items() if name not in there]
        others = [member for member in new if member is not self.first]
        with self.asked_at_once(SqlSession.check_other_table, members=others):
            for member in others:
                member.check_other_table()

    def _refuse_folded(self) -> None:
        names: dict[str, str] = {}
        for name in self.members:
            other = names.setdefault(name.lower(), name)
            if other != name and self.ledger.store.folds_names:
                raise ConfigError(
                    f"tables: {other} and {name} are one table to this server, whose "
                    "lower_case_table_names is not 0. Nothing was read or written. Give them names "
                    "that differ in more than case."
                )

    def check_identity(self, head: LedgerEntry) -> None:
        with self.asked_at_once(SqlSession.table_identity, SqlSession.check_dead_letters):
            super().check_identity(head)

    def identified(self, entry: LedgerEntry) -> LedgerEntry:
        with self.asked_at_once(SqlSession.table_identity):
            return super().identified(entry)

    def has_later_rows(self, *, thorough: bool) -> bool:
        with self.asked_at_once(SqlSession.indexed_tables):
            return super().has_later_rows(thorough=thorough)

    def asked_at_once(
        self, *asks: Ask, members: Iterable[SqlSession] | None = None
    ) -> AbstractContextManager[None]:
        """See :meth:`SinkSession.asked_at_once`, of some ``members``."""
        chosen = self.members.values() if members is None else members

        def ask_all() -> None:
            for member, ask in product(chosen, asks):
                ask(member)

        return self.ledger.store.asked_at_once(ask_all)

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """All tables and the ledger, in one transaction."""
        members = self.members.values()
        for member in members:
            member.check_dead_letters()
        tables = [table for member in members for table in (member.table, member.dead_letters)]
        return self.ledger.drop(tables, dry_run=dry_run)

    def prune(self, *, dry_run: bool) -> int:
        return self.ledger.prune(dry_run=dry_run)

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return SqlTablesPublication(self, entry, staged)


class SqlTablesPublication(Publication):
    """One transaction over all tables."""

    session: SqlTablesSession

    def __init__(self, session: SqlTablesSession, entry: LedgerEntry, staged: StagedOutput) -> None:
        super().__init__(session, entry, staged)
        outputs: Mapping[str, StagedOutput] = staged.tables
        self._parts = [
            SqlPublication(member, entry.of_table(name), outputs.get(name, StagedOutput()))
            for name, member in session.members.items()
            if name in outputs or goes_back(entry)
        ]
        self._ledger = SqlPublication(session.ledger, entry, staged)
        self._open = ExitStack()

    def write(self) -> None:
        """As :meth:`SqlPublication.write`, of all tables before the transaction and in it."""
        self.session.ledger.store.reconnect()
        prepared = []
        for part in self._parts:
            with _refused_by(part):
                prepared.append((part, part.prepare()))
        self._open.enter_context(self.session.ledger.store.transaction())
        for part, to_make in prepared:
            with _refused_by(part):
                part.fill(to_make)

    def enter(self) -> None:
        self._ledger.enter()

    def commit(self) -> None:
        self._ledger.commit()

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002
        self._open.close()


@contextmanager
def _refused_by(part: SqlPublication) -> Iterator[None]:
    """Name the table of ``part``, and not the first one, in the error of its statements."""
    store = part.store
    try:
        yield
    except store.driver_error as error:
        diagnosis = store.diagnose(error)
        raise store.while_publishing(diagnosis, part.session.table.name) from error

"""The steps of the commit protocol for all SQL sinks, on top of a dialect's store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from eo_pipeline._lazy import pa
from eo_pipeline.errors import CommitUnknownError, ConfigError, EoPipelineError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, START_VERSION, LedgerEntry
from eo_pipeline.sinks.capabilities import Selected
from eo_pipeline.sinks.columns import Bound
from eo_pipeline.sinks.session import LEDGER, Publication, SinkSession, goes_back
from eo_pipeline.sinks.sql.config import SqlSink, TableName, quoted
from eo_pipeline.sinks.sql.connection import SqlStore
from eo_pipeline.sinks.sql.dialect import ledger_in
from eo_pipeline.sinks.sql.ledger import (
    LEDGER_KEY,
    ONE_PIPELINE,
    LedgerStatements,
    SqlLedger,
    heads_of,
    row_of,
)
from eo_pipeline.sinks.sql.reading import (
    count_rows,
    read_lineage,
    read_rows,
    read_values,
    rows_taken_back,
)
from eo_pipeline.sinks.sql.table import SqlTable
from eo_pipeline.staging.rows import StagedOutput, StagedTable


class SqlLooks(SinkSession):
    """The reading half of a session: opens the store, reads ledger and tables."""

    #: The dialect.
    store_class: ClassVar[type[SqlStore]]
    table_class: ClassVar[type[SqlTable[Any, Any]]]

    def __init__(
        self,
        sink: SqlSink,
        pipeline: str,
        shared: SqlStore | None = None,
        target: str | None = None,
    ) -> None:
        """``shared`` and ``target`` of one of several tables: the store with the connection of all,
        and what their ledger calls them.
        """
        super().__init__(pipeline)
        self._sink = sink
        self._target = target
        self.store = self.store_class(sink, pipeline, shared)
        with ExitStack() as failed:
            failed.callback(self.close)
            try:
                self._open()
            except self.store.driver_error as error:
                raise self.store.while_opening(error) from error
            failed.pop_all()

    def _open(self) -> None:
        store = self.store
        store.locate()
        self.table = self.table_class(store, store.table)
        self.dead_letters = self.table_class(store, store.dead_letters)
        if not store.is_shared:  # the session of the first table has looked
            store.make_ledger(store.ledger)
            self._check_ledger(self.table_class(store, store.ledger))
            store.complete_ledger(store.ledger)
        statements = LedgerStatements(store.ledger.sql, store.mark, store.held)
        target = self._target or str(store.table)
        self.ledger = SqlLedger(self.pipeline, store.table, statements, store.ask, target)
        self.ledger.check_table()
        for table in (self.table, self.dead_letters):
            table.exists()
        if not store.is_shared:
            store.check_server()

    @classmethod
    def heads(cls, sink: SqlSink, pipelines: Collection[str]) -> dict[str, LedgerEntry | None]:
        """The newest entries in the one ledger of ``pipelines``; see ``Sink.heads``."""
        with closing(cls.store_class(sink, ", ".join(islice(pipelines, 1)))) as store:
            try:
                store.locate()
                store.make_ledger(store.ledger)
                store.complete_ledger(store.ledger)
            except store.driver_error as error:
                raise store.while_opening(error) from error
            statements = LedgerStatements(store.ledger.sql, store.mark)
            return heads_of(statements, store.ask, pipelines)

    def column_type(self, field: pa.Field) -> str:
        """Return the type of a new column; an existing one may be of a wider type."""
        return str(self.table.wire_type(field).declared)

    def _check_ledger(self, table: SqlTable[Any, Any]) -> None:
        """A ledger that was copied or restored may have come without what makes it one.

        Raises:
            ConfigError: it is not durable, or could hold two entries of one version.
        """
        table.exists()
        keys = table.unique_keys()
        if keys is not None and set(LEDGER_KEY) not in keys:
            raise ConfigError(
                f"sink.table: the ledger {table.name} has lost its primary key: two runs could "
                f"both commit one version. ALTER TABLE {table.as_shown(table.name)} ADD PRIMARY "
                f"KEY ({', '.join(LEDGER_KEY)}), after a look at it for versions that are there "
                "twice."
            )

    def close(self) -> None:
        self.store.close()

    def head(self) -> LedgerEntry | None:
        return self.ledger.head()

    def entry(self, version: int) -> LedgerEntry | None:
        return self.ledger.entry(version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return self.ledger.history(since)

    def table_identity(self) -> Mapping[str, str] | None:
        """The comment on the checkpoint's column goes where the table goes (renamed, dumped,
        restored), and is not on a column or a table that was made anew.
        """
        try:
            comment = self.table.checkpoint_comment(self.store.ask)
        except self.store.driver_error as error:
            raise self.store.while_opening(error) from error
        if comment is None:
            return {}
        made_for = {LEDGER: ledger_id} if (ledger_id := ledger_in(comment)) else {}
        return {"kind": self.store.product, **made_for}

    def holds_rows(self, since: int) -> bool:
        if self.table.checkpoint_comment(self.store.ask) is None:
            return False
        numbered = f"{quoted(CHECKPOINT_COLUMN)} >= {int(since)}"
        question = f"SELECT 1 FROM {self.table.name.sql} WHERE {numbered} LIMIT 1"
        return bool(self.store.ask(question))

    def has_later_rows(self, *, thorough: bool) -> bool:
        """Rows and ledger are asked in one statement, which sees both as of one moment: whoever
        commits meanwhile is in both or in neither. A table without an index on the checkpoint's
        number is not asked.
        """
        # dead letters of several pipelines may be in one table, if it was named for them
        ours = [self.table, *([] if self._sink.dead_letter_table else [self.dead_letters])]
        tables = [table for table in ours if table.finds_checkpoints(self.store.ask)]
        if not tables:
            return False
        newest = f"({self.ledger.statements.newest})"
        question = " OR ".join(table.has_later(newest, thorough=thorough) for table in tables)
        pipelines = [self.pipeline] * len(tables)
        return self.store.ask_index(question, *pipelines, thorough=thorough)

    def never_null(self) -> frozenset[str]:
        """The table's columns that take no null; none while it is absent."""
        query = self.table_class.never_null
        names = self.store.ask(query, *self.table.parameters) if query else []
        return frozenset(name for (name,) in names)

    def bounds(self) -> dict[str, Bound]:
        """Query the catalog; none while the table is absent."""
        query = self.table_class.bounds
        rows = self.store.ask(query, *self.table.parameters) if query else []
        return {name.lower(): Bound(bool(of_text), int(most)) for name, of_text, most in rows}

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """On a connection of its own, since this one may publish meanwhile; one snapshot."""
        with self._reading(self.store.table) as (table, cursor):
            yield from read_lineage(cursor, table.name.sql, table.columns(), since)

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """As :meth:`lineage`; the columns that give back what they were given, bit for bit."""
        return self._shown(self.store.table, since)

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table of dead letters; see :meth:`values`."""
        return self._shown(self.store.dead_letters, since)

    def _shown(self, name: TableName, since: int) -> Iterator[pa.RecordBatch]:
        with self._reading(name) as (table, cursor):
            yield from read_values(cursor, name.sql, table.shown(), since)

    def rows_of(self, selected: Selected) -> Iterator[pa.RecordBatch]:
        with self._reading(self.store.table) as (table, cursor):
            yield from read_rows(cursor, table.name.sql, table.readable(), selected)

    def counts_of(self, selected: Selected) -> dict[int | None, int]:
        """Counted by the database, in one snapshot."""
        with self._reading(self.store.table) as (table, cursor):
            return count_rows(cursor, table.name.sql, table.columns(), selected)

    def queries(self, selected: Selected) -> Mapping[str, str]:
        condition = selected.condition(self.table.as_shown(CHECKPOINT_COLUMN))
        table = self.table.as_shown(self.store.table)
        return {self.store.product: f"SELECT * FROM {table} WHERE {condition}"}

    @contextmanager
    def _reading(self, name: TableName) -> Iterator[tuple[SqlTable[Any, Any], Any]]:
        """The table ``name``, and a cursor on rows that are fetched as they are asked for; both on
        a connection and a snapshot of their own. The catalog is to be asked before the cursor.
        """
        with closing(self.store_class(self._sink, self.pipeline)) as reader:
            try:
                reader.begin_snapshot()
                with closing(reader.streaming_cursor()) as cursor:
                    yield self.table_class(reader, name), cursor
            except reader.unreadable as error:
                raise RefusedError(f"{name} holds values that cannot be read: {error}") from error
            except reader.driver_error as error:
                raise self.store.while_opening(error) from error


_OF_A_CHECKPOINT = f"{quoted(CHECKPOINT_COLUMN)} IS NOT NULL"


#: Entries of the ledger that one transaction empties.
_EMPTIED_AT_ONCE = 1000


class SqlSession(SqlLooks):
    """A session whose rows and ledger live in one database, published by one transaction.

    The ledger's primary key, and an insert that takes its row from the parent entry, are the
    compare-and-swap: the loser of two publishers waits at the key until the winner has committed,
    and is then told that it is taken. A failure rolls everything back; a connection lost in COMMIT
    is the one case in which nobody knows.
    """

    keeps_itself = "the database keeps its tables by itself (autovacuum, purge): nothing to do"

    keeps_ledger = None

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return SqlPublication(self, entry, staged)

    def check_going_back(self, entry: LedgerEntry) -> None:
        rows_taken_back(entry)  # any rows can be deleted; without a target it refuses
        if self._sink.upsert_rule:
            raise RefusedError(
                f"{self.store.table} is upserted: what its rows held at version {entry.target} was "
                "overwritten and is not kept. Nothing was changed. Start a new pipeline into a "
                "new table (fork) instead."
            )
        for table in (self.table, self.dead_letters):
            table.check_deletable()

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """In one transaction. The tables stay, and with them any row that carries no checkpoint."""
        return self.drop((self.table, self.dead_letters), dry_run=dry_run)

    def drop(self, tables: Sequence[SqlTable[Any, Any]], *, dry_run: bool) -> tuple[str, ...]:
        """See :meth:`reset`, of the rows of ``tables``."""
        store, drops = self.store, []
        try:
            for table in tables:
                if not dry_run:
                    table.let_delete()
            with store.transaction():
                for table in tables:
                    if CHECKPOINT_COLUMN in table.columns():
                        drop = table.count if dry_run else table.delete
                        drops.append(f"{drop(_OF_A_CHECKPOINT):,} rows of {table.name}")
                versions = self._drop_ledger(dry_run=dry_run)
                drops.append(f"{versions:,} versions of the ledger in {store.ledger}")
                store.send_commit()
        except store.driver_error as error:
            raise store.while_opening(error) from error
        return tuple(drops)

    def _drop_ledger(self, *, dry_run: bool) -> int:
        """Delete the entries, and return how many; ``dry_run`` only counts them."""
        store = self.store
        mine = f"FROM {store.ledger.sql} WHERE pipeline = {store.mark}"
        if dry_run:
            return int(store.rows(f"SELECT count(*) {mine}", self.pipeline)[0][0])
        return int(store.execute(f"DELETE {mine}{store.newest_first}", self.pipeline).rowcount)

    def prune(self, *, dry_run: bool) -> int:
        """Entries are emptied, so many in a transaction that none takes long."""
        head, statements = self.head(), self.ledger.statements
        floor = head.floor if head else START_VERSION
        ((count, first),) = self.store.ask(statements.to_prune, self.pipeline, floor)
        if count and not dry_run:
            for start in range(first, floor, _EMPTIED_AT_ONCE):
                below = min(start + _EMPTIED_AT_ONCE, floor)
                self._change(statements.prune, self.pipeline, below, start)
        return int(count)

    def _change(self, statement: str, *parameters: Any) -> None:
        """In a transaction of its own."""
        try:
            with self.store.transaction():
                self.store.execute(statement, *parameters)
                self.store.send_commit()
        except self.store.driver_error as error:
            raise self.store.while_opening(error) from error

    def explain(self, error: Exception) -> EoPipelineError:
        if not isinstance(error, self.store.driver_error):
            return super().explain(error)
        if self.store.is_violation(error, ONE_PIPELINE):
            self.store.roll_back()  # a transaction that has failed answers no question
            self.ledger.refuse_other_pipeline()
        return self.store.while_publishing(self.store.diagnose(error))

    def storable(self, dead_letters: StagedTable) -> StagedTable:
        """Dead letters in a form that the database takes, whatever a record held."""
        return dead_letters


class SqlPublication(Publication):
    """One transaction, begun when there is something to write."""

    session: SqlSession

    def __init__(self, session: SqlSession, entry: LedgerEntry, staged: StagedOutput) -> None:
        super().__init__(session, entry, staged)
        self.store = session.store
        self._open = ExitStack()

    def write(self) -> None:
        """Tables that are there are made fit before the transaction, so that readers wait for that
        alone and not for the rows: a column that is null in every row, or a wider type, harms
        nobody if the rows do not come. Tables that are not there are made in the transaction.
        """
        to_make = self.prepare()
        self._open.enter_context(self.store.transaction())
        self.fill(to_make)

    def prepare(self) -> list[Callable[[], None]]:
        """Make ready the tables that are there, and in a database without DDL in transactions all.
        Returns the functions that create the others, in the transaction.
        """
        self.store.reconnect()
        to_make = self.fit_tables()
        self.prepare_removal()
        if not self.store.has_ddl_in_transactions:
            self._make(to_make)
            return []
        return to_make

    def fill(self, to_make: Iterable[Callable[[], None]]) -> None:
        """Create tables, take rows back and send rows, in the open transaction."""
        self._make(to_make)
        self.take_back()
        self.send()

    def fit_tables(self) -> list[Callable[[], None]]:
        """Widen the existing tables for the rows; return the functions that create the others."""
        session, staged, rule = self.session, self.staged, self.session._sink.upsert_rule
        fits: list[tuple[bool, Callable[[], None]]] = []
        if staged.rows is not None:
            numbered = CHECKPOINT_COLUMN in staged.rows.schema.names
            comment = session.table.checkpoint_comment(self.store.rows)
            is_there = session.table.exists()
            if (numbered and comment is None) or not is_there:
                session.ledger.refuse_lost_table(self.entry)
            session.table.made_for = self.entry.ledger_id
            self._take_over(comment)
            if rule:
                rule.check_columns(staged.rows.schema.names)
            key = rule.key if rule else ()
            fits.append((is_there, partial(session.table.fit, staged.rows, key)))
        if staged.dead_letters is not None:
            is_there = session.dead_letters.exists()
            fits.append((is_there, partial(session.dead_letters.fit, staged.dead_letters)))
        self._make(fit for is_there, fit in fits if is_there)
        return [fit for is_there, fit in fits if not is_there]

    def _make(self, fits: Iterable[Callable[[], None]]) -> None:
        for fit in fits:
            fit()

    def prepare_removal(self) -> None:
        """Make it possible to replace or delete rows of the tables that need it."""
        tables = []
        if goes_back(self.entry):
            tables = [self.session.table, self.session.dead_letters]
        elif self.session._sink.upsert_rule and self.staged.rows is not None:
            tables = [self.session.table]
        for table in tables:
            table.let_delete()

    def _take_over(self, comment: str | None) -> None:
        """The table of another ledger, by the ``comment`` on its checkpoints, gets this one's."""
        made_for = ledger_in(comment or "")
        if made_for in (None, self.entry.ledger_id):
            return
        table = self.session.table
        held = self.store.rows(f"SELECT 1 FROM {table.name.sql} WHERE {_OF_A_CHECKPOINT} LIMIT 1")
        self.session.ledger.refuse_foreign_rows(self.entry, made_for, holds_rows=bool(held))
        self.store.alter(table.mark)

    def take_back(self) -> None:
        """Remove the rows that a rewind or a replay takes back."""
        if condition := rows_taken_back(self.entry):
            for table in (self.session.table, self.session.dead_letters):
                table.delete(condition)

    def send(self) -> None:
        """Send rows and dead letters into their tables."""
        session, staged, rule = self.session, self.staged, self.session._sink.upsert_rule
        number = self.entry.checkpoint
        with ExitStack() as counts:
            if staged.rows is not None and rule:
                session.table.upsert(staged.rows, rule, number)
            elif staged.rows is not None:
                counts.enter_context(session.table.counted(staged.rows, number))
                session.table.append(staged.rows)
            if staged.dead_letters is not None:
                counts.enter_context(session.dead_letters.counted(staged.dead_letters, number))
                session.dead_letters.append(session.storable(staged.dead_letters))

    def enter(self) -> None:
        self.store.check_in_transaction()
        entry, statements = self.entry, self.session.ledger.statements
        row = [*map(self.store.parameter, row_of(entry, self.session.ledger.target))]
        if entry.parent is None:
            inserted = self.store.execute(statements.insert_first, *row)
        else:
            parent = (entry.pipeline, entry.parent.version, entry.parent.transaction_id)
            inserted = self.store.execute(statements.insert_child, *row, *parent)
        if inserted.rowcount != 1:  # step 7 tells a rival from a ledger that takes nothing
            raise RefusedError(
                f"{self.store.ledger} did not take version {entry.version} on top of "
                f"{entry.parent}: the parent is not there, or a trigger or rule of the table keeps "
                "the entry out. Nothing was written."
            )

    def commit(self) -> None:
        self.store.check_in_transaction()
        try:
            self.store.send_commit()
        except self.store.driver_error as error:
            self.store.roll_back()
            if self.store.is_open:
                # the transaction is over one way or the other, and the ledger tells which
                raise self.session.explain(error) from error
            raise CommitUnknownError(
                f"{self.store.table}: the connection was lost after COMMIT of version "
                f"{self.entry.version} was sent; it may have landed. Transaction "
                f"{self.entry.transaction_id} is tried again."
            ) from error

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002
        self._open.close()

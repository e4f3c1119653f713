"""What every SQL sink can tell of its ledger and its tables, without changing anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Any, ClassVar

from eo_pipeline.arrow import pa
from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.identity import LEDGER
from eo_pipeline.sinks.past import Selected
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.sinks.sql.config import SqlSink
from eo_pipeline.sinks.sql.dialect import ledger_in
from eo_pipeline.sinks.sql.ledger import (
    LEDGER_KEY,
    LedgerStatements,
    SqlLedger,
    heads_of,
)
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.sinks.sql.rows import SqlTable
from eo_pipeline.sinks.sql.selecting import (
    count_rows,
    read_lineage,
    read_rows,
    read_values,
)
from eo_pipeline.sinks.sql.store import SqlStore
from eo_pipeline.sinks.unfit import Bound


class SqlLooks(SinkSession):
    """Opens the store, and tells what ledger and tables hold."""

    #: The dialect.
    store_class: ClassVar[type[SqlStore]]
    table_class: ClassVar[type[SqlTable[Any, Any]]]

    def __init__(self, sink: SqlSink, pipeline: str) -> None:
        super().__init__(pipeline)
        self._sink = sink
        self.store = self.store_class(sink, pipeline)
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
        store.make_ledger(store.ledger)
        self._check_ledger(self.table_class(store, store.ledger))
        store.complete_ledger(store.ledger)
        statements = LedgerStatements(store.ledger.sql, store.mark, store.held)
        self.ledger = SqlLedger(self.pipeline, store.table, statements, store.ask)
        self.ledger.check_table()
        for table in (self.table, self.dead_letters):
            table.exists()
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
        """What a new column gets; one that was there may be of a wider type."""
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
        made_for = {LEDGER: said} if (said := ledger_in(comment)) else {}
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
        own = [self.table, *([] if self._sink.dead_letter_table else [self.dead_letters])]
        tables = [table for table in own if table.finds_checkpoints(self.store.ask)]
        if not tables:
            return False
        newest = f"({self.ledger.statements.newest})"
        question = " OR ".join(table.has_later(newest) for table in tables)
        asked = [self.pipeline] * len(tables)
        return self.store.ask_index(question, *asked, thorough=thorough)

    def never_null(self) -> frozenset[str]:
        """The table's columns that take no null; none while it is absent."""
        query = self.table_class.never_null
        names = self.store.ask(query, *self.table.parameters) if query else []
        return frozenset(name for (name,) in names)

    def bounds(self) -> dict[str, Bound]:
        """Asked of the catalog; none while the table is absent."""
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
        """The same of the table of dead letters."""
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

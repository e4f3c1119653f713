"""The reading half of a session with a SQL database: it is opened, its tables are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Any, ClassVar

from eo_pipeline._lazy import pa
from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.capabilities import Selected, lineage_of_rows, lineage_schema
from eo_pipeline.sinks.columns import Bound
from eo_pipeline.sinks.session import LEDGER, SinkSession
from eo_pipeline.sinks.sql.config import SqlSink, TableName, quoted
from eo_pipeline.sinks.sql.connection import SqlStore
from eo_pipeline.sinks.sql.ledger import (
    LEDGER_KEY,
    LedgerStatements,
    SqlLedger,
    heads_of,
    ledger_in,
)
from eo_pipeline.sinks.sql.table import ReadColumn, SqlTable

#: Rows fetched at a time.
LINEAGE_PAGE = 50_000


class SqlReading(SinkSession):
    """Opens the store, and reads the tables."""

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
        """``shared`` and ``target`` of one of several tables: the store of all, which the first
        table's session has opened, and what their ledger calls them.
        """
        super().__init__(pipeline)
        self._sink = sink
        self.upsert_rule = sink.upsert_rule
        self.store = shared or self.store_class(sink, pipeline)
        with ExitStack() as failed:
            failed.callback(self.close)
            try:
                self._open(target, is_first=shared is None)
            except self.store.driver_error as error:
                raise self.store.while_opening(error) from error
            failed.pop_all()

    def _open(self, target: str | None, *, is_first: bool) -> None:
        store, name = self.store, self._sink.target
        if is_first or name.schema != store.table.schema:
            name = store.located(name)
        dead_letters = self._sink.dead_letters
        self.table = self.table_class(store, name)
        self.dead_letters = self.table_class(
            store, dead_letters.within(name.schema) if name.schema else dead_letters
        )
        if is_first:
            store.table = name
            store.make_ledger(store.ledger)
            self._check_ledger(self.table_class(store, store.ledger))
            store.complete_ledger(store.ledger)
        statements = LedgerStatements(store.ledger.sql, store.mark, store.held)
        self.ledger = SqlLedger(self.pipeline, name, statements, store.ask, target or str(name))
        if is_first:
            self.ledger.check_table()
            self._check_kinds()
            store.check_server()

    def check_other_table(self) -> None:
        """Check one of several tables that is not the first, as opening checks that.

        Raises:
            ConfigError: it is another pipeline's, or no ordinary table.
        """
        self.ledger.refuse_other_pipeline()
        try:
            self._check_kinds()
        except self.store.driver_error as error:
            raise self.store.while_opening(error) from error

    def _check_kinds(self) -> None:
        for table in (self.table, self.dead_letters):
            table.exists()

    @classmethod
    def heads(cls, sink: SqlSink, pipelines: Collection[str]) -> dict[str, LedgerEntry | None]:
        """The newest entries in the one ledger of ``pipelines``; see ``Sink.heads``."""
        with closing(cls.store_class(sink, ", ".join(islice(pipelines, 1)))) as store:
            try:
                store.table = store.located(store.table)
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
                f"KEY ({', '.join(LEDGER_KEY)}), after checking it for duplicate "
                "versions."
            )

    def close(self) -> None:
        self.store.close()

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
        tables = self.indexed_tables()
        if not tables:
            return False
        newest = f"({self.ledger.statements.newest})"
        question = " OR ".join(table.has_later(newest, thorough=thorough) for table in tables)
        pipelines = [self.pipeline] * len(tables)
        return self.store.ask_index(question, *pipelines, thorough=thorough)

    def indexed_tables(self) -> list[SqlTable[Any, Any]]:
        """The tables that :meth:`has_later_rows` asks."""
        # one that an earlier release filled may hold dead letters of several pipelines, unmarked
        ours = [self.table, *([] if self._sink.dead_letter_table else [self.dead_letters])]
        return [table for table in ours if table.finds_checkpoints(self.store.ask)]

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
        with self._reading(self.table.name) as (table, cursor):
            yield from read_lineage(cursor, table.name.sql, table.columns(), since)

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """As :meth:`lineage`; the columns that give back what they were given, bit for bit."""
        return self._shown(self.table.name, since)

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table of dead letters; see :meth:`values`."""
        return self._shown(self.dead_letters.name, since)

    def _shown(self, name: TableName, since: int) -> Iterator[pa.RecordBatch]:
        with self._reading(name) as (table, cursor):
            yield from read_values(cursor, name.sql, table.shown(), since)

    def rows_of(self, selected: Selected) -> Iterator[pa.RecordBatch]:
        with self._reading(self.table.name) as (table, cursor):
            yield from read_rows(cursor, table.name.sql, table.readable(), selected)

    def counts_of(self, selected: Selected) -> dict[int | None, int]:
        """Counted by the database, in one snapshot."""
        with self._reading(self.table.name) as (table, cursor):
            return count_rows(cursor, table.name.sql, table.columns(), selected)

    def queries(self, selected: Selected) -> Mapping[str, str]:
        condition = selected.condition(self.table.as_shown(CHECKPOINT_COLUMN))
        table = self.table.as_shown(self.table.name)
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


def read_lineage(
    cursor: Any, table: str, columns: Collection[str], since: int
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of :meth:`SinkSession.lineage`, by one query.

    Args:
        cursor: one of Python's DB-API that fetches rows as they are asked for.
        table: quoted.
        columns: that the table has; none if there is no table.
        since: the first checkpoint asked for; rows of none are always included.
    """
    if columns:
        query, schema = _lineage_query(table, columns, since)
        cursor.execute(query)
        pages = iter(lambda: list(cursor.fetchmany(LINEAGE_PAGE)), [])
        yield from lineage_of_rows(pages, schema)


def read_values(cursor: Any, table: str, schema: pa.Schema, since: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of ``SinkSession.values``, of ``schema``; see :func:`read_lineage`."""
    if schema.names:
        selected = ", ".join(quoted(name) for name in schema.names)
        checkpoint = quoted(CHECKPOINT_COLUMN)
        cursor.execute(f"SELECT {selected} FROM {table} WHERE {checkpoint} >= {int(since)}")
        pages = iter(lambda: list(cursor.fetchmany(LINEAGE_PAGE)), [])
        yield from lineage_of_rows(pages, schema)


def read_rows(
    cursor: Any, table: str, columns: Sequence[ReadColumn], selected: Selected
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of ``SinkSession.rows_of``; see :func:`read_lineage`."""
    if not columns:
        return
    named = ", ".join(column.selected for column in columns)
    condition = selected.condition(quoted(CHECKPOINT_COLUMN))
    # a driver may read to the end what was asked for, wanted or not
    limit = "" if selected.limit is None else f" LIMIT {int(selected.limit)}"
    cursor.execute(f"SELECT {named} FROM {table} WHERE {condition}{limit}")
    schema = pa.schema([column.field for column in columns])
    given = pa.schema([(column.field.name, column.given) for column in columns])
    pages = iter(lambda: list(cursor.fetchmany(LINEAGE_PAGE)), [])
    for batch in lineage_of_rows(pages, given):
        arrays = [batch.column(n).cast(field.type) for n, field in enumerate(schema)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def count_rows(
    cursor: Any, table: str, columns: Collection[str], selected: Selected
) -> dict[int | None, int]:
    """Return the counts of ``SinkSession.counts_of``; see :func:`read_lineage`."""
    if CHECKPOINT_COLUMN not in columns:
        return {}
    number = quoted(CHECKPOINT_COLUMN)
    condition = selected.condition(number)
    cursor.execute(f"SELECT {number}, count(*) FROM {table} WHERE {condition} GROUP BY {number}")
    return {int(version): int(rows) for version, rows in cursor.fetchall()}


def _lineage_query(table: str, columns: Collection[str], since: int) -> tuple[str, pa.Schema]:
    schema = lineage_schema(columns)
    selected = ", ".join(quoted(name) if name in columns else "NULL" for name in schema.names)
    query = f"SELECT {selected} FROM {table}"
    if CHECKPOINT_COLUMN in columns:
        checkpoint = quoted(CHECKPOINT_COLUMN)
        query += f" WHERE {checkpoint} >= {int(since)} OR {checkpoint} IS NULL"
    return query, schema

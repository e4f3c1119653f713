"""Reads of a SQL table: lineage, values, counts, and the rows that a rewind takes back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eo_pipeline._lazy import pa
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.capabilities import OWN_FORM, Selected, lineage_of_rows, lineage_schema
from eo_pipeline.sinks.session import goes_back, target_of
from eo_pipeline.sinks.sql.config import quoted

#: Rows fetched at a time.
LINEAGE_PAGE = 50_000


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


@dataclass(frozen=True)
class ReadColumn:
    """The reading of a column: the expression ``selected`` of a query's list, the Arrow type
    ``given`` of the driver's values, and the ``field`` that these are cast to.
    """

    field: pa.Field
    selected: str
    given: pa.DataType

    @classmethod
    def exact(cls, name: str, arrow: pa.DataType, given: pa.DataType | None = None) -> ReadColumn:
        """A column whose values are read as they were written."""
        return cls(pa.field(name, arrow), quoted(name), given or arrow)

    @classmethod
    def own_form(cls, name: str, selected: str) -> ReadColumn:
        """A column of which the database keeps a form of its own, read as the text ``selected``."""
        return cls(pa.field(name, pa.string(), metadata=OWN_FORM), selected, pa.string())


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


def rows_taken_back(entry: LedgerEntry) -> str | None:
    """The rows to remove before ``entry`` is published, as a SQL condition; ``None`` for none.

    Raises:
        RefusedError: the entry goes back and does not say where to.
    """
    if not goes_back(entry):
        return None
    operator = ">" if entry.operation is Operation.REWIND else "="
    return f"{quoted(CHECKPOINT_COLUMN)} {operator} {target_of(entry)}"

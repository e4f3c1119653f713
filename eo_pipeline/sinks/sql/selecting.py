"""Which rows of a SQL table: those that are looked at, and those that are taken back."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.lineage import lineage_of_rows, lineage_schema
from eo_pipeline.sinks.removal import goes_back, target_of
from eo_pipeline.sinks.sql.names import quoted

#: Rows fetched at a time.
LINEAGE_PAGE = 50_000


def read_lineage(
    cursor: Any, table: str, columns: Collection[str], since: int
) -> Iterator[pa.RecordBatch]:
    """What :meth:`SinkSession.lineage` tells, by one query.

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
    """What ``SinkSession.values`` tells, of the columns ``schema``; see :func:`read_lineage`."""
    if schema.names:
        selected = ", ".join(quoted(name) for name in schema.names)
        checkpoint = quoted(CHECKPOINT_COLUMN)
        cursor.execute(f"SELECT {selected} FROM {table} WHERE {checkpoint} >= {int(since)}")
        pages = iter(lambda: list(cursor.fetchmany(LINEAGE_PAGE)), [])
        yield from lineage_of_rows(pages, schema)


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

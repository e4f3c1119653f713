"""One query that tells where a table's rows came from."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.lineage import lineage_of_rows, lineage_schema
from eo_pipeline.sinks.sql.names import quoted

#: Rows fetched at a time.
PAGE = 50_000


def read_lineage(
    cursor: Any, table: str, columns: Collection[str], since: int
) -> Iterator[pa.RecordBatch]:
    """What :meth:`SinkSession.lineage` tells, by a cursor of Python's DB-API (PEP 249).

    Args:
        cursor: one that fetches rows as they are asked for.
        table: quoted.
        columns: that the table has; none if there is no table.
        since: the first checkpoint asked for; rows of none are always included.
    """
    if columns:
        query, schema = _query(table, columns, since)
        cursor.execute(query)
        pages = iter(lambda: list(cursor.fetchmany(PAGE)), [])
        yield from lineage_of_rows(pages, schema)


def _query(table: str, columns: Collection[str], since: int) -> tuple[str, pa.Schema]:
    schema = lineage_schema(columns)
    selected = ", ".join(quoted(name) if name in columns else "NULL" for name in schema.names)
    query = f"SELECT {selected} FROM {table}"
    if CHECKPOINT_COLUMN in columns:
        checkpoint = quoted(CHECKPOINT_COLUMN)
        query += f" WHERE {checkpoint} >= {int(since)} OR {checkpoint} IS NULL"
    return query, schema

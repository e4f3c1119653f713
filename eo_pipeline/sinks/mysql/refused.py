"""Which of the staged rows MySQL refuses, each alone: by halves, after it refused them all.

What its types make of a text, and what a CHECK lets through, only the server knows. So the rows are
put into a temporary table like the one they are for, in halves, and halves of those that are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pymysql

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.mysql.load import MySqlColumn, load
from eo_pipeline.sinks.mysql.rows import MySqlTable
from eo_pipeline.sinks.sql.names import TableName
from eo_pipeline.sinks.sql.refused import COORDINATES, record_of
from eo_pipeline.staging.rows import StagedTable

_COPY = TableName(None, "_eo_copy")

#: How rows stand to others: a key that is there already.
_DUPLICATES = "error 1062"


def refused_records(table: MySqlTable, staged: StagedTable, most: int) -> list[dict[str, Any]]:
    """The records, at most so many, of which a row is refused: with ``topic``, ``partition``,
    ``offset`` and ``error``. None of rows that do not say where they came from, or for a table with
    triggers, which may make of a row what the copy would refuse.
    """
    if not {*COORDINATES} <= {*staged.schema.names} or table.acts_by_itself():
        return []
    columns = table.bind(staged.schema)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    drop = f"DROP TEMPORARY TABLE IF EXISTS {_COPY.sql}"
    table.store.execute(drop)
    table.store.execute(f"CREATE TEMPORARY TABLE {_COPY.sql} LIKE {table.name.sql}")
    try:
        for batch in staged.batches():
            for row, error in _refused(table, columns, pa.Table.from_batches([batch])):
                record = record_of(row)
                found.setdefault((*record.values(),), {**record, "error": _in_words(error)})
                if len(found) >= most:
                    return [*found.values()]
    finally:
        if table.store.is_open:
            table.store.execute(drop)
    return [*found.values()]


def _refused(
    table: MySqlTable, columns: Sequence[MySqlColumn], rows: pa.Table
) -> Iterator[tuple[dict[str, Any], Exception]]:
    """Those that are refused, and why."""
    halves = [rows]
    while halves:
        some = halves.pop()
        try:
            load(table.store, _COPY, columns, StagedTable.in_memory(some))
        except (RefusedError, pymysql.MySQLError) as error:
            if not table.store.is_open or _DUPLICATES in str(error):
                raise
            if some.num_rows == 1:
                yield some.to_pylist()[0], error
            else:
                middle = some.num_rows // 2
                halves += [some.slice(middle), some.slice(0, middle)]
        table.store.execute(f"DELETE FROM {_COPY.sql}")


def _in_words(error: Exception) -> str:
    said = str(error.args[1]) if isinstance(error, pymysql.MySQLError) else str(error)
    return f"MySQL refuses the row: {said}"

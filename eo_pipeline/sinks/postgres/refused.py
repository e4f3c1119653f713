"""Which of the staged rows PostgreSQL refuses, each alone: by halves, after it refused them all.

What a uuid, an enum's value or an address is, and what a domain or a CHECK lets through, only the
server knows. So the rows are put into a copy of the table that is gone with the transaction, in
halves, and halves of those that are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

from eo_pipeline.sinks.postgres.rows import PostgresTable
from eo_pipeline.sinks.sql.names import TableName, columns_list, quoted
from eo_pipeline.sinks.sql.refused import COORDINATES, record_of
from eo_pipeline.staging.rows import StagedTable

#: Data exceptions, and what is checked of a row by itself: not null, and CHECK.
_OF_A_ROW = ("22", "23502", "23514")

_ROWS = TableName("pg_temp", "_eo_numbered")
_COPY = TableName("pg_temp", "_eo_copy")
_NUMBER = quoted("_eo_row")


def is_of_a_row(error: BaseException | None) -> bool:
    """True if a row by itself was refused, not how it stands to others."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_OF_A_ROW)


def refused_records(table: PostgresTable, staged: StagedTable, most: int) -> list[dict[str, Any]]:
    """The records, at most so many, of which a row is refused: with ``topic``, ``partition``,
    ``offset`` and ``error``. None of rows that do not say where they came from, or for a table with
    triggers, which may make of a row what the copy would refuse.
    """
    if not {*COORDINATES} <= {*staged.schema.names} or table.acts_by_itself():
        return []
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    with table.store.transaction():
        columns = table.bind(staged.schema)
        with table.staged_rows(columns, staged) as stage:
            numbered = f"SELECT row_number() OVER () AS {_NUMBER}, * FROM {stage.sql}"
            for statement in (
                f"CREATE TEMP TABLE {_ROWS.sql} ON COMMIT DROP AS {numbered}",
                f"CREATE INDEX ON {_ROWS.sql} ({_NUMBER})",
                f"CREATE TEMP TABLE {_COPY.sql} (LIKE {table.name.sql} INCLUDING CONSTRAINTS "
                "INCLUDING GENERATED INCLUDING DEFAULTS) ON COMMIT DROP",
            ):
                table.store.execute(statement)
            insert = (
                f"INSERT INTO {_COPY.sql} ({columns_list(each.name for each in columns)}) "
                f"SELECT {', '.join(map(table.sent, columns))} FROM {_ROWS.sql}"
            )
            for number, error in _refused(table, insert, staged.rows):
                record = _coordinates(table, number)
                found.setdefault((*record.values(),), {**record, "error": _in_words(error)})
                if len(found) >= most:
                    break
    return [*found.values()]


def _refused(table: PostgresTable, insert: str, rows: int) -> Iterator[tuple[int, psycopg.Error]]:
    """The numbers of the rows that are refused, and why."""
    halves = [(1, rows)] if rows else []
    while halves:
        first, last = halves.pop()
        table.store.execute("SAVEPOINT half")
        try:
            table.store.execute(f"{insert} WHERE {_NUMBER} BETWEEN {first} AND {last}")
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            table.store.execute("ROLLBACK TO half")
            if first == last:
                yield first, error
            else:
                middle = (first + last) // 2
                halves += [(middle + 1, last), (first, middle)]
        else:
            table.store.execute("ROLLBACK TO half")


def _coordinates(table: PostgresTable, number: int) -> Mapping[str, Any]:
    names = columns_list(COORDINATES)
    row = table.store.rows(f"SELECT {names} FROM {_ROWS.sql} WHERE {_NUMBER} = {number}")[0]
    return record_of(dict(zip(COORDINATES, row, strict=True)))


def _in_words(error: psycopg.Error) -> str:
    """Without the row, which it may show whole."""
    return f"PostgreSQL refuses the row: {error.diag.message_primary} (SQLSTATE {error.sqlstate})"

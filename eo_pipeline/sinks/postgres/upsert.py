"""Rows that replace their predecessors by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eo_pipeline.sinks.postgres.load import conversions, names, stage_rows
from eo_pipeline.sinks.postgres.tables import Column, Connection, Table, columns_list
from eo_pipeline.sinks.sql.names import quoted
from eo_pipeline.sinks.sql.upsert import SqlUpsertRule
from eo_pipeline.staging.rows import StagedTable


@dataclass(frozen=True)
class Upsert(SqlUpsertRule):
    """An upsert by ``INSERT ... ON CONFLICT`` from a temporary table."""

    def apply(self, table: Table, staged: StagedTable) -> None:
        """Insert the rows, or update those that are there, within the open transaction.

        Raises:
            ConfigError: the table has no unique constraint on the key, or a column is absent.
            RefusedError: a row has no key, or nothing to be sequenced by.
        """
        self.check_columns(staged.schema.names)
        columns = table.prepare(staged.schema, self.key)
        stage = stage_rows(table, columns, staged)
        self.refuse_nulls(stage.sql, lambda query: _one_row(table.connection, query))
        table.connection.execute(
            f"INSERT INTO {table.name.sql} AS old ({names(columns)}) "
            f"SELECT DISTINCT ON ({columns_list(self.key)}) {conversions(columns)} "
            f"FROM {stage.sql} ORDER BY {columns_list(self.key)}, "
            f"{self.newest_first(staged.schema.names)} "
            f"ON CONFLICT ({columns_list(self.key)}) {self._conflict(columns)}".encode()
        )

    def _conflict(self, columns: Sequence[Column]) -> str:
        rest = [quoted(column.name) for column in columns if column.name not in self.key]
        if not rest:
            return "DO NOTHING"
        updates = ", ".join(f"{name} = excluded.{name}" for name in rest)
        return f"DO UPDATE SET {updates}{self._unless_older()}"

    def _unless_older(self) -> str:
        if not self.sequence_by:
            return ""
        old = [f"old.{quoted(name)}" for name in self.sequence_by]
        new = [f"excluded.{quoted(name)}" for name in self.sequence_by]
        # a row that came from elsewhere may have nothing to be sequenced by: it gives way
        unknown = " OR ".join(f"{name} IS NULL" for name in old)
        return f" WHERE ({', '.join(old)}) <= ({', '.join(new)}) OR {unknown}"


def _one_row(connection: Connection, query: str) -> tuple[Any, ...]:
    return connection.execute(query.encode()).fetchone() or ()

"""Rows that replace their predecessors by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eo_pipeline.sinks.mysql.load import Loader
from eo_pipeline.sinks.mysql.names import columns_list
from eo_pipeline.sinks.mysql.tables import Column, Table
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.sinks.sql.upsert import SqlUpsertRule
from eo_pipeline.staging.rows import StagedTable

#: The temporary table, of which every session has its own; and the rank of a row in it.
_STAGE = TableName(None, "_eo_stage")
_RANK = quoted("_eo_rank")


@dataclass(frozen=True)
class Upsert:
    """An upsert by ``rule`` into ``table``, within the open transaction."""

    rule: SqlUpsertRule
    table: Table

    def apply(self, loader: Loader, staged: StagedTable) -> None:
        """Insert the rows, or update those that are there.

        Raises:
            RefusedError: a row has no key, or nothing to be sequenced by; or rows do not fit.
            SchemaChangeError: somebody changed the table since it was prepared.
        """
        columns = self.table.bind(staged.schema)
        self._make_stage(columns)
        loader.load(_STAGE, columns, staged)
        self.rule.refuse_nulls(_STAGE.sql, self.table.select_one)
        self.table.run(self._merge(columns))
        self._drop_stage()

    def _make_stage(self, columns: Sequence[Column]) -> None:
        """Neither this nor dropping it commits what is open, as it does for other tables."""
        self._drop_stage()
        types = ", ".join(f"{quoted(c.name)} {c.type.declared}" for c in columns)
        self.table.run(f"CREATE TEMPORARY TABLE {_STAGE.sql} ({types}) ENGINE = InnoDB")

    def _drop_stage(self) -> None:
        self.table.run(f"DROP TEMPORARY TABLE IF EXISTS {_STAGE.sql}")

    def _merge(self, columns: Sequence[Column]) -> str:
        names = [column.name for column in columns]
        rest = [quoted(name) for name in names if name not in self.rule.key]
        # a table of keys alone: a row that is there already is left as it is
        first = quoted(self.rule.key[0])
        updates = ", ".join(f"{n} = VALUES({n})" for n in rest) or f"{first} = VALUES({first})"
        chosen = ", ".join(f"fresh.{quoted(name)}" for name in names)
        return (
            f"INSERT INTO {self.table.name.sql} ({columns_list(names)}) "
            f"SELECT {chosen} FROM ({self._ranked(names)}) AS fresh{self._unless_older()} "
            f"ON DUPLICATE KEY UPDATE {updates}"
        )

    def _ranked(self, names: Sequence[str]) -> str:
        """The staged rows, the newest of each key ranked first. What is one key, says the table."""
        order = self.rule.newest_first(names)
        window = f"PARTITION BY {columns_list(self.rule.key)} ORDER BY {order}"
        rank = f"ROW_NUMBER() OVER ({window}) AS {_RANK}"
        return f"SELECT {_STAGE.sql}.*, {rank} FROM {_STAGE.sql}"

    def _unless_older(self) -> str:
        """Leave out rows whose predecessor is newer. Not in the update's own expressions: there
        MySQL sees columns that it has just overwritten.
        """
        newest = f"fresh.{_RANK} = 1"
        if not self.rule.sequence_by:
            return f" WHERE {newest}"
        same = " AND ".join(f"old.{quoted(n)} = fresh.{quoted(n)}" for n in self.rule.key)
        old = [f"old.{quoted(name)}" for name in self.rule.sequence_by]
        new = [f"fresh.{quoted(name)}" for name in self.rule.sequence_by]
        # no row with this key; or one from elsewhere with nothing to be sequenced by
        unknown = " OR ".join(f"{name} IS NULL" for name in old)
        return (
            f" LEFT JOIN {self.table.name.sql} AS old ON {same} WHERE {newest} "
            f"AND (({', '.join(old)}) <= ({', '.join(new)}) OR {unknown})"
        )

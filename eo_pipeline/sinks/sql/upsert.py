"""Rows that replace their predecessors by key, by way of a temporary table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from eo_pipeline.errors import ConfigError
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.sinks.sql.rows import C, Column, SqlTable, W
from eo_pipeline.sinks.upsert import UpsertRule
from eo_pipeline.staging.rows import StagedTable


class UpsertTable(SqlTable[W, C]):
    """A table whose rows can be replaced by key: an index says which rows are the same, and one
    statement inserts the newest staged row of each key, or updates the one that is there.
    """

    #: What a unique index must not be to serve.
    key_excludes: ClassVar[str]

    @abstractmethod
    def unique_keys(self) -> list[set[str]]:
        """The columns, by their folded names, of each unique index that can serve an upsert."""

    @abstractmethod
    def staged_rows(
        self, columns: Sequence[Column[W, C]], staged: StagedTable
    ) -> AbstractContextManager[TableName]:
        """A temporary table that holds the staged rows."""

    @abstractmethod
    def merge(self, stage: TableName, columns: Sequence[Column[W, C]], rule: UpsertRule) -> str:
        """The statement that does it."""

    def as_shown(self, name: str | TableName) -> str:
        """As a statement in a message has it, to be run by a person."""
        return name.sql if isinstance(name, TableName) else quoted(name)

    def check_key(self, key: Sequence[str], wires: Mapping[str, W]) -> None:  # noqa: ARG002
        """Raise ConfigError unless the table says itself that ``key`` identifies a row."""
        if set(map(self.names.fold, key)) not in self.unique_keys():
            raise ConfigError(
                f"sink.key: {self.name} has no unique constraint on exactly ({', '.join(key)}), "
                f"which an upsert needs ({self.key_excludes}). Nothing was written. ALTER TABLE "
                f"{self.as_shown(self.name)} ADD UNIQUE ({', '.join(map(self.as_shown, key))})"
            )

    def upsert(self, staged: StagedTable, rule: UpsertRule) -> None:
        columns = self.bind(staged.schema)
        with self.staged_rows(columns, staged) as stage:
            counts = ", ".join(f"count(*) - count({quoted(name)})" for name in rule.never_null)
            rule.check_nulls(self.store.rows(f"SELECT {counts} FROM {stage.sql}")[0])
            self.store.execute(self.merge(stage, columns, rule))


def newest_first(rule: UpsertRule, columns: Sequence[str]) -> str:
    """What to order the staged rows of one key by."""
    return ", ".join(f"{quoted(name)} DESC" for name in rule.age_columns(columns))


def gives_way(rule: UpsertRule, old: str, new: str) -> str:
    """True for a row of the table ``old`` that is not newer than the one of ``new``; or that came
    from elsewhere and has nothing to be sequenced by.
    """
    mine = [f"{old}.{quoted(name)}" for name in rule.sequence_by]
    theirs = [f"{new}.{quoted(name)}" for name in rule.sequence_by]
    unknown = " OR ".join(f"{name} IS NULL" for name in mine)
    return f"({', '.join(mine)}) <= ({', '.join(theirs)}) OR {unknown}"

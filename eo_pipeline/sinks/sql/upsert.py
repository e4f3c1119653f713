"""Rows that replace their predecessors by key, by way of a temporary table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.sql.dialect import C, Column, W
from eo_pipeline.sinks.sql.names import TableName, columns_list, quoted
from eo_pipeline.sinks.sql.rows import SqlTable
from eo_pipeline.sinks.upsert import ORIGIN, UpsertRule
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

    def check_key(self, key: Sequence[str], wires: Mapping[str, W]) -> None:  # noqa: ARG002
        """Raise ConfigError unless the table says itself that ``key`` identifies a row."""
        if set(map(self.names.fold, key)) not in self.unique_keys():
            raise ConfigError(
                f"sink.key: {self.name} has no unique constraint on exactly ({', '.join(key)}), "
                f"which an upsert needs ({self.key_excludes}). Nothing was written. ALTER TABLE "
                f"{self.as_shown(self.name)} ADD UNIQUE ({', '.join(map(self.as_shown, key))})"
            )

    def sent(self, column: Column[W, C]) -> str:
        """A column of the staged rows, turned into the table's type."""
        return quoted(column.name)

    def upsert(self, staged: StagedTable, rule: UpsertRule, checkpoint: int) -> None:
        columns = self.bind(staged.schema)
        with self.staged_rows(columns, staged) as stage:
            counts = ", ".join(f"count(*) - count({quoted(name)})" for name in rule.never_null)
            rule.check_nulls(self.store.rows(f"SELECT {counts} FROM {stage.sql}")[0])
            fresh = self._fresh(stage, columns)
            if not rule.sequence_by:
                self._check_order(fresh, rule)
            self.store.execute(self.merge(stage, columns, rule))
            if acts := self.acts_by_itself():
                self.settle()
                names = [column.name for column in columns]
                self._check_all_there(fresh, _arrived(rule, names, checkpoint), rule, acts)

    def _fresh(self, stage: TableName, columns: Sequence[Column[W, C]]) -> str:
        sent = ", ".join(f"{self.sent(column)} AS {quoted(column.name)}" for column in columns)
        return f"(SELECT {sent} FROM {stage.sql}) AS fresh"

    def _check_order(self, fresh: str, rule: UpsertRule) -> None:
        """Raise RefusedError if a key came from two Kafka partitions, here or here and before."""
        keys = columns_list(rule.key)
        mixed = " OR ".join(f"min({quoted(n)}) <> max({quoted(n)})" for n in ORIGIN)
        ends = ", ".join(f"{end}({quoted(n)})" for end in ("min", "max") for n in ORIGIN)
        staged = f"SELECT {keys}, {ends} FROM {fresh} GROUP BY {keys} HAVING {mixed} LIMIT 1"
        moved = " OR ".join(f"old.{quoted(n)} <> fresh.{quoted(n)}" for n in ORIGIN)
        chosen = [f"fresh.{quoted(n)}" for n in rule.key]
        chosen += [f"{side}.{quoted(n)}" for side in ("old", "fresh") for n in ORIGIN]
        before = (
            f"SELECT {', '.join(chosen)} FROM {fresh} JOIN {self.name.sql} AS old "
            f"ON {same_key(rule, 'old', 'fresh')} WHERE {moved} LIMIT 1"
        )
        for query in (staged, before):
            for found in self.store.rows(query):
                n = len(rule.key)
                raise rule.refuse_order(found[:n], found[n : n + 2], found[n + 2 :])

    def _check_all_there(self, fresh: str, arrived: str, rule: UpsertRule, acts: str) -> None:
        missing, staged = self.store.rows(
            f"SELECT count(CASE WHEN {arrived} THEN NULL ELSE 1 END), count(*) FROM {fresh} "
            f"LEFT JOIN {self.name.sql} AS old ON {same_key(rule, 'old', 'fresh')}"
        )[0]
        if missing:
            raise RefusedError(
                f"{missing} of {staged} rows were sent to {self.name} and are not there, nor is a "
                f"newer row with their key. Nothing was written. Look at {acts}: every row that "
                "is staged must become visible. Filter rows in the transform instead."
            )


def same_key(rule: UpsertRule, old: str, new: str) -> str:
    """True for two rows that have one key."""
    return " AND ".join(f"{old}.{quoted(name)} = {new}.{quoted(name)}" for name in rule.key)


def _arrived(rule: UpsertRule, columns: Sequence[str], checkpoint: int) -> str:
    """True for a row ``fresh`` if the one of its key in the table, ``old``, is of this checkpoint,
    or newer.
    """
    mine, theirs = (
        ", ".join(f"{side}.{quoted(name)}" for name in rule.age_columns(columns))
        for side in ("old", "fresh")
    )
    if CHECKPOINT_COLUMN not in columns:
        return f"({mine}) >= ({theirs})"
    of_this = f"old.{quoted(CHECKPOINT_COLUMN)} = {checkpoint}"
    return f"{of_this} OR ({mine}) > ({theirs})" if rule.sequence_by else of_this


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

"""A table that staged rows go into: made when absent, widened when columns are new; and out of
which rows are taken back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import ClassVar, NoReturn

from eo_pipeline._lazy import pa
from eo_pipeline.errors import ConfigError, RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.arrow import whole_digits
from eo_pipeline.sinks.sql.config import TableName, columns_list, quoted
from eo_pipeline.sinks.sql.connection import SqlStore
from eo_pipeline.sinks.sql.dialect import C, TableDialect, W
from eo_pipeline.sinks.sql.dialect import Column as Column
from eo_pipeline.sinks.upsert import ORIGIN, UpsertRule
from eo_pipeline.staging.rows import StagedTable


class SqlTable(TableDialect[W, C]):
    """A table, inside the open transaction or before it."""

    def __init__(self, store: SqlStore, name: TableName) -> None:
        super().__init__(store, name)
        #: what :meth:`acts_by_itself` said of the rows that are counted just now
        self._acts = ""

    def fit(self, staged: StagedTable, key: Sequence[str] = ()) -> None:
        """Make the table fit for the rows: create it, add what it lacks, and widen types that are
        too narrow.

        Args:
            staged: the rows; numbers with many digits are looked at.
            key: columns that identify a row; for a table that is upserted into.

        Raises:
            SchemaChangeError: a column's type does not fit the table's.
            RefusedError: a name cannot be a column's, or the database computes that column.
            ConfigError: the table cannot be upserted by ``key``.
        """
        self.names.check_columns(staged.schema.names)
        wires = {field.name: self.wire_type(field) for field in staged.schema}
        if not self.exists():
            self.create(wires, key)
        if key:
            self.check_key(key, wires)
        self._widen(wires, staged, key)

    def append(self, staged: StagedTable) -> None:
        """Add the rows; see :meth:`insert`.

        Raises:
            RefusedError: the database took another number of rows.
        """
        inserted = self.insert(self.bind(staged.schema), staged)
        # a trigger may send rows to where they belong, and they are not counted then
        if inserted != staged.rows and not self._acts:
            self._refuse_count(staged.rows, inserted)

    @contextmanager
    def counted(self, staged: StagedTable, checkpoint: int) -> Iterator[None]:
        """Append ``staged`` within: at the end as many rows more are of ``checkpoint``, or of the
        table if rows do not say. Only what the database says of a table that does nothing by
        itself is believed without a look.

        Raises:
            RefusedError: it is another number.
        """
        self._acts = self.acts_by_itself()
        try:
            if not self._acts:
                yield
                return
            says = CHECKPOINT_COLUMN in staged.schema.names
            mine = f"{quoted(CHECKPOINT_COLUMN)} = {checkpoint}" if says else ""
            before = self.count(mine)
            yield
            self.settle()
            if (added := self.count(mine) - before) != staged.rows:
                self._refuse_count(staged.rows, added)
        finally:
            self._acts = ""

    def count(self, condition: str = "") -> int:
        """Return the number of rows for which ``condition`` holds."""
        where = f" WHERE {condition}" if condition else ""
        return int(self.store.rows(f"SELECT count(*) FROM {self.name.sql}{where}")[0][0])

    def _refuse_count(self, staged: int, present: int) -> NoReturn:
        why = f"Look at {self._acts}" if self._acts else "Look at what the table does by itself"
        raise RefusedError(
            f"Row count mismatch in {self.name}: sent {staged} rows, found {present} as they were "
            f"sent. Nothing was written. {why}: every row that is staged must become visible "
            "with its checkpoint, or the ledger would not tell the truth. Filter rows in the "
            "transform instead."
        )

    def bind(self, schema: pa.Schema) -> list[Column[W, C]]:
        """The table's columns that take those of ``schema``.

        Raises:
            SchemaChangeError: somebody changed the table since it was made fit.
        """
        types = self.columns()
        columns = []
        for field in schema:
            wire, type_ = self.wire_type(field), types.get(self.names.fold(field.name))
            if type_ is None or not type_.takes(wire):
                self._refuse_type(field.name, type_, wire)
            columns.append(Column(field.name, wire, type_))
        return columns

    def let_delete(self) -> None:
        """Make it possible that rows are deleted or replaced; see :meth:`check_deletable`."""
        for statement in self.check_deletable():
            self.store.alter(partial(self.store.execute, statement))

    def delete(self, condition: str) -> int:
        """Remove the rows for which ``condition`` holds; gives how many the database says it were.

        Raises:
            RefusedError: some of them are still there.
        """
        if not self.exists():
            return 0
        deleted = self.store.execute(f"DELETE FROM {self.name.sql} WHERE {condition}").rowcount
        if acts := self.acts_by_itself():
            self.settle()
            if left := self.count(condition):
                raise RefusedError(
                    f"{self.name}: {left} rows that were deleted are still there. Nothing was "
                    f"changed. Look at {acts}: a rewind or replay must be able to take rows back."
                )
        return int(deleted)

    def _widen(self, wires: Mapping[str, W], staged: StagedTable, key: Sequence[str]) -> None:
        present = self._types(wires)
        self._refuse_computed(
            [name for name, type_ in present.items() if type_ and type_.is_computed]
        )
        narrow = {
            name: wire
            for name, wire in wires.items()
            if self._is_narrow(name, present[name], wire, staged)
        }
        if types := self._wider_types(narrow, present):
            with self._explaining_how_to_widen(types):
                self.store.alter(partial(self._retype, narrow))
        if absent := {name: wire for name, wire in wires.items() if present[name] is None}:
            self.store.alter(partial(self.add, absent))
            if CHECKPOINT_COLUMN in absent:
                self.store.alter(partial(self.index_checkpoints, key))

    def _retype(self, narrow: Mapping[str, W]) -> None:
        with self.alone():
            # somebody else may have widened it meanwhile, and further
            self.retype(self._wider_types(narrow, self._types(narrow)))

    def _types(self, wires: Mapping[str, W]) -> dict[str, C | None]:
        types = self.columns()
        return {name: types.get(self.names.fold(name)) for name in wires}

    @contextmanager
    def _explaining_how_to_widen(self, types: Mapping[str, str]) -> Iterator[None]:
        """Add the statements to the error of a role that may not alter the table."""
        try:
            yield
        except self.store.driver_error as error:
            diagnosis = self.store.diagnose(error)
            if diagnosis.is_transient:
                raise
            statements = "; ".join(self.retyping(name, type_) for name, type_ in types.items())
            raise SchemaChangeError(
                f"{_listed([*types])} of {self.name} must be widened for what comes now, and "
                f"{self.store.product} does not let this pipeline do it: {diagnosis.says}. Nothing "
                f"was written. Somebody who may can do it: {statements}"
            ) from error

    def _is_narrow(self, name: str, column: C | None, wire: W, staged: StagedTable) -> bool:
        """A column may be shorter than what is sent to it, as long as no value is too long."""
        if column is None:
            return False
        room = self.room(column, wire)
        too_short = room is not None and whole_digits(staged, name) > room
        return too_short or not column.takes(wire)

    def _wider_types(
        self, wires: Mapping[str, W], present: Mapping[str, C | None]
    ) -> dict[str, str]:
        """The types that the columns of ``wires``, which are too narrow, need.

        Raises:
            SchemaChangeError: a column can be given none.
        """
        types = {}
        for name, wire in wires.items():
            column = present[name]
            wider = column and self.wider(column, wire)
            if not wider:
                self._refuse_type(name, column, wire)
            types[name] = wider
        return types

    def _refuse_type(self, name: str, column: C | None, wire: W) -> NoReturn:
        raise SchemaChangeError(
            f"column {name!r} of {self.name} is {column or 'absent'}, the result has {wire}, which "
            "would not fit without loss. Nothing was written. Cast it in the transform, write it "
            f"under another name, or change the table: {self.retyping(name, wire.declared)}"
        )

    def _refuse_computed(self, computed: Sequence[str]) -> None:
        if computed:
            raise RefusedError(
                f"{self.name} computes {_listed(sorted(computed))} itself (generated or identity). "
                "Nothing was written. Drop the column in the transform."
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


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
        """Return the statement that upserts the staged rows of ``stage``."""

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
            for row in self.store.rows(query):
                n = len(rule.key)
                raise rule.refuse_order(row[:n], row[n : n + 2], row[n + 2 :])

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
    """Return the ORDER BY list that puts the newest staged row of a key first."""
    return ", ".join(f"{quoted(name)} DESC" for name in rule.age_columns(columns))


def gives_way(rule: UpsertRule, old: str, new: str) -> str:
    """True for a row of the table ``old`` that is not newer than the one of ``new``; or that came
    from elsewhere and has nothing to be sequenced by.
    """
    mine = [f"{old}.{quoted(name)}" for name in rule.sequence_by]
    theirs = [f"{new}.{quoted(name)}" for name in rule.sequence_by]
    unknown = " OR ".join(f"{name} IS NULL" for name in mine)
    return f"({', '.join(mine)}) <= ({', '.join(theirs)}) OR {unknown}"

"""A table that staged rows go into: made when absent, widened when columns are new; and out of
which rows are taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from eo_pipeline.arrow import pa
from eo_pipeline.errors import RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.rows import whole_digits
from eo_pipeline.sinks.sql.dialect import C, TableDialect, W
from eo_pipeline.sinks.sql.dialect import Column as Column
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.sinks.sql.store import SqlStore
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
        """How many rows there are for which ``condition`` holds."""
        where = f" WHERE {condition}" if condition else ""
        return int(self.store.rows(f"SELECT count(*) FROM {self.name.sql}{where}")[0][0])

    def _refuse_count(self, staged: int, found: int) -> NoReturn:
        why = f"Look at {self._acts}" if self._acts else "Look at what the table does by itself"
        raise RefusedError(
            f"{staged} rows were sent to {self.name}, and {found} of them are there as they were "
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
            wire, found = self.wire_type(field), types.get(self.names.fold(field.name))
            if found is None or not found.takes(wire):
                self._refuse_type(field.name, found, wire)
            columns.append(Column(field.name, wire, found))
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
        found = self._found(wires)
        self._refuse_computed(
            [name for name, type_ in found.items() if type_ and type_.is_computed]
        )
        narrow = {
            name: wire
            for name, wire in wires.items()
            if self._is_narrow(name, found[name], wire, staged)
        }
        if types := self._wider_types(narrow, found):
            with self._told_how_to_widen(types):
                self.store.alter(partial(self._retype, narrow))
        if absent := {name: wire for name, wire in wires.items() if found[name] is None}:
            self.store.alter(partial(self.add, absent))
            if CHECKPOINT_COLUMN in absent:
                self.store.alter(partial(self.index_checkpoints, key))

    def _retype(self, narrow: Mapping[str, W]) -> None:
        with self.alone():
            # somebody else may have widened it meanwhile, and further
            self.retype(self._wider_types(narrow, self._found(narrow)))

    def _found(self, wires: Mapping[str, W]) -> dict[str, C | None]:
        types = self.columns()
        return {name: types.get(self.names.fold(name)) for name in wires}

    @contextmanager
    def _told_how_to_widen(self, types: Mapping[str, str]) -> Iterator[None]:
        """For a role that may write into the table and not change it, or a view in the way."""
        try:
            yield
        except self.store.driver_error as error:
            found = self.store.diagnose(error)
            if found.is_transient:
                raise
            statements = "; ".join(self.retyping(name, made) for name, made in types.items())
            raise SchemaChangeError(
                f"{_listed([*types])} of {self.name} must be widened for what comes now, and "
                f"{self.store.product} does not let this pipeline do it: {found.says}. Nothing was "
                f"written. Somebody who may can do it: {statements}"
            ) from error

    def _is_narrow(self, name: str, column: C | None, wire: W, staged: StagedTable) -> bool:
        """A column may be shorter than what is sent to it, as long as no value is too long."""
        if column is None:
            return False
        room = self.room(column, wire)
        too_short = room is not None and whole_digits(staged, name) > room
        return too_short or not column.takes(wire)

    def _wider_types(self, wires: Mapping[str, W], found: Mapping[str, C | None]) -> dict[str, str]:
        """The types that the columns of ``wires``, which are too narrow, need.

        Raises:
            SchemaChangeError: a column can be given none.
        """
        types = {}
        for name, wire in wires.items():
            column = found[name]
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

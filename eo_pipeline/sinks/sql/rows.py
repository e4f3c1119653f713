"""A table that staged rows go into: made when absent, widened when columns are new; and out of
which rows are taken back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

from eo_pipeline.arrow import pa
from eo_pipeline.errors import RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.rows import whole_digits
from eo_pipeline.sinks.sql.names import NameRules, TableName, quoted
from eo_pipeline.sinks.sql.selecting import ReadColumn
from eo_pipeline.sinks.sql.store import SqlStore
from eo_pipeline.sinks.upsert import UpsertRule
from eo_pipeline.staging.rows import StagedTable


class AnyWireType(Protocol):
    """How a staged column travels. ``str`` of it goes into messages."""

    @property
    def declared(self) -> str:
        """The type that a new column gets."""


class AnyColumnType(Protocol):
    """The type of a table's column. ``str`` of it goes into messages."""

    @property
    def is_computed(self) -> bool:
        """True if the database fills the column itself and takes no value."""

    def takes(self, wire: Any) -> bool:
        """True if every value of ``wire`` has its exact counterpart here, or is refused."""


W = TypeVar("W", bound=AnyWireType)
C = TypeVar("C", bound=AnyColumnType)


_COMMENT = "eo-pipeline: the checkpoint that published the row; ledger "


def ledger_in(comment: str) -> str | None:
    """The ledger that a column of checkpoints was made for, by its comment."""
    said, mark, ledger_id = comment.partition(_COMMENT)
    return ledger_id if mark and not said else None


@dataclass(frozen=True)
class Column(Generic[W, C]):
    """A staged column and the table's column that takes it."""

    name: str
    wire: W
    type: C


class SqlTable(ABC, Generic[W, C]):
    """A table of the target database.

    New columns can be null and take no default, so that adding them rewrites nothing. Whatever the
    table has besides keeps its defaults and constraints.
    """

    #: What columns may be called.
    names: ClassVar[NameRules]

    #: The ledger that a column of checkpoints made here is marked with, in its comment.
    made_for: str = ""
    #: A query for the columns that take no null, by :attr:`parameters`; None: they are not told.
    never_null: ClassVar[str | None] = None

    def __init__(self, store: SqlStore, name: TableName) -> None:
        self.store = store
        self.name = name
        #: what :meth:`acts_by_itself` said of the rows that are counted just now
        self._acts = ""

    # What a dialect fills in.

    @property
    def parameters(self) -> tuple[str | None, ...]:
        """What the catalog knows the table by."""
        return (self.name.sql,)

    @abstractmethod
    def exists(self) -> bool:
        """True if it is there and can keep a promise.

        Raises:
            ConfigError: it is something whose rows are not as durable as the ledger.
        """

    @abstractmethod
    def columns(self) -> dict[str, C]:
        """The types of the columns by their folded names; none if the table is absent."""

    def checkpoint_comment(self, ask: Callable[..., list[Any]]) -> str | None:  # noqa: ARG002
        """The comment on the column of checkpoints, perhaps empty; ``None``: no such column.

        ``ask`` answers a statement with its rows, in a transaction or outside one. Left to itself a
        dialect has no comments.
        """
        return "" if CHECKPOINT_COLUMN in self.columns() else None

    @abstractmethod
    def wire_type(self, field: pa.Field) -> W:
        """How ``field`` travels.

        Raises:
            SchemaChangeError: the database has no type for it.
        """

    @abstractmethod
    def create(self, wires: Mapping[str, W], key: Sequence[str]) -> None:
        """Make the table, with :attr:`comment` on the column of checkpoints."""

    @abstractmethod
    def add(self, wires: Mapping[str, W]) -> None:
        """Add columns, likewise."""

    @property
    def comment(self) -> str:
        """For the column of checkpoints; :func:`ledger_in` reads it."""
        return f"{_COMMENT}{self.made_for}" if self.made_for else _COMMENT.partition(";")[0]

    @abstractmethod
    def insert(self, columns: Sequence[Column[W, C]], staged: StagedTable) -> int:
        """Send the rows in the open transaction, each exactly or none. Gives how many the database
        says that it took.

        Raises:
            RefusedError: the rows do not fit, or could not be read from staging.
        """

    def unique_keys(self) -> list[set[str]] | None:
        """The columns, by their folded names, of each unique index on whole columns and all rows
        that is checked at once; ``None`` where the database is not asked.
        """
        return None

    def as_shown(self, name: str | TableName) -> str:
        """As a statement in a message has it, to be run by a person."""
        return name.sql if isinstance(name, TableName) else quoted(name)

    def acts_by_itself(self) -> str:
        """What the table has of its own that may drop, move or change rows on their way, or keep
        them when they are deleted (a trigger, say), for a message; empty if it has nothing.
        """
        return ""

    def shown(self) -> pa.Schema:
        """The columns whose values are read back as they were written, bit for bit, as Arrow;
        the checkpoint's number at least, if the table has it.

        Raises:
            RefusedError: the table may change what it is given.
        """
        known = CHECKPOINT_COLUMN in self.columns()
        return pa.schema([(CHECKPOINT_COLUMN, pa.int64())] if known else [])

    def readable(self) -> list[ReadColumn]:
        """How each column is read that a reader can have, the checkpoint's number among them; none
        if there is no table. Left to itself a dialect reads what it :meth:`shown`.
        """
        return [ReadColumn.exact(field.name, field.type) for field in self.shown()]

    def settle(self) -> None:
        """What the database has put off to the commit happens now, while it can be counted."""

    def retyping(self, name: str, declared: str) -> str:
        """A statement by which a person gives the column ``name`` another type."""
        return f"ALTER TABLE {self.name.sql} ALTER COLUMN {quoted(name)} TYPE {declared}"

    def wider(self, column: C, wire: W) -> str | None:  # noqa: ARG002
        """The type, as a statement has it, that ``column`` can be given so that it takes ``wire``
        and every value in it stays exactly what it is. ``None``: there is none, or it is left to a
        person, as a dialect does that says nothing here.
        """
        return None

    def room(self, column: C, wire: W) -> int | None:  # noqa: ARG002
        """The digits in front of the point of a ``column`` that takes ``wire``, if that may have
        more.
        """
        return None

    def retype(self, types: Mapping[str, str]) -> None:
        """Give the columns, by their names, other types that :meth:`wider` has named."""
        raise NotImplementedError(f"{type(self).__name__} does not widen")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes the table's columns within."""
        yield

    def check_key(self, key: Sequence[str], wires: Mapping[str, W]) -> None:
        """Refuse a table that cannot be upserted by ``key``, of rows with the columns ``wires``."""
        raise NotImplementedError(f"{type(self).__name__} does not upsert")

    def upsert(self, staged: StagedTable, rule: UpsertRule, checkpoint: int) -> None:
        """Insert the rows, or update those that are there, in the open transaction.

        Raises:
            RefusedError: a row has no key, or nothing to be sequenced by; or rows do not fit, or
                the table made something else of them.
            SchemaChangeError: somebody changed the table since it was made fit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not upsert")

    # What all of them do alike.

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
        self._widen(wires, staged)

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

    def _widen(self, wires: Mapping[str, W], staged: StagedTable) -> None:
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
            with self._told_how_to_widen(types), self.alone():
                # somebody else may have widened it meanwhile, and further
                self.retype(self._wider_types(narrow, self._found(narrow)))
        if absent := {name: wire for name, wire in wires.items() if found[name] is None}:
            self.add(absent)

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

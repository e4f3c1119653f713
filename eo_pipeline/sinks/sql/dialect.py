"""The interface of a SQL dialect: its types, and the statements about one table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from eo_pipeline._lazy import pa
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.sql.config import NameRules, TableName, quoted
from eo_pipeline.sinks.sql.connection import SqlStore
from eo_pipeline.sinks.sql.reading import ReadColumn
from eo_pipeline.sinks.upsert import UpsertRule
from eo_pipeline.staging.rows import StagedTable


class AnyWireType(Protocol):
    """The type in which a staged column is sent. ``str`` of it goes into messages."""

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
    before, mark, ledger_id = comment.partition(_COMMENT)
    return ledger_id if mark and not before else None


@dataclass(frozen=True)
class Column(Generic[W, C]):
    """A staged column and the table's column that takes it."""

    name: str
    wire: W
    type: C


class TableDialect(ABC, Generic[W, C]):
    """A table of the target database, as far as databases differ.

    New columns can be null and take no default, so that adding them rewrites nothing. Whatever the
    table has besides keeps its defaults and constraints.
    """

    #: What columns may be called.
    names: ClassVar[NameRules]

    #: The ledger that a column of checkpoints made here is marked with, in its comment.
    made_for: str = ""
    #: A query for the columns that take no null, by :attr:`parameters`; None: they are not told.
    never_null: ClassVar[str | None] = None
    #: ... for the columns that cut values in silence: the name, whether it is of text, and the most
    #: characters or digits of a second that it takes; by the same.
    bounds: ClassVar[str | None] = None

    def __init__(self, store: SqlStore, name: TableName) -> None:
        self.store = store
        self.name = name

    @property
    def parameters(self) -> tuple[str | None, ...]:
        """The table's name as parameters of queries of the catalog."""
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

    def finds_checkpoints(self, ask: Callable[..., list[Any]]) -> bool:  # noqa: ARG002
        """True if an index begins with the checkpoint's number. ``ask`` as above. Left to itself a
        dialect has none.
        """
        return False

    def has_later(self, version: str, *, thorough: bool) -> str:  # noqa: ARG002
        """Return the SQL expression that is true if rows of checkpoints above ``version`` exist.
        Answered by the index of :meth:`finds_checkpoints`; unless ``thorough``, by the table's
        newest pages alone where the database can read them by themselves.
        """
        table, number = self.store.escaped(self.name.sql), quoted(CHECKPOINT_COLUMN)
        return f"EXISTS (SELECT 1 FROM {table} WHERE {number} > {version})"

    @abstractmethod
    def wire_type(self, field: pa.Field) -> W:
        """Return the type in which ``field`` is sent.

        Raises:
            SchemaChangeError: the database has no type for it.
        """

    @abstractmethod
    def create(self, wires: Mapping[str, W], key: Sequence[str]) -> None:
        """Make the table, with :attr:`comment` on the column of checkpoints."""

    @abstractmethod
    def add(self, wires: Mapping[str, W]) -> None:
        """Add columns, likewise."""

    def index_checkpoints(self, key: Sequence[str]) -> None:
        """Make the index of :meth:`finds_checkpoints` for a column that was added to a table, into
        which rows are upserted by ``key`` if there is one. Left to itself a dialect makes none.
        """

    def mark(self) -> None:
        """Put :attr:`comment` on the column of checkpoints, which is there."""
        raise NotImplementedError(f"{type(self).__name__} has no comments")

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
        """Return the table's triggers, rules and the like that may drop, move or change rows on
        their way, or keep them when they are deleted, for a message; empty if it has none.
        """
        return ""

    def shown(self) -> pa.Schema:
        """The columns whose values are read back as they were written, bit for bit, as Arrow;
        the checkpoint's number at least, if the table has it.

        Raises:
            RefusedError: the table may change what it is given.
        """
        has_number = CHECKPOINT_COLUMN in self.columns()
        return pa.schema([(CHECKPOINT_COLUMN, pa.int64())] if has_number else [])

    def readable(self) -> list[ReadColumn]:
        """Return the readable columns, the checkpoint's number among them; none if there is no
        table. The default is the columns of :meth:`shown`.
        """
        return [ReadColumn.exact(field.name, field.type) for field in self.shown()]

    def check_deletable(self) -> list[str]:
        """The statements by which the table, if it is there, gets what it lacks for rows to be
        deleted or replaced in it. Left to itself a dialect has nothing of the kind.

        Raises:
            RefusedError: somebody else has to run them.
        """
        return []

    def settle(self) -> None:
        """Run deferred triggers and constraints now, while their effect can be counted."""

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


#: As its rows have it, and as a bad record has it.
COORDINATES = {"_eo_topic": "topic", "_eo_partition": "partition", "_eo_offset": "offset"}


def record_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The coordinates of the record that ``row`` came from."""
    return {name: row[column] for column, name in COORDINATES.items()}

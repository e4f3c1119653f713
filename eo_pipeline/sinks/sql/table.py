"""A table of one SQL dialect: its types, and the statements about it, for
:mod:`eo_pipeline.sinks.sql.session` to run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from eo_pipeline._lazy import pa
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.capabilities import OWN_FORM
from eo_pipeline.sinks.sql.config import NameRules, TableName, quoted
from eo_pipeline.sinks.sql.connection import SqlStore
from eo_pipeline.sinks.sql.ledger import comment_for
from eo_pipeline.sinks.upsert import ORIGIN, UpsertRule
from eo_pipeline.staging.rows import StagedTable


class AnyWireType(Protocol):
    """The type in which a staged column is sent. ``str`` of it goes into messages."""

    @property
    def declared(self) -> str:
        """The type that a new column gets."""


class AnyColumnType(ABC):
    """The type of a table's column. ``str`` of it goes into messages."""

    #: True if the database fills the column itself and takes no value.
    is_computed: bool = False

    @abstractmethod
    def takes(self, wire: Any) -> bool:
        """True if every value of ``wire`` has its exact counterpart here, or is refused."""

    def wider(self, wire: Any) -> str | None:  # noqa: ARG002
        """Return the type, as a statement has it, that takes ``wire`` and every present value
        unchanged; None if there is none, or it is left to a person.
        """
        return None

    def room(self, wire: Any) -> int | None:  # noqa: ARG002
        """Return the digits in front of the point, if those of ``wire`` may be more."""
        return None


W = TypeVar("W", bound=AnyWireType)
C = TypeVar("C", bound=AnyColumnType)


@dataclass(frozen=True)
class Column(Generic[W, C]):
    """A staged column and the table's column that takes it."""

    name: str
    wire: W
    type: C


@dataclass(frozen=True)
class ReadColumn:
    """The reading of a column: the expression ``selected`` of a query's list, the Arrow type
    ``given`` of the driver's values, and the ``field`` that these are cast to.
    """

    field: pa.Field
    selected: str
    given: pa.DataType

    @classmethod
    def exact(cls, name: str, arrow: pa.DataType, given: pa.DataType | None = None) -> ReadColumn:
        """A column whose values are read as they were written."""
        return cls(pa.field(name, arrow), quoted(name), given or arrow)

    @classmethod
    def own_form(cls, name: str, selected: str) -> ReadColumn:
        """A column of which the database keeps a form of its own, read as the text ``selected``."""
        return cls(pa.field(name, pa.string(), metadata=OWN_FORM), selected, pa.string())


class SqlTable(ABC, Generic[W, C]):
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
        """Put :attr:`comment` on the column of checkpoints, which is there. Left to itself a
        dialect has no comments.
        """

    @property
    def comment(self) -> str:
        """For the column of checkpoints."""
        return comment_for(self.made_for)

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

    def retype(self, types: Mapping[str, str]) -> None:
        """Give the columns, by their names, other types that ``wider`` has named."""
        raise NotImplementedError(f"{type(self).__name__} does not widen")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes the table's columns within."""
        yield

    # Where ``sink.mode`` may be upsert.

    #: What a unique index must not be to serve.
    key_excludes: ClassVar[str] = ""

    def check_other_keys(self, key: Sequence[str], wires: Mapping[str, W]) -> None:
        """Refuse a table that has ``key``, and something else by which it cannot be upserted, of
        rows with the columns ``wires``. Left to itself a dialect has nothing of the kind.
        """

    def staged_rows(
        self, columns: Sequence[Column[W, C]], staged: StagedTable
    ) -> AbstractContextManager[TableName]:
        """A temporary table that holds the staged rows."""
        raise NotImplementedError(f"{type(self).__name__} does not upsert")

    def sent(self, column: Column[W, C]) -> str:
        """A column of the staged rows, turned into the table's type."""
        return quoted(column.name)

    def merge_in_order(
        self,
        stage: TableName,  # noqa: ARG002
        columns: Sequence[Column[W, C]],  # noqa: ARG002
        rule: UpsertRule,  # noqa: ARG002
    ) -> bool:
        """Upsert the staged rows of ``stage`` unless a key, without ``rule.sequence_by``, came from
        two Kafka partitions. False: nothing was done, by that or any other reason.
        """
        return False

    def merge(self, stage: TableName, columns: Sequence[Column[W, C]], rule: UpsertRule) -> str:
        """Return the statement that upserts the staged rows of ``stage``."""
        raise NotImplementedError(f"{type(self).__name__} does not upsert")


def same_key(rule: UpsertRule, old: str, new: str) -> str:
    """True for two rows that have one key."""
    return " AND ".join(f"{old}.{quoted(name)} = {new}.{quoted(name)}" for name in rule.key)


def moved(old: str, new: str) -> str:
    """True for two rows that came from different Kafka partitions; null where ``old`` does not say
    where it came from.
    """
    return " OR ".join(f"{old}.{quoted(name)} <> {new}.{quoted(name)}" for name in ORIGIN)


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


#: As its rows have it, and as a bad record has it.
COORDINATES = {"_eo_topic": "topic", "_eo_partition": "partition", "_eo_offset": "offset"}


def record_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The coordinates of the record that ``row`` came from."""
    return {name: row[column] for column, name in COORDINATES.items()}

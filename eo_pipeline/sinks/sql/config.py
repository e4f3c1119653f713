"""Table names, name rules and settings shared by all SQL sinks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, PositiveFloat, ValidationInfo, field_validator

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Guarantee, Sink, UpsertOptions

_PART = r'(?:"(?P<{0}quoted>(?:[^"]|"")+)"|(?P<{0}plain>[^".]+))'
_TABLE = re.compile(rf"(?:{_PART.format('schema_')}\.)?{_PART.format('name_')}")

#: The ledger's table, in the schema of the table it speaks for.
LEDGER_TABLE = "eo_ledger"


def quoted(name: str) -> str:
    """``name`` as a standard SQL identifier: always in double quotes, so its case counts."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


@dataclass(frozen=True)
class TableName:
    """A table, and its schema where one was given.

    Names mean exactly what is written, case included: ``Flights`` is the table a database shows as
    ``"Flights"``. Double quotes are needed only around a part that holds a dot.
    """

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read ``table``, ``schema.table`` or ``"odd.schema"."odd.table"``.

        Raises:
            ValueError: ``text`` is none of these.
        """
        match = _TABLE.fullmatch(text)
        if match is None or "\0" in text:
            raise ValueError(
                f'{text!r} is not a table name: write table, schema.table or "odd.name"'
            )
        return cls(schema=_unquoted(match, "schema_"), name=_unquoted(match, "name_") or "")

    def within(self, schema: str) -> TableName:
        """This table with ``schema`` where it has none of its own."""
        return self if self.schema else TableName(schema, self.name)

    def sibling(self, name: str) -> TableName:
        """Another table of the same schema."""
        return TableName(self.schema, name)

    @property
    def sql(self) -> str:
        """For use in a statement."""
        return ".".join(quoted(part) for part in (self.schema, self.name) if part)

    def __str__(self) -> str:
        return ".".join(_readable(part) for part in (self.schema, self.name) if part)


def _unquoted(match: re.Match[str], part: str) -> str | None:
    inner: str | None = match[f"{part}quoted"]
    return match[f"{part}plain"] if inner is None else inner.replace('""', '"')


def _readable(part: str) -> str:
    return quoted(part) if "." in part or '"' in part else part


def columns_list(names: Iterable[str]) -> str:
    """``"a", "b"``."""
    return ", ".join(map(quoted, names))


@dataclass(frozen=True)
class NameRules:
    """Rules of a database for names.

    ``check`` raises ``ValueError``, in words, for what cannot be one; ``fold`` gives what two names
    have in common that it does not tell apart.
    """

    product: str
    check: Callable[[str], None]
    fold: Callable[[str], str] = str

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse names of columns that the database would not take or could not tell apart.

        Raises:
            RefusedError: names the columns.
        """
        count = Counter(map(self.fold, names))
        twice = sorted({name for name in names if count[self.fold(name)] > 1})
        if twice:
            raise RefusedError(
                f"the result has {', '.join(map(repr, twice))} more than once (as {self.product} "
                "tells names of columns apart); rename one in the transform."
            )
        for name in names:
            if "\0" in name:
                raise RefusedError(
                    f"{name!r} contains a NUL character, which {self.product} does not allow. "
                    "Rename the column in the transform."
                )
            try:
                self.check(name)
            except ValueError as error:
                raise RefusedError(f"{error}. Rename the column in the transform.") from error


def _parsed(text: str) -> str:
    TableName.parse(text)
    return text


#: A table's name, as :meth:`TableName.parse` reads it.
TableText = Annotated[str, AfterValidator(_parsed)]


def dead_letters_of(table: TableName) -> TableName:
    """Return the default table of dead letters."""
    return table.sibling(f"{table.name}_dead_letters")


class SqlSink(UpsertOptions, Sink):
    """A table in a database, with the ledger beside it. The fields every dialect has.

    A dialect says by :meth:`_refuse_name` what cannot be a table's name there.
    """

    table: TableText
    dead_letter_table: TableText | None = Field(default=None, validate_default=True)
    lock_timeout: PositiveFloat = 30.0

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    tables_session_class: ClassVar[str | None] = "eo_pipeline.sinks.sql.tables:SqlTablesSession"

    tables_within: ClassVar[str | None] = "schema"
    of_one_table: ClassVar[frozenset[str]] = frozenset(
        {"mode", "key", "sequence_by", "dead_letter_table"}
    )

    @classmethod
    def table_fields(cls, fields: Mapping[str, Any], pipeline: str, name: str) -> dict[str, Any]:
        """``schema`` names the schema of all tables."""
        shared = dict(fields)
        schema = shared.pop("schema", None)
        quoted = name if name.startswith('"') or "." not in name else f'"{name}"'
        return super().table_fields(shared, pipeline, f"{schema}.{quoted}" if schema else name)

    @classmethod
    def _refuse_name(cls, table: TableName) -> None:
        """Raise ``ValueError`` if the database cannot have a table of this name."""

    @field_validator("table")
    @classmethod
    def _can_be_a_table(cls, table: str) -> str:
        name = TableName.parse(table)
        if name.name == LEDGER_TABLE:
            raise ValueError(f"{LEDGER_TABLE} is the ledger's table")
        cls._refuse_name(name)
        return table

    @field_validator("dead_letter_table")
    @classmethod
    def _is_another_table(cls, name: str | None, info: ValidationInfo) -> str | None:
        table = info.data.get("table")
        if name is not None:
            cls._refuse_name(TableName.parse(name))
        elif table is not None:
            cls._refuse_name(dead_letters_of(TableName.parse(table)))
        if table is not None and name == table:
            raise ValueError("dead letters need a table of their own")
        return name

    @property
    def target(self) -> TableName:
        """The table, as it was written."""
        return TableName.parse(self.table)

    @property
    def dead_letters(self) -> TableName:
        """The table for records that could not be read."""
        named = self.dead_letter_table
        return TableName.parse(named) if named else dead_letters_of(self.target)

    @property
    def store(self) -> Hashable:
        """The ledger lies in the table's schema: this is the database, the user and the schema."""
        ours = {*SqlSink.model_fields}
        reached = tuple((name, value) for name, value in self if name not in ours)
        return type(self), reached, self.target.schema

    def heads(self, pipelines: Collection[str]) -> dict[str, LedgerEntry | None]:
        """By one question; see :meth:`Sink.heads`."""
        with self._opening():
            heads: dict[str, LedgerEntry | None] = self._session_class().heads(self, pipelines)
        return heads

    @property
    def table_name(self) -> str:
        return str(self.target)

    @property
    def tables_written(self) -> tuple[str, ...]:
        schema, letters = self.target.schema, self.dead_letters
        return self.table_name, str(letters.within(schema) if schema else letters)

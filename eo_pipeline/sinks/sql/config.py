"""What the configurations of all SQL sinks have in common."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, PositiveFloat, ValidationInfo, field_validator

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Guarantee, Sink
from eo_pipeline.sinks.options import UpsertOptions
from eo_pipeline.sinks.sql.names import TableName


def _parsed(text: str) -> str:
    TableName.parse(text)
    return text


#: A table's name, as :meth:`TableName.parse` reads it.
TableText = Annotated[str, AfterValidator(_parsed)]


def dead_letters_of(table: TableName) -> TableName:
    """Where dead letters go if nobody says where."""
    return table.sibling(f"{table.name}_dead_letters")


class SqlSink(UpsertOptions, Sink):
    """A table in a database, with the ledger beside it. The fields every dialect has.

    A dialect says by :meth:`_refuse_name` what cannot be a table's name there.
    """

    table: TableText
    dead_letter_table: TableText | None = Field(default=None, validate_default=True)
    lock_timeout: PositiveFloat = 30.0

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    @classmethod
    def _refuse_name(cls, table: TableName) -> None:
        """Raise ``ValueError`` if the database cannot have a table of this name."""

    @field_validator("table")
    @classmethod
    def _can_be_a_table(cls, table: str) -> str:
        cls._refuse_name(TableName.parse(table))
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

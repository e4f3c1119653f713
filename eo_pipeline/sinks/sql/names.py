"""Names of tables and columns, as a person writes them, and as databases want them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eo_pipeline.errors import RefusedError

_PART = r'(?:"(?P<{0}quoted>(?:[^"]|"")+)"|(?P<{0}plain>[^".]+))'
_TABLE = re.compile(rf"(?:{_PART.format('schema_')}\.)?{_PART.format('name_')}")


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
    """What a database takes as a name.

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
                    f"{name!r} holds the character 0, which {self.product} has not in names. "
                    "Rename the column in the transform."
                )
            try:
                self.check(name)
            except ValueError as error:
                raise RefusedError(f"{error}. Rename the column in the transform.") from error

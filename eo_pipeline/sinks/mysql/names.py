"""Names in MySQL: what they may be, and how they are written in a remedy for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.sql.names import TableName, quoted

#: MySQL Reference Manual, "Identifier Length Limits".
NAME_LENGTH_MAX = 64

#: Identifiers are kept in three bytes a character, and end in no blank
#: (MySQL Reference Manual, "Schema Object Names").
_LAST_CHARACTER = "\uffff"


def refuse_name(name: str) -> None:
    """Raise ``ValueError`` for what cannot be a name in MySQL."""
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ValueError(f"{name!r} has not between 1 and {NAME_LENGTH_MAX} characters")
    if name.endswith(" ") or any(c == "\0" or c > _LAST_CHARACTER for c in name):
        raise ValueError(f"{name!r} ends in a blank, or holds a character MySQL has not in names")


def check_columns(names: Sequence[str]) -> None:
    """Refuse names of columns that MySQL would not take or could not tell apart.

    Raises:
        RefusedError: names the columns.
    """
    count = Counter(name.lower() for name in names)
    twice = sorted({name for name in names if count[name.lower()] > 1})
    if twice:
        shown = ", ".join(map(repr, twice))
        raise RefusedError(
            f"the result has {shown} more than once (MySQL does not tell upper from lower case "
            "in names of columns); rename one in the transform."
        )
    for name in names:
        try:
            refuse_name(name)
        except ValueError as error:
            raise RefusedError(f"{error}. Rename the column in the transform.") from error


def columns_list(names: Iterable[str]) -> str:
    """``"a", "b"``: sessions run with ``ANSI_QUOTES``, as the SQL sinks' statements are written."""
    return ", ".join(map(quoted, names))


def for_people(name: str | TableName) -> str:
    """As a statement in a message has it, to be run in anybody's session: in backticks."""
    parts = (name.schema, name.name) if isinstance(name, TableName) else (name,)
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts if part)

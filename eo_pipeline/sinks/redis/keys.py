"""Names of Redis keys: those of the pipeline itself, and the template for the keys of rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: What the names of the pipeline's own keys begin with.
RESERVED = "eo_"

_COLUMN = re.compile(r"\{([^{}]+)\}")


class Keys(NamedTuple):
    """Names of a pipeline's keys. The braces are the hash tag that puts them in one slot.

    ``table`` is given for one of several.
    """

    pipeline: str
    table: str | None = None

    def named(self, name: str) -> bytes:
        return f"{{{self.pipeline}}}:{name}".encode()

    @property
    def ledger(self) -> bytes:
        """A hash: a field for every version, ``head`` and ``target``; of several tables ``target:``
        and the name of each.
        """
        return self.named(f"{RESERVED}ledger")

    @property
    def schema(self) -> bytes:
        """A hash: the kind of every column there ever was."""
        return self._of_table(f"{RESERVED}schema")

    @property
    def dead_letters(self) -> bytes:
        """A stream."""
        return self._of_table(f"{RESERVED}dead_letters")

    def _of_table(self, name: str) -> bytes:
        return self.named(name if self.table is None else f"{name}:{self.table}")


@dataclass(frozen=True)
class KeyTemplate:
    """``flight:{carrier}:{number}``: literal text around the columns that identify a row, so that
    different rows never meet in one key.

    ``literals`` has one element more than ``columns``. In a value the character that begins the
    literal after it is percent-encoded, and ``%`` itself: ``a:b`` + ``c`` and ``a`` + ``b:c`` are
    two keys. The last value stands as it is but for ``%``.
    """

    columns: tuple[str, ...]
    literals: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> KeyTemplate:
        """Read a template.

        Raises:
            ValueError: it names no column, or two columns that nothing separates.
        """
        parts = _COLUMN.split(text)
        columns, literals = tuple(parts[1::2]), tuple(parts[0::2])
        if not columns:
            raise ValueError("name the columns in braces, as in 'flight:{carrier}:{number}'")
        if any(brace in literal for literal in literals for brace in "{}"):
            raise ValueError("a brace is not closed, or opened twice")
        if len(set(columns)) < len(columns):
            raise ValueError("a column is named twice")
        for separator in literals[1:-1]:
            if not separator or separator[0].isalnum() or not separator[0].isascii():
                raise ValueError("two columns need a mark between them, such as ':'")
            if separator[0] == "%":
                raise ValueError("'%' cannot separate columns: it is how keys are escaped")
        return cls(columns, literals)

    @classmethod
    def of_columns(cls, columns: Sequence[str]) -> KeyTemplate:
        """The columns with ``:`` between them.

        Raises:
            ValueError: there is none, or one of them cannot stand in a template.
        """
        return cls.parse(":".join(f"{{{name}}}" for name in columns))

    def render(self, values: Sequence[bytes]) -> bytes:
        """The key of a row; ``values`` in the order of ``columns``."""
        key = self.literals[0].encode()
        for value, literal in zip(values, self.literals[1:], strict=True):
            key += _escaped(value, literal[:1].encode()) + literal.encode()
        return key

    def __str__(self) -> str:
        named = zip(self.columns, self.literals[1:], strict=True)
        return self.literals[0] + "".join(f"{{{name}}}{literal}" for name, literal in named)


def _escaped(value: bytes, separator: bytes) -> bytes:
    escaped = value.replace(b"%", b"%25")
    return escaped.replace(separator, b"%%%02X" % separator[0]) if separator else escaped

"""What is in a topic, from some of its values: a Spark schema for JSON. Pure, no I/O.

A guess that is too wide costs a cast later; one that is too narrow makes good records bad ones.
So whatever does not agree is a STRING, into which Spark reads any JSON value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN

VOID, STRING = "VOID", "STRING"
BIGINT, DECIMAL, DOUBLE = "BIGINT", "DECIMAL(38,0)", "DOUBLE"

_BIGINT_MAX = 2**63 - 1
_DECIMAL_MAX = 10**38 - 1

#: Two scalar types that one wider type holds.
_WIDER = {
    frozenset({BIGINT, DOUBLE}): DOUBLE,
    frozenset({BIGINT, DECIMAL}): DECIMAL,
}

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: The first byte of a value that Confluent's serializers wrote, and how long their header is.
_REGISTRY_MAGIC, _REGISTRY_HEADER = b"\x00", 5


def _reserved() -> frozenset[str]:
    """Columns the pipeline makes itself."""
    # here, because pyspark takes a sixth of a second to import
    from eo_pipeline.source.decoded import KAFKA_COLUMN, LINEAGE

    return frozenset({CHECKPOINT_COLUMN, KAFKA_COLUMN, *LINEAGE})


@dataclass(frozen=True)
class Struct:
    """A JSON object's type: its fields in the order they were met."""

    fields: Mapping[str, Type]


@dataclass(frozen=True)
class Array:
    """A JSON array's type."""

    element: Type


#: A scalar is the name of its Spark type.
Type = str | Struct | Array


@dataclass
class InferredSchema:
    """What a sample held.

    ``records`` all of them, ``tombstones`` without a value, ``bad`` not one JSON object,
    ``framed`` of those with a schema registry's header. ``type`` is that of the good ones,
    ``present`` how many of them have each field, and not null.
    """

    records: int = 0
    tombstones: int = 0
    bad: int = 0
    framed: int = 0
    type: Struct = Struct({})
    present: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> int:
        """Records that are one JSON object."""
        return self.records - self.tombstones - self.bad

    def add(self, value: bytes | None) -> None:
        """One more record's value."""
        self.records += 1
        if value is None:
            self.tombstones += 1
            return
        found = _object(value)
        if found is None:
            self.bad += 1
            self.framed += value[:1] == _REGISTRY_MAGIC and len(value) > _REGISTRY_HEADER
            return
        for name, item in found.items():
            self.present[name] = self.present.get(name, 0) + (item is not None)
        merged = _merged(self.type, type_of(found))
        assert isinstance(merged, Struct)
        self.type = merged

    def columns(self) -> dict[str, Type]:
        """The fields that can be columns: Spark's names do not tell upper from lower case."""
        left_out = self.left_out()
        return {name: kind for name, kind in self.type.fields.items() if name not in left_out}

    def left_out(self) -> dict[str, str]:
        """Fields that cannot be columns, and why."""
        found: dict[str, str] = {}
        taken: dict[str, str] = {}
        reserved = _reserved()
        for name in self.type.fields:
            first = taken.setdefault(name.lower(), name)
            if name.lower() in reserved:
                found[name] = "the pipeline makes a column of that name"
            elif first != name:
                found[name] = f"differs from {first} only in case"
            elif not name.strip():
                found[name] = "has no name"
        return found

    def unknown(self) -> list[str]:
        """Fields that were never anything but null."""
        return [name for name, kind in self.columns().items() if kind == VOID]

    def ddl(self, *, not_null: bool = False) -> str:
        """The schema as Spark DDL, one field a line.

        Args:
            not_null: declare NOT NULL what every record of the sample had.
        """
        lines = (
            f"{quoted(name)} {type_text(kind)}"
            + (" NOT NULL" if not_null and self.present[name] == self.good else "")
            for name, kind in self.columns().items()
        )
        return ",\n".join(lines)


def infer_schema(values: Iterable[bytes | None]) -> InferredSchema:
    """What the values of a sample have in common."""
    inferred = InferredSchema()
    for value in values:
        inferred.add(value)
    return inferred


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
        return None
    return found if isinstance(found, dict) else None


def type_of(value: Any) -> Type:
    """The narrowest type that holds one JSON value."""
    if isinstance(value, dict):
        return Struct({name: type_of(item) for name, item in value.items()})
    if isinstance(value, list):
        nothing: Type = VOID
        return Array(reduce(_merged, map(type_of, value), nothing))
    if value is None:
        return VOID
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return _integer(value)
    return "DOUBLE" if isinstance(value, float) else _text(value)


def _integer(value: int) -> Type:
    if -_BIGINT_MAX - 1 <= value <= _BIGINT_MAX:
        return BIGINT
    return DECIMAL if abs(value) <= _DECIMAL_MAX else STRING


def _text(value: str) -> Type:
    for pattern, name in ((_DATE, "DATE"), (_TIMESTAMP, "TIMESTAMP")):
        if pattern.fullmatch(value) and _exists(value):
            return name
    return STRING


def _exists(text: str) -> bool:
    """2026-02-30 looks like a day and is none."""
    try:
        datetime.fromisoformat(text[:16])
    except ValueError:
        return False
    return True


def _merged(one: Type, other: Type) -> Type:
    """The narrowest type that holds both."""
    if one == other or other == VOID:
        return one
    if one == VOID:
        return other
    if isinstance(one, Struct) and isinstance(other, Struct):
        return Struct(dict(_merged_fields(one, other)))
    if isinstance(one, Array) and isinstance(other, Array):
        return Array(_merged(one.element, other.element))
    if isinstance(one, str) and isinstance(other, str):
        return _WIDER.get(frozenset({one, other}), STRING)
    return STRING


def _merged_fields(one: Struct, other: Struct) -> Iterator[tuple[str, Type]]:
    for name in {**one.fields, **other.fields}:
        yield name, _merged(one.fields.get(name, VOID), other.fields.get(name, VOID))


def type_text(kind: Type) -> str:
    """A type in Spark's DDL. What was never seen, and an empty object, is a STRING."""
    if isinstance(kind, Array):
        return f"ARRAY<{type_text(kind.element)}>"
    if isinstance(kind, str):
        return STRING if kind == VOID else kind
    names = [name.lower() for name in kind.fields]
    if not names or len(set(names)) < len(names):
        return STRING
    inside = (f"{quoted(name)}: {type_text(item)}" for name, item in kind.fields.items())
    return f"STRUCT<{', '.join(inside)}>"


def quoted(name: str) -> str:
    """A field's name as DDL takes it."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    return f"`{name.replace('`', '``')}`"

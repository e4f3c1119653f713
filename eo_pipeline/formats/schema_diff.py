"""Column shapes of schemas of all kinds, their changes, and policies for the changes. Pure: it is
applied between runs by :class:`eo_pipeline.batch.schemas.SchemaResolver`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from eo_pipeline.config.settings import Settings

STRUCT, ARRAY, MAP = "struct", "array", "map"


@dataclass(frozen=True)
class Shape:
    """A column, or a part of one: ``type`` is Spark's name of a scalar, or one of those above.

    ``parts`` are the fields of a struct, the element of an array, the value of a map; ``symbols``
    the values of an enum.
    """

    type: str
    parts: tuple[tuple[str, Shape], ...] = ()
    symbols: tuple[str, ...] = ()

    @classmethod
    def struct(cls, **fields: Shape) -> Shape:
        return cls(STRUCT, tuple(fields.items()))

    @property
    def fields(self) -> dict[str, Shape]:
        return dict(self.parts)

    def __str__(self) -> str:
        named = self.type == STRUCT
        inner = [f"{name}:{part}" if named else str(part) for name, part in self.parts]
        if self.type == MAP:
            inner = ["string", *inner]
        return f"{self.type}<{','.join(inner)}>" if inner else self.type


class ChangeKind(StrEnum):
    """Kinds of changes of a schema; each has a policy in the source."""

    NEW_FIELD = "new_field"
    DROPPED_FIELD = "dropped_field"
    WIDENED_TYPE = "widened_type"
    CHANGED_TYPE = "changed_type"
    NEW_NESTED_FIELD = "new_nested_field"
    NEW_ENUM_VALUE = "new_enum_value"


@dataclass(frozen=True)
class Change:
    """A change at a path of names; ``before`` and ``now`` are types, or values of an enum."""

    kind: ChangeKind
    path: tuple[str, ...]
    before: str = ""
    now: str = ""

    @property
    def column(self) -> str:
        return self.path[0]

    def __str__(self) -> str:
        name, kind = ".".join(self.path), self.kind.replace("_", " ")
        if self.before and self.now:
            return f"{kind}: {name} from {self.before} to {self.now}"
        return f"{kind}: {name} ({self.before or self.now})"


def changes(before: Shape, now: Shape, path: tuple[str, ...] = ()) -> Iterator[Change]:
    """Yield the changes of the parts of ``before``, in its order, then the new parts."""
    if before.type != now.type:
        wider = is_wider(now.type, before.type)
        kind = ChangeKind.WIDENED_TYPE if wider else ChangeKind.CHANGED_TYPE
        yield Change(kind, path, str(before), str(now))
        return
    if bool(before.symbols) != bool(now.symbols):
        was, became = ("an enum" if shape.symbols else str(shape) for shape in (before, now))
        yield Change(ChangeKind.CHANGED_TYPE, path, was, became)
    elif added := [symbol for symbol in now.symbols if symbol not in before.symbols]:
        yield Change(ChangeKind.NEW_ENUM_VALUE, path, now=", ".join(added))
    if before.type != STRUCT:
        for (_, old), (_, new) in zip(before.parts, now.parts, strict=True):
            yield from changes(old, new, path)
        return
    for name, old in before.parts:
        if name in now.fields:
            yield from changes(old, now.fields[name], (*path, name))
        else:
            yield Change(ChangeKind.DROPPED_FIELD, (*path, name), before=str(old))
    kind = ChangeKind.NEW_NESTED_FIELD if path else ChangeKind.NEW_FIELD
    for name, new in now.parts:
        if name not in before.fields:
            yield Change(kind, (*path, name), now=str(new))


def unreadable(written: Shape, read: Shape) -> list[Change]:
    """Return the changes of the columns ``read`` that all values ``written`` would need: wider or
    other types, values of enums. Fields of only one of both are no part of it.
    """
    fits = {c.path for c in changes(written, read) if c.kind is ChangeKind.WIDENED_TYPE}
    return [c for c in changes(read, written) if c.kind in _OF_VALUES and c.path not in fits]


def rescaled(written: Shape, read: Shape) -> dict[str, bool]:
    """Return the columns with decimals of another scale than was written, and whether the written
    value can be cast. Decoders that copy the digits alone would make other numbers of them.
    """
    columns = {}
    for change in changes(written, read):
        decimals = [_DECIMAL.fullmatch(kind) for kind in (change.before, change.now)]
        old, new = (decimal and decimal[2] for decimal in decimals)
        if old and new and old != new:
            was, column = (shape.fields[change.column] for shape in (written, read))
            bare = _without_digits(was)
            columns[change.column] = bare is not None and bare == _without_digits(column)
    return columns


def _without_digits(shape: Shape) -> Shape | None:
    """Return the shape without digits of decimals; None for maps, which Spark cannot compare."""
    if shape.type == MAP:
        return None
    parts = [(name, _without_digits(part)) for name, part in shape.parts]
    if any(part is None for _, part in parts):
        return None
    kind = "decimal" if _DECIMAL.fullmatch(shape.type) else shape.type
    return Shape(kind, tuple((name, part) for name, part in parts if part), shape.symbols)


_OF_VALUES = (ChangeKind.WIDENED_TYPE, ChangeKind.CHANGED_TYPE, ChangeKind.NEW_ENUM_VALUE)

#: Each type holds every value of those before it.
_WIDTHS = (("tinyint", "smallint", "int", "bigint"), ("int", "double"), ("float", "double"))
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def is_wider(kind: str, than: str) -> bool:
    """Return whether every value of the scalar ``than`` is exactly one of ``kind``."""
    wide, narrow = (_DECIMAL.fullmatch(name) for name in (kind, than))
    if wide and narrow:
        (p, s), (q, t) = (map(int, match.groups()) for match in (wide, narrow))
        return s >= t and p - s >= q - t
    return any(
        kind in widths and than in widths and widths.index(kind) > widths.index(than)
        for widths in _WIDTHS
    )


class Policy(StrEnum):
    """Policies, the most lenient first; of several for one column the strictest counts."""

    EVOLVE = "evolve"
    RESCUE = "rescue"
    QUARANTINE = "quarantine"
    FREEZE = "freeze"


_ORDER = tuple(Policy)


class SchemaChanges(Settings):
    """A policy for each kind of change in the schema of a registry.

    ``evolve``: the table follows. ``freeze``: the run is refused before anything is read.
    ``quarantine``: records that need the change are bad. ``rescue``: the column does not change,
    and values that do not fit go into one column ``_unknown_fields``, as JSON.
    """

    new_field: Policy = Policy.EVOLVE
    dropped_field: Literal[Policy.EVOLVE, Policy.QUARANTINE, Policy.FREEZE] = Policy.EVOLVE
    widened_type: Policy = Policy.EVOLVE
    changed_type: Policy = Policy.EVOLVE
    new_nested_field: Policy = Policy.EVOLVE
    new_enum_value: Policy = Policy.EVOLVE

    @property
    def rescues(self) -> bool:
        """True if there is a column for values that do not fit."""
        return Policy.RESCUE in self.model_dump().values()

    @property
    def rescues_values(self) -> bool:
        """True if that column may have values of known fields, not only unknown fields."""
        return Policy.RESCUE in (self.widened_type, self.changed_type, self.new_enum_value)

    def of(self, kind: ChangeKind) -> Policy:
        policy: Policy = getattr(self, kind.value)
        return policy

    def decide(self, changes: Iterable[Change]) -> Decisions:
        """Group the changes by column, with their policies."""
        by_column: dict[str, list[DecidedChange]] = {}
        for change in changes:
            by_column.setdefault(change.column, []).append(
                DecidedChange(change, self.of(change.kind))
            )
        return Decisions(by_column)


@dataclass(frozen=True)
class DecidedChange:
    """A change and its own policy."""

    change: Change
    policy: Policy

    def __str__(self) -> str:
        return f"{self.change}: {self.policy}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": self.change.kind.value,
            "field": ".".join(self.change.path),
            "before": self.change.before or None,
            "now": self.change.now or None,
            "policy": self.policy.value,
        }


@dataclass(frozen=True)
class Decisions:
    """The changes of a schema by column, with their policies."""

    by_column: Mapping[str, list[DecidedChange]]

    def __bool__(self) -> bool:
        return bool(self.by_column)

    @property
    def all(self) -> tuple[DecidedChange, ...]:
        return tuple(change for decided in self.by_column.values() for change in decided)

    def policy(self, column: str) -> Policy:
        """Return the strictest policy of the column's changes; ``evolve`` without changes."""
        policies = [decided.policy for decided in self.by_column.get(column, ())]
        return max(policies, key=_ORDER.index, default=Policy.EVOLVE)

    @property
    def rescued(self) -> tuple[str, ...]:
        """Columns that cannot hold all values, which are kept elsewhere."""
        return tuple(c for c in self.by_column if self.policy(c) is Policy.RESCUE)

    @property
    def frozen(self) -> tuple[DecidedChange, ...]:
        return tuple(decided for decided in self.all if decided.policy is Policy.FREEZE)

    @property
    def unchanged(self) -> frozenset[str]:
        """Columns whose change the table does not follow."""
        return frozenset(c for c in self.by_column if self.policy(c) is not Policy.EVOLVE)

    @property
    def enums(self) -> bool:
        """True if a column does not follow new values of an enum."""
        kept = (decided for column in self.unchanged for decided in self.by_column[column])
        return any(decided.change.kind is ChangeKind.NEW_ENUM_VALUE for decided in kept)

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Paths of fields that make a record bad if its writer's schema has, or lacks, them."""
        kinds = (ChangeKind.NEW_FIELD, ChangeKind.NEW_NESTED_FIELD, ChangeKind.DROPPED_FIELD)
        return tuple(
            ".".join(decided.change.path)
            for decided in self.all
            if decided.policy is Policy.QUARANTINE and decided.change.kind in kinds
        )


def _one_for_all(value: Any) -> Any:
    """Expand one policy to all kinds; ``rescue`` has no meaning for dropped fields."""
    if not isinstance(value, str):
        return value
    gone = {"dropped_field": Policy.EVOLVE} if value == Policy.RESCUE else {}
    return {kind.value: value for kind in ChangeKind} | gone


#: One policy for all kinds, or a mapping.
SchemaChangesField = Annotated[
    SchemaChanges, BeforeValidator(_one_for_all, json_schema_input_type=Policy | SchemaChanges)
]

"""Column shapes of a schema of any kind, their changes, and policies for those changes. Pure."""

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

    ``parts`` are the fields of a struct, the element of an array, the value of a map. ``symbols``
    are the values that an enum has.
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
    """What may happen to a schema; each has a policy of its own in the source."""

    NEW_FIELD = "new_field"
    DROPPED_FIELD = "dropped_field"
    WIDENED_TYPE = "widened_type"
    CHANGED_TYPE = "changed_type"
    NEW_NESTED_FIELD = "new_nested_field"
    NEW_ENUM_VALUE = "new_enum_value"


@dataclass(frozen=True)
class Change:
    """One of them, at a path of names; ``before`` and ``now`` are what was and is there."""

    kind: ChangeKind
    path: tuple[str, ...]
    before: str = ""
    now: str = ""

    @property
    def column(self) -> str:
        return self.path[0]

    def __str__(self) -> str:
        name, said = ".".join(self.path), self.kind.replace("_", " ")
        if self.before and self.now:
            return f"{said}: {name} from {self.before} to {self.now}"
        return f"{said}: {name} ({self.before or self.now})"


def changes(before: Shape, now: Shape, path: tuple[str, ...] = ()) -> Iterator[Change]:
    """What became of ``before``, in its order, and then what is new."""
    if before.type != now.type:
        wider = is_wider(now.type, before.type)
        kind = ChangeKind.WIDENED_TYPE if wider else ChangeKind.CHANGED_TYPE
        yield Change(kind, path, str(before), str(now))
        return
    if bool(before.symbols) != bool(now.symbols):
        was, became = ("an enum" if each.symbols else str(each) for each in (before, now))
        yield Change(ChangeKind.CHANGED_TYPE, path, was, became)
    elif added := [each for each in now.symbols if each not in before.symbols]:
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
    """What would have to change in the columns ``read`` so that each value ``written`` can be one:
    wider types, other ones, values of an enum. Fields that only one of them has are not in it.
    """
    fits = {each.path for each in changes(written, read) if each.kind is ChangeKind.WIDENED_TYPE}
    return [
        each for each in changes(read, written) if each.kind in _OF_VALUES and each.path not in fits
    ]


def rescaled(written: Shape, read: Shape) -> dict[str, bool]:
    """Columns with decimals of another number of places than was written, of which decoders that
    look at the digits alone make other numbers; and whether what was written can be cast.
    """
    found = {}
    for each in changes(written, read):
        scales = [_DECIMAL.fullmatch(kind) for kind in (each.before, each.now)]
        one, other = (scale and scale[2] for scale in scales)
        if one and other and one != other:
            was, column = (shape.fields[each.column] for shape in (written, read))
            same = _without_digits(was)
            found[each.column] = same is not None and same == _without_digits(column)
    return found


def _without_digits(shape: Shape) -> Shape | None:
    """None for what cannot be compared once it was cast."""
    if shape.type == MAP:
        return None
    parts = [(name, _without_digits(part)) for name, part in shape.parts]
    if any(part is None for _, part in parts):
        return None
    kind = "decimal" if _DECIMAL.fullmatch(shape.type) else shape.type
    return Shape(kind, tuple((name, part) for name, part in parts if part), shape.symbols)


_OF_VALUES = (ChangeKind.WIDENED_TYPE, ChangeKind.CHANGED_TYPE, ChangeKind.NEW_ENUM_VALUE)

#: Each holds every value of those before it.
_WIDTHS = (("tinyint", "smallint", "int", "bigint"), ("int", "double"), ("float", "double"))
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def is_wider(kind: str, than: str) -> bool:
    """True if every value of the scalar ``than`` is exactly one of ``kind``."""
    wide, narrow = (_DECIMAL.fullmatch(each) for each in (kind, than))
    if wide and narrow:
        (p, s), (q, t) = (map(int, each.groups()) for each in (wide, narrow))
        return s >= t and p - s >= q - t
    return any(
        kind in widths and than in widths and widths.index(kind) > widths.index(than)
        for widths in _WIDTHS
    )


class Policy(StrEnum):
    """From the most lenient to the strictest; of several for one column the strictest counts."""

    EVOLVE = "evolve"
    RESCUE = "rescue"
    QUARANTINE = "quarantine"
    FREEZE = "freeze"


_ORDER = tuple(Policy)


class SchemaChanges(Settings):
    """A policy for each kind of change in the schema of a registry.

    ``evolve``: the table follows. ``freeze``: the run is refused before anything is read.
    ``quarantine``: records that need the change are bad ones. ``rescue``: the column stays as it
    is, and what does not fit goes into one column ``_unknown_fields``, as JSON.
    """

    new_field: Policy = Policy.EVOLVE
    dropped_field: Literal[Policy.EVOLVE, Policy.QUARANTINE, Policy.FREEZE] = Policy.EVOLVE
    widened_type: Policy = Policy.EVOLVE
    changed_type: Policy = Policy.EVOLVE
    new_nested_field: Policy = Policy.EVOLVE
    new_enum_value: Policy = Policy.EVOLVE

    @property
    def rescues(self) -> bool:
        """True if there is a column for what does not fit."""
        return Policy.RESCUE in self.model_dump().values()

    @property
    def rescues_values(self) -> bool:
        """True if there may be values that do not fit their column, beside whole fields."""
        return Policy.RESCUE in (self.widened_type, self.changed_type, self.new_enum_value)

    def of(self, kind: ChangeKind) -> Policy:
        policy: Policy = getattr(self, kind.value)
        return policy

    def decide(self, changes: Iterable[Change]) -> Decisions:
        """What happens to each column that changed."""
        by_column: dict[str, list[Decided]] = {}
        for change in changes:
            by_column.setdefault(change.column, []).append(Decided(change, self.of(change.kind)))
        return Decisions(by_column)


@dataclass(frozen=True)
class Decided:
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
    """By column."""

    by_column: Mapping[str, list[Decided]]

    def __bool__(self) -> bool:
        return bool(self.by_column)

    @property
    def all(self) -> tuple[Decided, ...]:
        return tuple(each for decided in self.by_column.values() for each in decided)

    def policy(self, column: str) -> Policy:
        """The strictest of what changed in it; ``evolve`` if nothing did."""
        found = [each.policy for each in self.by_column.get(column, ())]
        return max(found, key=_ORDER.index, default=Policy.EVOLVE)

    @property
    def rescued(self) -> tuple[str, ...]:
        """Columns that cannot hold all, whose rest is kept elsewhere."""
        return tuple(c for c in self.by_column if self.policy(c) is Policy.RESCUE)

    @property
    def frozen(self) -> tuple[Decided, ...]:
        return tuple(each for each in self.all if each.policy is Policy.FREEZE)

    @property
    def as_before(self) -> frozenset[str]:
        """Columns whose change the table does not follow."""
        return frozenset(c for c in self.by_column if self.policy(c) is not Policy.EVOLVE)

    @property
    def enums(self) -> bool:
        """True if a column does not follow new values of an enum."""
        kept = (each for column in self.as_before for each in self.by_column[column])
        return any(each.change.kind is ChangeKind.NEW_ENUM_VALUE for each in kept)

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Paths of fields that a record must not have, or not lack, by its writer's schema."""
        kinds = (ChangeKind.NEW_FIELD, ChangeKind.NEW_NESTED_FIELD, ChangeKind.DROPPED_FIELD)
        return tuple(
            ".".join(each.change.path)
            for each in self.all
            if each.policy is Policy.QUARANTINE and each.change.kind in kinds
        )


def _one_for_all(value: Any) -> Any:
    """``rescue`` for all: of a field that is gone there is nothing to rescue."""
    if not isinstance(value, str):
        return value
    gone = {"dropped_field": Policy.EVOLVE} if value == Policy.RESCUE else {}
    return {kind.value: value for kind in ChangeKind} | gone


#: One word for all kinds, or a mapping.
SchemaChangesField = Annotated[
    SchemaChanges, BeforeValidator(_one_for_all, json_schema_input_type=Policy | SchemaChanges)
]

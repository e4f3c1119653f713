"""What happens when the schema of a topic changes: a policy for each kind of change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from eo_pipeline.settings import Settings
from eo_pipeline.source.shapes import Change, ChangeKind


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

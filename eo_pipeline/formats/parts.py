"""Key and value: the parts of a record that schemas describe. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Part:
    """A part of a record, named as Spark's Kafka column."""

    name: Literal["key", "value"]

    @property
    def header(self) -> str:
        """The header in which newer producers send the id of the writer's schema."""
        return f"__{self.name}_schema_id"

    @property
    def subject_field(self) -> str:
        """The field of a document's registry that overrides :meth:`subject`."""
        return "key_subject" if self.name == "key" else "subject"

    def subject(self, topic: str) -> str:
        """Return the default subject of the part's schemas."""
        return f"{topic}-{self.name}"

    def column_name(self, name: str) -> str:
        """Return the name of a column or metric of this part."""
        return f"_eo_{self.name}_{name}"


KEY, VALUE = Part("key"), Part("value")

#: Column of a key without fields.
KEY_COLUMN = "key"

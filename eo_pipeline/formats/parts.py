"""Key and value: the two parts of a record that a schema may describe. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Part:
    """One of them, named as Spark's Kafka column."""

    name: Literal["key", "value"]

    @property
    def header(self) -> str:
        """In which newer producers say which schema it was written with."""
        return f"__{self.name}_schema_id"

    @property
    def subject_field(self) -> str:
        """Of a registry in a document: who says otherwise says it there."""
        return "key_subject" if self.name == "key" else "subject"

    def subject(self, topic: str) -> str:
        """Under which a registry has its schemas, if nobody says otherwise."""
        return f"{topic}-{self.name}"

    def own(self, name: str) -> str:
        """A column's or a metric's name that no other part has."""
        return f"_eo_{self.name}_{name}"


KEY, VALUE = Part("key"), Part("value")

#: The column of a key that is no record.
KEY_COLUMN = "key"

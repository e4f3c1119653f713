"""Kinds of schemas: for each, conversion of a text to columns and comparison of two texts.

A kind is a module, or an object of a module; decoding its records is separate, see
:mod:`eo_pipeline.batch.decode`. Texts are JSON and self-contained, as the ledger holds them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from eo_pipeline.formats import avro, json_schema
from eo_pipeline.formats.protobuf import Protobuf
from eo_pipeline.formats.schema_diff import Shape
from eo_pipeline.ledger.schemas import AVRO, JSON_SCHEMA, PROTOBUF


class SchemaKind(Protocol):
    """What is asked of one."""

    def fault_of(self, text: str) -> str | None:
        """Why the fields of ``text`` cannot become columns; None if they can."""

    def field_names(self, text: str) -> list[str]:
        """The names of the columns, in order."""

    def left_out(self, writer: str, reader: str) -> list[str]:
        """The paths of the fields that ``writer`` has and ``reader``, of which :meth:`fault_of`
        finds nothing, does not read.
        """

    def shape_of(self, text: str) -> Shape:
        """The columns, of whatever kind the schema is."""

    def partly(self, before: str, now: str, as_before: Collection[str]) -> str:
        """The schema ``now``, but that the columns ``as_before`` are what they are in ``before``,
        or are not there if they were not.

        Raises:
            ValueError: that cannot be; the text names what is in the way.
        """

    def self_contained(self, text: str, references: Mapping[str, str]) -> str:
        """``text`` as a registry has it, with all that it refers to, by name, written out."""


#: By the ``value_format`` of a document, its name in a registry.
_TYPES = {"avro": AVRO, "json": JSON_SCHEMA, "protobuf": PROTOBUF}

_KINDS: Mapping[str, SchemaKind] = {AVRO: avro, JSON_SCHEMA: json_schema}


def type_of_format(value_format: str) -> str:
    """What a registry calls the schemas of such values.

    Raises:
        KeyError: they have none.
    """
    return _TYPES[value_format]


def format_of_type(schema_type: str) -> str | None:
    """The inverse; None if it is not one that can be read."""
    return next((name for name, kind in _TYPES.items() if kind == schema_type), None)


def kind_of(schema_type: str, message: str = "") -> SchemaKind:
    """What a registry calls so; ``message`` says which of a Protobuf schema's is meant."""
    return Protobuf(message) if schema_type == PROTOBUF else _KINDS[schema_type]


def plain_or_record(schema_type: str, text: str) -> str:
    """A key's schema ``text``; of a plain key, which has no fields, one with a field ``key``."""
    if schema_type == JSON_SCHEMA:
        return json_schema.as_object(text)
    return avro.as_record(text) if schema_type == AVRO else text


def is_plain(schema_type: str, text: str) -> bool:
    """Whether :func:`plain_or_record` made the field of it."""
    if schema_type == JSON_SCHEMA:
        return json_schema.is_plain(text)
    return schema_type == AVRO and avro.is_plain(text)

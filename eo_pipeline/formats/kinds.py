"""Kinds of schemas by their names: Avro, JSON Schema, Protobuf.

Decoding of records is separate, see :mod:`eo_pipeline.batch.decode`.
"""

from __future__ import annotations

from collections.abc import Mapping

from eo_pipeline.formats.avro import Avro
from eo_pipeline.formats.base import SchemaKind
from eo_pipeline.formats.json_schema import JsonSchema
from eo_pipeline.formats.protobuf import Protobuf
from eo_pipeline.ledger.schemas import AVRO, JSON_SCHEMA, PROTOBUF

#: Type names of a registry by the ``value_format`` of a document.
_TYPES = {"avro": AVRO, "json": JSON_SCHEMA, "protobuf": PROTOBUF}

_KINDS: Mapping[str, SchemaKind] = {AVRO: Avro(), JSON_SCHEMA: JsonSchema()}


def type_of_format(value_format: str) -> str:
    """Return the registry's name for the schemas of a format.

    Raises:
        KeyError: the format has no schemas.
    """
    return _TYPES[value_format]


def format_of_type(schema_type: str) -> str | None:
    """Return the format of a registry's type name; None if it is not supported."""
    return next((name for name, kind in _TYPES.items() if kind == schema_type), None)


def kind_of(schema_type: str, message: str = "") -> SchemaKind:
    """Return the kind of a registry's type name; ``message`` selects a message of Protobuf."""
    return Protobuf(message) if schema_type == PROTOBUF else _KINDS[schema_type]


def key_as_record(schema_type: str, text: str) -> str:
    """See :meth:`SchemaKind.as_record`."""
    return kind_of(schema_type).as_record(text)


def is_plain(schema_type: str, text: str) -> bool:
    """See :meth:`SchemaKind.is_plain`."""
    return kind_of(schema_type).is_plain(text)

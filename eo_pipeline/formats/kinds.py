"""Kinds of schemas by their names: Avro, JSON Schema, Protobuf.

Decoding of records is separate, see :mod:`eo_pipeline.batch.decode`.
"""

from __future__ import annotations

from eo_pipeline.formats.base import SchemaKind
from eo_pipeline.ledger.schemas import AVRO, JSON_SCHEMA, PROTOBUF

#: Type names of a registry by the ``value_format`` of a document.
_TYPES = {"avro": AVRO, "json": JSON_SCHEMA, "protobuf": PROTOBUF}


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
    """Return the kind of a registry's type name; ``message`` selects a message of Protobuf.

    Raises:
        KeyError: there is no such kind.
    """
    # here, because a pipeline has one kind, if any, and a run that finds nothing new imports it all
    if schema_type == AVRO:
        from eo_pipeline.formats.avro import Avro

        return Avro()
    if schema_type == JSON_SCHEMA:
        from eo_pipeline.formats.json_schema import JsonSchema

        return JsonSchema()
    if schema_type == PROTOBUF:
        from eo_pipeline.formats.protobuf import Protobuf

        return Protobuf(message)
    raise KeyError(schema_type)


def key_as_record(schema_type: str, text: str) -> str:
    """See :meth:`SchemaKind.as_record`."""
    return kind_of(schema_type).as_record(text)


def is_plain(schema_type: str, text: str) -> bool:
    """See :meth:`SchemaKind.is_plain`."""
    return kind_of(schema_type).is_plain(text)

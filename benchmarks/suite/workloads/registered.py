"""The schemas that a registry holds for the workloads, each with its number.

Topics outlive the registry, so the numbers have to be the same every time: they are the places of
the schemas here, counted from 1, as an empty registry gives them.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from benchmarks.suite.errors import MeasurementError

_FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "country", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "at_ms", "type": "long"},
    {"name": "note", "type": "string"},
]
_CHANNEL = {"name": "channel", "type": ["null", "string"], "default": None}


def _record(*fields: object) -> str:
    return json.dumps({"type": "record", "name": "Record", "fields": fields})


class Registered(NamedTuple):
    """A schema of a subject."""

    subject: str
    kind: str
    text: str


AVRO_SUBJECT, PROTOBUF_SUBJECT = "avro-value", "protobuf-value"
AVRO_OLD = Registered(AVRO_SUBJECT, "AVRO", _record(*_FIELDS))
#: It has one field more, which may be null.
AVRO_NEW = Registered(AVRO_SUBJECT, "AVRO", _record(*_FIELDS, _CHANNEL))
PROTOBUF = Registered(
    PROTOBUF_SUBJECT,
    "PROTOBUF",
    'syntax = "proto3"; message Record { int64 id = 1; string customer = 2; string country = 3; '
    "double amount = 4; int64 at_ms = 5; string note = 6; }",
)
_SCHEMAS = (AVRO_OLD, AVRO_NEW, PROTOBUF)


def number(schema: Registered) -> int:
    """The number by which records name the schema."""
    return _SCHEMAS.index(schema) + 1


def prefix(schema: Registered) -> bytes:
    """What stands before a value of the schema in Confluent's wire format."""
    return b"\0" + number(schema).to_bytes(4, "big")


def register(url: str) -> None:
    """Give all the schemas to an empty registry.

    Raises:
        MeasurementError: it gives them other numbers.
    """
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    client = SchemaRegistryClient({"url": url})
    for schema in _SCHEMAS:
        given = client.register_schema(schema.subject, Schema(schema.text, schema.kind))
        if given != number(schema):
            raise MeasurementError(f"the registry calls a schema {given}, not {number(schema)}")

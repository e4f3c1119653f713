"""Values as Redis holds them. It has no types, so the pipeline keeps a word for every column.

| kind | text in a hash | in JSON |
|---|---|---|
| ``boolean`` | ``true``, ``false`` | the same |
| ``integer`` | digits | number |
| ``float`` | shortest that reads back equal; ``NaN``, ``Infinity``, ``-Infinity`` | number; those three as strings |
| ``decimal`` | all its digits, no exponent | number in all its digits |
| ``text`` | UTF-8 | string |
| ``binary`` | the bytes | base64 |
| ``date`` | ``2013-01-31`` | string |
| ``timestamp`` | ``2013-01-31T12:30:15.123456Z``, always UTC | string |
| ``timestamp_ntz`` | ``2013-01-31T12:30:15.123456`` | string |
| ``json`` | arrays, maps, structs: JSON, see :mod:`eo_pipeline.sinks.arrow` | the value itself |

A null is a field that is not there; in JSON it is ``null``.
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.arrow import Kind, json_array, kind_of, refusing


class RedisKind(StrEnum):
    """Kind of a column's values. Widths do not count: nothing of a number is cut off."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    JSON = "json"


#: Kinds with one text for one value whatever the width or scale, so that a key stays a key.
KEY_KINDS = frozenset(RedisKind) - {RedisKind.FLOAT, RedisKind.DECIMAL, RedisKind.JSON}

_KINDS = {
    Kind.BOOLEAN: RedisKind.BOOLEAN,
    Kind.INT8: RedisKind.INTEGER,
    Kind.INT16: RedisKind.INTEGER,
    Kind.INT32: RedisKind.INTEGER,
    Kind.INT64: RedisKind.INTEGER,
    Kind.FLOAT: RedisKind.FLOAT,
    Kind.DOUBLE: RedisKind.FLOAT,
    Kind.DECIMAL: RedisKind.DECIMAL,
    Kind.TEXT: RedisKind.TEXT,
    Kind.BINARY: RedisKind.BINARY,
    Kind.DATE: RedisKind.DATE,
    Kind.TIMESTAMP: RedisKind.TIMESTAMP,
    Kind.TIMESTAMP_NTZ: RedisKind.TIMESTAMP_NTZ,
    Kind.NESTED: RedisKind.JSON,
}


def kinds_of(schema: pa.Schema) -> dict[str, RedisKind]:
    """The kind of every column.

    Raises:
        SchemaChangeError: names a column of a type that has none.
    """
    return {field.name: _kind_of(field) for field in schema}


def _kind_of(field: pa.Field) -> RedisKind:
    kind = kind_of(field.type)
    finer = pa.types.is_timestamp(field.type) and field.type.unit == "ns"
    if kind is not None and not finer:
        return _KINDS[kind]
    raise SchemaChangeError(
        f"column {field.name!r} is {field.type}, which has no form in Redis. Nothing was "
        "written; cast or drop it in the transform."
    )


def hash_texts(name: str, column: pa.Array, kind: RedisKind) -> list[bytes | None]:
    """The values of ``column`` as a hash holds them.

    Raises:
        RefusedError: a value has no text (a date after the year 9999).
    """
    if kind in (RedisKind.INTEGER, RedisKind.BOOLEAN):  # as below, without a Python object for each
        column = column.cast(pa.string())
    if kind is RedisKind.TEXT:
        with refusing(name, "Redis"):
            column.validate(full=True)
    if kind in (RedisKind.INTEGER, RedisKind.BOOLEAN, RedisKind.TEXT, RedisKind.BINARY):
        values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
        return values
    texts = json_texts(name, column)
    if kind is not RedisKind.JSON:  # everything else is a word, in quotes or without
        texts = [None if text is None else text.strip('"') for text in texts]
    return [None if text is None else text.encode() for text in texts]


def json_texts(name: str, column: pa.Array) -> list[str | None]:
    """The values of ``column`` as JSON; ``None`` for null.

    Raises:
        RefusedError: a value has no text (a date after the year 9999, text that is not UTF-8).
    """
    with refusing(name, "Redis"):
        texts: list[str | None] = json_array(column).to_pylist()
    return texts


def from_hash(fields: Mapping[bytes, bytes], kinds: Mapping[str, RedisKind]) -> dict[str, Any]:
    """A row as Python values, from a hash and the pipeline's ``eo_schema``; absent is ``None``."""
    return {name: _from_text(fields.get(name.encode()), kind) for name, kind in kinds.items()}


def from_json(document: bytes, kinds: Mapping[str, RedisKind]) -> dict[str, Any]:
    """A row as Python values, from a JSON string and the pipeline's ``eo_schema``."""
    values = json.loads(document, parse_float=Decimal)
    return {name: _from_value(values.get(name), kind) for name, kind in kinds.items()}


def _from_text(text: bytes | None, kind: RedisKind) -> Any:
    if text is None or kind is RedisKind.BINARY:
        return text
    if kind is RedisKind.JSON:
        return json.loads(text, parse_float=Decimal)
    word = text.decode()
    return word == "true" if kind is RedisKind.BOOLEAN else _from_value(word, kind)


def _from_value(value: Any, kind: RedisKind) -> Any:
    conversions: dict[RedisKind, Callable[[Any], Any]] = {
        RedisKind.INTEGER: int,
        RedisKind.FLOAT: float,
        RedisKind.DECIMAL: Decimal,
        RedisKind.BINARY: base64.b64decode,
        RedisKind.DATE: date.fromisoformat,
        RedisKind.TIMESTAMP: datetime.fromisoformat,
        RedisKind.TIMESTAMP_NTZ: datetime.fromisoformat,
    }
    convert = conversions.get(kind)
    return value if value is None or convert is None else convert(value)

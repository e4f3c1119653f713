"""The fields that a ``value_schema`` names, read without Spark: for catalogs, which show them
before anything has run, and for what is surely wrong with them. What is decoded Spark decides, see
:mod:`eo_pipeline.source.decode`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from eo_pipeline.settings import did_you_mean
from eo_pipeline.source import json_schema

_FIELD = re.compile(
    r"""\s*(?P<name>`(?:[^`]|``)+`|[\w-]+)\s*:?\s+(?P<type>.+?)"""
    r"""(?P<required>\s+NOT\s+NULL)?"""
    r"""(?:\s+COMMENT\s+(?P<comment>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))?\s*""",
    re.IGNORECASE | re.DOTALL,
)
_OPENING, _CLOSING, _QUOTES = "(<", ")>", "'\"`"

#: A field within ``STRUCT<>``, which may have a colon and no blank behind its name.
_PART = re.compile(r"\s*(?P<name>`(?:[^`]|``)+`|[\w-]+)\s*[:\s]\s*(?P<type>.+)", re.DOTALL)
_TYPE = re.compile(r"\s*(?P<word>\w+)\s*(?:<(?P<within>.*)>)?", re.DOTALL)

#: Every word that begins a type in some release of Spark 4.
_WORDS = frozenset(
    {
        *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
        *("FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC"),
        *("STRING", "CHAR", "CHARACTER", "VARCHAR", "BINARY", "VARIANT", "VOID"),
        *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "INTERVAL"),
        *("ARRAY", "MAP", "STRUCT", "GEOMETRY", "GEOGRAPHY"),
    }
)


@dataclass(frozen=True)
class Field:
    """One field of a record; ``type`` as Spark's SQL writes it."""

    name: str
    type: str
    required: bool = False
    comment: str | None = None


def fields_of(schema: str | None) -> tuple[Field, ...]:
    """The fields of a DDL string, of a ``StructType`` in its JSON form or of a JSON Schema; none
    where it cannot be told without Spark.
    """
    if not schema:
        return ()
    if schema.lstrip().startswith("{"):
        return _of_json(schema)
    found = [_FIELD.fullmatch(text) for text in _parted(schema)]
    return tuple(_field(each) for each in found if each) if all(found) else ()


def fault_of(schema: str) -> str | None:
    """What is surely wrong with a DDL string, or with a ``StructType`` in its JSON form; None if
    nothing is, or only Spark knows.
    """
    if schema.lstrip().startswith("{"):
        return _fault_of_json(schema)
    return next(_faults(schema, ""), None)


def _faults(schema: str, outer: str) -> Iterator[str]:
    for text in _parted(schema):
        if re.fullmatch(r"\s*[\w-]+\s*", text):
            yield f"field {outer + text.strip()!r} has no type"
        elif found := _PART.fullmatch(text):
            name = found["name"]
            bare = name[1:-1].replace("``", "`") if name.startswith("`") else name
            yield from _faults_of_type(found["type"], outer + bare)


def _faults_of_type(text: str, field: str) -> Iterator[str]:
    found = _TYPE.match(text)
    if not found:
        return
    word, within = found["word"], found["within"]
    if word.upper() not in _WORDS:
        meant = did_you_mean(word.upper(), sorted(_WORDS))
        yield f"field {field!r} has the type {word}, which Spark lacks;{meant}".rstrip(";")
    elif within and word.upper() == "STRUCT":
        yield from _faults(within, f"{field}.")
    elif within and word.upper() in ("ARRAY", "MAP"):
        for part in _parted(within):
            yield from _faults_of_type(part, field)


def _fault_of_json(schema: str) -> str | None:
    from pyspark.sql.types import StructType  # most schemas are DDL, and told without Spark

    try:
        StructType.fromJson(json.loads(schema))
    except AssertionError:  # what pyspark raises in place of its own error
        return "the JSON form of a StructType has a type that Spark lacks"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it is not the JSON form of a StructType: {error}"
    return None


def _of_json(schema: str) -> tuple[Field, ...]:
    from pyspark.sql.types import StructType  # most schemas are DDL, and told without Spark

    try:
        if json_schema.is_one(schema):
            schema = json_schema.spark_type(json_schema.as_object(schema))
        fields = StructType.fromJson(json.loads(schema)).fields
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(
        Field(
            each.name,
            _in_capitals(each.dataType.simpleString()),
            not each.nullable,
            (each.metadata or {}).get("comment"),
        )
        for each in fields
    )


def _field(found: re.Match[str]) -> Field:
    name, comment = found["name"], found["comment"]
    return Field(
        name[1:-1].replace("``", "`") if name.startswith("`") else name,
        _in_capitals(" ".join(found["type"].split())),
        found["required"] is not None,
        re.sub(r"\\(.)", r"\1", comment[1:-1]) if comment else None,
    )


def _in_capitals(type_name: str) -> str:
    """But for what has names of fields in it."""
    return type_name if "<" in type_name else type_name.upper()


def _parted(schema: str) -> Iterator[str]:
    """What stands between the commas that stand in no type and in no quotes."""
    depth, quote, start = 0, "", 0
    for at, character in enumerate(schema):
        if quote:
            escaped = schema[at - 1] == "\\" and quote != "`"
            quote = "" if character == quote and not escaped else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING or character in _CLOSING:
            depth += 1 if character in _OPENING else -1
        elif character == "," and not depth:
            yield schema[start:at]
            start = at + 1
    yield schema[start:]

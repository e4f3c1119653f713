"""Fields of a ``value_schema``, parsed without Spark.

Catalogs show them as columns before the first run, and validation reports definite errors. Decoding
uses Spark's own parser, see :mod:`eo_pipeline.batch.spark_schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eo_pipeline.config.settings import did_you_mean
from eo_pipeline.formats import json_schema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_FIELD = re.compile(
    r"""\s*(?P<name>`(?:[^`]|``)+`|[\w-]+)\s*:?\s+(?P<type>.+?)"""
    r"""(?P<required>\s+NOT\s+NULL)?"""
    r"""(?:\s+COMMENT\s+(?P<comment>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))?\s*""",
    re.IGNORECASE | re.DOTALL,
)
_OPENING, _CLOSING, _QUOTES = "(<", ")>", "'\"`"

#: A field within ``STRUCT<>``: a colon may replace the blank after its name.
_PART = re.compile(r"\s*(?P<name>`(?:[^`]|``)+`|[\w-]+)\s*[:\s]\s*(?P<type>.+)", re.DOTALL)
_TYPE = re.compile(
    r"\s*(?P<word>\w+)\s*(?:\((?P<size>[\d\s,]*)\))?(?:<(?P<within>.*)>)?", re.DOTALL
)

#: Every word that begins a type in a release of Spark 4.
_WORDS = frozenset(
    {
        *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
        *("FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC"),
        *("STRING", "CHAR", "CHARACTER", "VARCHAR", "BINARY", "VARIANT", "VOID"),
        *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "INTERVAL"),
        *("ARRAY", "MAP", "STRUCT", "GEOMETRY", "GEOGRAPHY"),
    }
)

_DECIMALS = frozenset({"DECIMAL", "DEC", "NUMERIC"})
_DIGITS_MAX = 38

#: Types of table columns alone: Spark neither cuts nor pads values that it reads.
_SIZED = frozenset({"CHAR", "CHARACTER", "VARCHAR"})


@dataclass(frozen=True)
class Field:
    """A field of a record; ``type`` in Spark SQL."""

    name: str
    type: str
    required: bool = False
    comment: str | None = None


def fields_of(schema: str | None) -> tuple[Field, ...]:
    """Return the fields of a DDL string, of the JSON form of a ``StructType`` or of a JSON Schema;
    none if only Spark can parse it.
    """
    if not schema:
        return ()
    if schema.lstrip().startswith("{"):
        return _of_json(schema)
    matches = [_FIELD.fullmatch(text) for text in _split(schema)]
    return tuple(_field(match) for match in matches if match) if all(matches) else ()


def fault_of(schema: str) -> str | None:
    """Return a definite error of a DDL string, or of the JSON form of a ``StructType``; None if
    there is none, or only Spark can find it.
    """
    if schema.lstrip().startswith("{"):
        return _fault_of_json(schema)
    return next(_faults(schema, ""), None)


def _faults(schema: str, outer: str) -> Iterator[str]:
    seen: dict[str, str] = {}
    for text in _split(schema):
        if re.fullmatch(r"\s*[\w-]+\s*", text):
            yield f"field {outer + text.strip()!r} has no type"
        elif match := _PART.fullmatch(text):
            name = _unquoted(match["name"])
            first = seen.setdefault(name.lower(), name)
            if first is not name:
                how = "is named twice" if first == name else f"differs from {first} only in case"
                yield f"field {outer + name!r} {how}"
            yield from _faults_of_type(match["type"], outer + name)


def _faults_of_type(text: str, field: str) -> Iterator[str]:
    match = _TYPE.match(text)
    if not match:
        return
    word, within = match["word"].upper(), match["within"]
    if word not in _WORDS:
        hint = did_you_mean(word, sorted(_WORDS))
        yield f"field {field!r} has the type {match['word']}, which Spark lacks;{hint}".rstrip(";")
    elif word in _SIZED:
        yield f"field {field!r} has the type {match[0].strip()}, and a record's text is a STRING"
    elif word in _DECIMALS and (fault := _fault_of_digits(match["size"] or "")):
        yield f"field {field!r} has the type {match[0].strip()}: {fault}"
    elif within and word == "STRUCT":
        yield from _faults(within, f"{field}." if field else "")
    elif within and word in ("ARRAY", "MAP"):
        parts = [*_split(within)]
        if word == "MAP" and not parts[0].strip().upper().startswith("STRING"):
            yield f"field {field!r} has keys of the type {parts[0].strip()}; JSON's are STRING"
        for part in parts:
            yield from _faults_of_type(part, field)


def _fault_of_digits(size: str) -> str | None:
    digits, *scale = [int(number) for number in size.split(",") if number.strip()] or [10]
    if digits > _DIGITS_MAX:
        return f"Spark has {_DIGITS_MAX} digits at most"
    return "it has more decimal places than digits" if scale and scale[0] > digits else None


def _fault_of_json(schema: str) -> str | None:
    from pyspark.sql.types import StructType  # here: most schemas are DDL and need no Spark

    try:
        kind = StructType.fromJson(json.loads(schema))
    except AssertionError:  # pyspark asserts in place of raising its own error
        return "the JSON form of a StructType has a type that Spark lacks"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it is not the JSON form of a StructType: {error}"
    return next(_faults_of_type(_in_ddl(kind), ""), None)


def _in_ddl(kind: DataType) -> str:
    """Return a type as DDL, with quoted names."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        fields = (f"`{f.name.replace('`', '``')}`: {_in_ddl(f.dataType)}" for f in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_in_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_in_ddl(kind.keyType)}, {_in_ddl(kind.valueType)}>"
    return kind.simpleString().upper()


def _of_json(schema: str) -> tuple[Field, ...]:
    from pyspark.sql.types import StructType  # here: most schemas are DDL and need no Spark

    try:
        if json_schema.is_one(schema):
            schema = json_schema.spark_type(json_schema.JsonSchema().as_record(schema))
        fields = StructType.fromJson(json.loads(schema)).fields
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(
        Field(
            field.name,
            _in_capitals(field.dataType.simpleString()),
            not field.nullable,
            (field.metadata or {}).get("comment"),
        )
        for field in fields
    )


def _field(match: re.Match[str]) -> Field:
    comment = match["comment"]
    return Field(
        _unquoted(match["name"]),
        _in_capitals(" ".join(match["type"].split())),
        match["required"] is not None,
        re.sub(r"\\(.)", r"\1", comment[1:-1]) if comment else None,
    )


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _in_capitals(type_name: str) -> str:
    """Return the type in capitals, unless it contains field names."""
    return type_name if "<" in type_name else type_name.upper()


def _split(schema: str) -> Iterator[str]:
    """Split at the commas outside of types and quotes."""
    depth, quote, start = 0, "", 0
    for i, character in enumerate(schema):
        if quote:
            escaped = schema[i - 1] == "\\" and quote != "`"
            quote = "" if character == quote and not escaped else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING or character in _CLOSING:
            depth += 1 if character in _OPENING else -1
        elif character == "," and not depth:
            yield schema[start:i]
            start = i + 1
    yield schema[start:]

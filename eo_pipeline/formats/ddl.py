"""Fields of a ``value_schema``, parsed without Spark.

Catalogs use them to show columns before the first run, and validation to report definite errors.
Spark alone decides how records are decoded, see :mod:`eo_pipeline.batch.decode`.
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

#: A field within ``STRUCT<>``, which may have a colon and no blank behind its name.
_PART = re.compile(r"\s*(?P<name>`(?:[^`]|``)+`|[\w-]+)\s*[:\s]\s*(?P<type>.+)", re.DOTALL)
_TYPE = re.compile(
    r"\s*(?P<word>\w+)\s*(?:\((?P<size>[\d\s,]*)\))?(?:<(?P<within>.*)>)?", re.DOTALL
)

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

_DECIMALS = frozenset({"DECIMAL", "DEC", "NUMERIC"})
_DIGITS_MAX = 38

#: Spark has these for columns of tables, and cuts or pads nothing that is read.
_SIZED = frozenset({"CHAR", "CHARACTER", "VARCHAR"})


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
    seen: dict[str, str] = {}
    for text in _parted(schema):
        if re.fullmatch(r"\s*[\w-]+\s*", text):
            yield f"field {outer + text.strip()!r} has no type"
        elif found := _PART.fullmatch(text):
            name = _bare(found["name"])
            first = seen.setdefault(name.lower(), name)
            if first is not name:
                how = "is named twice" if first == name else f"differs from {first} only in case"
                yield f"field {outer + name!r} {how}"
            yield from _faults_of_type(found["type"], outer + name)


def _faults_of_type(text: str, field: str) -> Iterator[str]:
    found = _TYPE.match(text)
    if not found:
        return
    word, within = found["word"].upper(), found["within"]
    if word not in _WORDS:
        meant = did_you_mean(word, sorted(_WORDS))
        yield f"field {field!r} has the type {found['word']}, which Spark lacks;{meant}".rstrip(";")
    elif word in _SIZED:
        yield f"field {field!r} has the type {found[0].strip()}, and a record's text is a STRING"
    elif word in _DECIMALS and (fault := _fault_of_digits(found["size"] or "")):
        yield f"field {field!r} has the type {found[0].strip()}: {fault}"
    elif within and word == "STRUCT":
        yield from _faults(within, f"{field}." if field else "")
    elif within and word in ("ARRAY", "MAP"):
        parts = [*_parted(within)]
        if word == "MAP" and not parts[0].strip().upper().startswith("STRING"):
            yield f"field {field!r} has keys of the type {parts[0].strip()}; JSON's are STRING"
        for part in parts:
            yield from _faults_of_type(part, field)


def _fault_of_digits(size: str) -> str | None:
    digits, *places = [int(each) for each in size.split(",") if each.strip()] or [10]
    if digits > _DIGITS_MAX:
        return f"Spark has {_DIGITS_MAX} digits at most"
    return "it has more decimal places than digits" if places and places[0] > digits else None


def _fault_of_json(schema: str) -> str | None:
    from pyspark.sql.types import StructType  # most schemas are DDL, and told without Spark

    try:
        kind = StructType.fromJson(json.loads(schema))
    except AssertionError:  # what pyspark raises in place of its own error
        return "the JSON form of a StructType has a type that Spark lacks"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it is not the JSON form of a StructType: {error}"
    return next(_faults_of_type(_in_ddl(kind), ""), None)


def _in_ddl(kind: DataType) -> str:
    """A type as DDL has it, with its names in quotes."""
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
    comment = found["comment"]
    return Field(
        _bare(found["name"]),
        _in_capitals(" ".join(found["type"].split())),
        found["required"] is not None,
        re.sub(r"\\(.)", r"\1", comment[1:-1]) if comment else None,
    )


def _bare(name: str) -> str:
    """Without quotes."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


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

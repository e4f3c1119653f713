"""Columns as Avro: the derived schema, and whether an existing schema accepts the columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.columns import Unfit

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

#: By the names that Spark gives its types.
_SCALARS: Mapping[str, Any] = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}

#: What of a schema that somebody wrote takes such a value too, as Spark writes it.
_ALSO: Mapping[str, tuple[Any, ...]] = {
    "timestamp": ({"type": "long", "logicalType": "timestamp-millis"},),
    "timestamp_ntz": ({"type": "long", "logicalType": "local-timestamp-millis"},),
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_NAME = re.compile(r"[^A-Za-z0-9_]")


class Branch(NamedTuple):
    """A schema without its null, and whether it had one."""

    schema: Any
    takes_null: bool


def record_name(topic: str, part: str) -> str:
    """A record's full name for the ``part`` (``Key`` or ``Value``) of a topic's records."""
    name = _NO_NAME.sub("_", topic)
    return f"{name if _NAME.fullmatch(name) else f'_{name}'}.{part}"


def derived(data_type: DataType, name: str, path: tuple[str, ...] = ()) -> Any:
    """The schema of values of ``data_type`` that are never null; ``name`` is a record's full name.

    Raises:
        SchemaChangeError: Avro has nothing for a column's type or name.
    """
    from pyspark.sql import types as T

    if isinstance(data_type, T.StructType):
        return {
            "type": "record",
            "name": _full(name, path),
            "fields": _fields(data_type, name, path),
        }
    if isinstance(data_type, T.ArrayType):
        items = derived(data_type.elementType, name, (*path, "item"))
        return {"type": "array", "items": _or_null(items, nullable=data_type.containsNull)}
    if isinstance(data_type, T.MapType) and isinstance(data_type.keyType, T.StringType):
        values = derived(data_type.valueType, name, (*path, "value"))
        return {"type": "map", "values": _or_null(values, nullable=data_type.valueContainsNull)}
    if isinstance(data_type, T.DecimalType):
        digits = {"precision": data_type.precision, "scale": data_type.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if data_type.typeName() not in _SCALARS:
        raise SchemaChangeError(
            f"Avro has no type for {_words_of(path)} ({data_type.simpleString()}). Nothing was "
            "read; cast or drop it in the transform."
        )
    return _SCALARS[data_type.typeName()]


def _full(name: str, path: tuple[str, ...]) -> str:
    """A record below another one is not in a namespace that is also a record's name."""
    namespace, _, part = name.rpartition(".")
    return f"{namespace}.{part.lower()}.{'__'.join(path)}" if path else name


def _fields(struct: Any, name: str, path: tuple[str, ...]) -> list[dict[str, Any]]:
    fields = []
    for field in struct:
        at = (*path, field.name)
        if not _NAME.fullmatch(field.name):
            raise SchemaChangeError(
                f"{'.'.join(at)!r} is no name that Avro has: letters, digits and _ only. Nothing "
                "was read; rename the column in the transform."
            )
        kind = _or_null(derived(field.dataType, name, at), nullable=field.nullable)
        default = {"default": None} if field.nullable else {}
        fields.append({"name": field.name, "type": kind, **default})
    return fields


def _or_null(schema: Any, *, nullable: bool) -> Any:
    return ["null", schema] if nullable else schema


def branch(schema: Any) -> Branch:
    """``schema`` as Spark writes it: the one type that a union has beside null."""
    if not isinstance(schema, list):
        return Branch(schema, takes_null=False)
    others = [branch for branch in schema if branch != "null"]
    return Branch(others[0] if len(others) == 1 else schema, takes_null="null" in schema)


def misfits(data_type: DataType, schema: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Reasons why values of ``data_type`` cannot be written as ``schema``, which is
    self-contained: every named type stands where it is used. Nulls and symbols are judged row by
    row.
    """
    from pyspark.sql import types as T

    kind = branch(schema).schema
    named = kind.get("type") if isinstance(kind, dict) else kind
    if isinstance(kind, list):
        yield f"{_words_of(path)} is a union of several types there"
    elif isinstance(data_type, T.StructType) and named == "record":
        yield from _field_misfits(data_type, kind, path)
    elif isinstance(data_type, T.ArrayType) and named == "array":
        yield from misfits(data_type.elementType, kind["items"], (*path, "item"))
    elif isinstance(data_type, T.MapType) and named == "map":
        yield from misfits(data_type.valueType, kind["values"], (*path, "value"))
    elif not _takes(kind, data_type):
        yield f"{_words_of(path)} is {data_type.simpleString()}, and {_words(kind)} there"


def _field_misfits(struct: Any, record: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    there = {field["name"]: field["type"] for field in record["fields"]}
    for field in struct:
        at = (*path, field.name)
        if field.name not in there:
            yield f"it has no field {'.'.join(at)}"
        else:
            yield from misfits(field.dataType, there[field.name], at)
    for name in sorted(there.keys() - set(struct.names)):
        if not branch(there[name]).takes_null:
            yield f"no column is there for its field {'.'.join((*path, name))}, which is never null"


def _takes(kind: Any, data_type: DataType) -> bool:
    from pyspark.sql import types as T

    if isinstance(kind, dict) and kind["type"] == "enum":
        return isinstance(data_type, T.StringType)
    native = _own(data_type)
    return native is not None and _bare(kind) in (native, *_ALSO.get(data_type.typeName(), ()))


def _own(data_type: DataType) -> Any:
    try:
        return derived(data_type, "")
    except SchemaChangeError:
        return None


def _bare(kind: Any) -> Any:
    """Without what decides nothing about values: names, documentation, marks for languages."""
    if not isinstance(kind, dict):
        return kind
    if "logicalType" not in kind:
        return kind["type"]
    if kind["logicalType"] == "decimal":  # a scale that is not said is 0
        digits = {"precision": kind["precision"], "scale": kind.get("scale", 0)}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    return {name: kind[name] for name in ("type", "logicalType")}


def _words(kind: Any) -> str:
    bare = _bare(kind)
    if not isinstance(bare, dict):
        return str(bare)
    digits = f"({bare['precision']},{bare['scale']})" if "precision" in bare else ""
    return f"{bare['logicalType']}{digits}"


def _words_of(path: tuple[str, ...]) -> str:
    return ".".join(path) or "the column"


def unfit(value: Column, data_type: DataType, schema: Any) -> Iterator[Unfit]:
    """Conditions of a ``value`` without :func:`misfits` that ``schema`` does not take."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    kind, takes_null = branch(schema)
    if not takes_null:
        yield Unfit(value.isNull(), "null, which the registered schema does not take")
    if isinstance(data_type, T.StructType):
        types = {field["name"]: field["type"] for field in kind["fields"]}
        for field in data_type:
            inner = value.getField(field.name)
            for fault in unfit(inner, field.dataType, types[field.name]):
                yield Unfit(value.isNotNull() & fault.condition, f"{fault.reason} ({field.name})")
    elif isinstance(data_type, T.ArrayType):
        yield from _unfit_elements(value, data_type.elementType, kind["items"])
    elif isinstance(data_type, T.MapType):
        yield from _unfit_elements(F.map_values(value), data_type.valueType, kind["values"])
    elif isinstance(kind, dict) and kind["type"] == "enum":
        stranger = value.isNotNull() & ~value.isin(*kind["symbols"])
        yield Unfit(stranger, "a text that is no symbol of the registered schema's enum")


def _unfit_elements(values: Column, data_type: DataType, schema: Any) -> Iterator[Unfit]:
    from pyspark.sql import functions as F

    reasons = [fault.reason for fault in unfit(F.lit(None), data_type, schema)]
    if reasons:

        def is_unfit(value: Column) -> Column:
            conditions = (
                F.coalesce(u.condition, F.lit(False)) for u in unfit(value, data_type, schema)
            )
            return reduce(lambda one, other: one | other, conditions)

        yield Unfit(F.exists(values, is_unfit), " or ".join(reasons))

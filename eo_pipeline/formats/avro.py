"""Avro schemas as JSON: conversion to columns, and comparison of two schemas. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from eo_pipeline._lazy import library
from eo_pipeline.formats.base import SchemaKind
from eo_pipeline.formats.schema_diff import ARRAY, MAP, STRUCT, Shape
from eo_pipeline.ledger.schemas import canonical

#: Field added to the reader's schema with the default true: null in a record that could not be
#: decoded, and in no other. Without it a record of nulls would look like one of those.
OK_FIELD = "_eo_ok"

_TAKEN = frozenset({OK_FIELD, "_kafka"})
_PRIMITIVE = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"},
)
_PLAIN = {"type": "record", "name": "PlainKey", "namespace": "eo"}
_RECORD = ("record", "error")
_NAMED = (*_RECORD, "enum", "fixed")
_DECIMAL_DIGITS_MAX = 38

_NAMES = {"long": "bigint", "bytes": "binary", "fixed": "binary"}
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}

#: Unions that are one column of the wider type.
_MERGED = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


class Avro(SchemaKind):
    """Avro schemas."""

    def fault_of(self, text: str) -> str | None:
        try:
            schema = json.loads(text)
        except ValueError as error:
            return f"is not JSON: {error}"
        if (
            not isinstance(schema, dict)
            or schema.get("type") != "record"
            or not schema.get("fields")
        ):
            return "is not a record with fields, which would be the table's columns"
        try:
            if taken := _TAKEN.intersection(self.field_names(text)):
                return f"has a field {min(taken)}, a name that is taken"
            schema = _qualified(schema, "")
            defined = {name for name, _ in _named_types(schema)}
            for path, reason in _faults(schema, (), frozenset()):
                return f"has a field {'.'.join(path)} that {reason}"
            if undefined := {*_names_used(schema)} - defined - _PRIMITIVE:
                return f"names a type {min(undefined)} that it does not define"
            if array := weightless(text):
                return (
                    f"has an array {array} whose items take no bytes, so that ten bytes hold any "
                    "number"
                )
        except (KeyError, TypeError, AttributeError) as error:
            return f"is no Avro schema: {type(error).__name__} {error}"
        return None

    def field_names(self, text: str) -> list[str]:
        return [field["name"] for field in json.loads(text)["fields"]]

    def left_out(self, writer: str, reader: str) -> list[str]:
        written, read = (_qualified(json.loads(text), "") for text in (writer, reader))
        types = dict(_named_types(written)), dict(_named_types(read))
        return sorted(set(_left_out(written, read, *types, ())))

    def shape_of(self, text: str) -> Shape:
        """Return the columns. A type within itself, which a writer may have, is followed once."""
        schema = _qualified(json.loads(text), "")
        return _shape(schema, dict(_named_types(schema)))

    def evolve_except(self, before: str, now: str, unchanged: Collection[str]) -> str:
        """Merge two schemas. A kept enum has no default: a value that it lacks is an error.

        Raises:
            ValueError: both define a type of one name differently, and both types are needed.
        """
        old, new = (_qualified(json.loads(text), "") for text in (before, now))
        types = dict(_named_types(old)), dict(_named_types(new))
        was = {field["name"]: field for field in old["fields"]}
        fields = []
        defined: dict[str, Any] = {}
        present = [field["name"] for field in new["fields"]]
        dropped = [name for name in was if name in unchanged and name not in present]
        for field in [*new["fields"], *(was[name] for name in dropped)]:
            kept = field["name"] in unchanged
            if kept and field["name"] not in was:
                continue
            chosen, named = (was[field["name"]], types[0]) if kept else (field, types[1])
            kind = _written_out(chosen["type"], named, defined, strict=kept)
            fields.append({**chosen, "type": kind})
        return json.dumps({**new, "fields": fields})

    def without(self, text: str, names: Collection[str]) -> str:
        """Return the record without the fields ``names``."""
        schema = _qualified(json.loads(text), "")
        nulls = {f["name"]: {"name": f["name"], "type": "null"} for f in schema["fields"]}
        kept = [name for name in nulls if name not in names]
        empty = json.dumps({**schema, "fields": list(nulls.values())})
        record = json.loads(self.evolve_except(text, empty, kept))
        return json.dumps({**record, "fields": [f for f in record["fields"] if f["name"] in kept]})

    def self_contained(self, text: str, references: Mapping[str, str]) -> str:
        if not references:
            return canonical(text)
        named = {name: json.loads(reference) for name, reference in references.items()}
        avro = library("confluent_kafka.schema_registry.common.avro")
        return canonical(json.dumps(_without_hints(avro.parse_schema_with_repo(text, named))))

    def as_record(self, text: str) -> str:
        """Return a record whose values have the same bytes."""
        try:
            schema = text if text in _PRIMITIVE else json.loads(text)
        except ValueError:
            return text  # fault_of reports it
        if isinstance(schema, dict) and schema.get("type") == "record":
            return text
        return json.dumps({**_PLAIN, "fields": [{"name": "key", "type": schema}]})

    def is_plain(self, text: str) -> bool:
        schema = json.loads(text)
        return all(schema.get(name) == value for name, value in _PLAIN.items())


def with_ok_field(text: str) -> str:
    """Return the record ``text`` with :data:`OK_FIELD`."""
    schema = json.loads(text)
    ok = {"name": OK_FIELD, "type": "boolean", "default": True}
    return json.dumps({**schema, "fields": [*schema["fields"], ok]})


def weightless(text: str) -> str | None:
    """Find an array whose items take no bytes: ten bytes of a record may hold 2**63 of them.

    Returns:
        The path of its field; None if there is none.
    """
    schema = _qualified(json.loads(text), "")
    named = dict(_named_types(schema))
    paths = (path for path, items in _arrays(schema, ()) if _is_weightless(items, named))
    return next((".".join(path) for path in paths), None)


def _without_hints(schema: Any) -> Any:
    """Remove the marks that fastavro leaves in a schema it has parsed."""
    if isinstance(schema, list):
        return [_without_hints(member) for member in schema]
    if isinstance(schema, dict):
        return {k: _without_hints(v) for k, v in schema.items() if not k.startswith("__fastavro")}
    return schema


def _qualified(schema: Any, namespace: str) -> Any:
    """Return the schema with full names: a namespace is inherited by the types within."""
    if isinstance(schema, list):
        return [_qualified(member, namespace) for member in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVE else _full_name(schema, namespace)
    kind = schema["type"]
    if kind not in (*_NAMED, "array", "map"):
        return {**schema, "type": _qualified(kind, namespace)}
    result = dict(schema)
    if kind in _NAMED:
        result["name"] = _full_name(schema["name"], schema.get("namespace", namespace))
        namespace = result["name"].rpartition(".")[0]
    for inner in schema.keys() & {"items", "values"}:
        result[inner] = _qualified(schema[inner], namespace)
    if kind in _RECORD:
        result["fields"] = [
            {**field, "type": _qualified(field["type"], namespace)} for field in schema["fields"]
        ]
    return result


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _parts(schema: Any) -> list[tuple[str, Any]]:
    """Return the schemas directly within, each with its field's name, if any."""
    if isinstance(schema, list):
        return [("", member) for member in schema]
    if isinstance(schema, str):
        return []
    fields = [(field["name"], field["type"]) for field in schema.get("fields", ())]
    inner = [("", schema[key]) for key in ("items", "values") if key in schema]
    return [*fields, *inner, *([] if isinstance(schema["type"], str) else [("", schema["type"])])]


def _faults(
    schema: Any, path: tuple[str, ...], around: frozenset[str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each type that cannot become a column, and the reason. ``around``: names
    of the enclosing records.
    """
    if isinstance(schema, str) and schema in around:
        yield path, f"refers to the record {schema} that it is in: no table has such a column"
    if schema == "null" or (isinstance(schema, list) and set(map(str, schema)) == {"null"}):
        yield path, "is never anything but null"
    if isinstance(schema, dict):
        if schema.get("logicalType") == "decimal" and schema["precision"] > _DECIMAL_DIGITS_MAX:
            yield path, f"is a decimal of more than {_DECIMAL_DIGITS_MAX} digits"
        if schema["type"] in _RECORD:
            around |= {schema["name"]}
            lower: dict[str, str] = {}
            for name in (field["name"] for field in schema["fields"]):
                if (first := lower.setdefault(name.lower(), name)) != name:
                    yield (*path, name), f"differs from {first} only in case"
    for name, part in _parts(schema):
        if not (isinstance(schema, list) and part == "null"):
            yield from _faults(part, (*path, name) if name else path, around)


def _arrays(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield path and item type of each array."""
    if isinstance(schema, dict) and schema["type"] == "array":
        yield path, schema["items"]
    for name, part in _parts(schema):
        yield from _arrays(part, (*path, name) if name else path)


def _is_weightless(schema: Any, named: Mapping[str, Any]) -> bool:
    """Return whether all values take no bytes."""
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _is_weightless(named[schema], named))
    if isinstance(schema, list):
        return False
    if schema["type"] in _RECORD:
        return all(_is_weightless(field["type"], named) for field in schema["fields"])
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    if schema["type"] in ("array", "map", "enum"):
        return False
    return _is_weightless(schema["type"], named)


def _named_types(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and definition of each named type in ``schema``."""
    if isinstance(schema, dict) and "name" in schema:
        yield schema["name"], schema
    for _, part in _parts(schema):
        yield from _named_types(part)


def _names_used(schema: Any) -> Iterator[str]:
    """Yield each reference to a type by name."""
    if isinstance(schema, str):
        yield schema
    for _, part in _parts(schema):
        yield from _names_used(part)


def _left_out(
    writer: Any,
    reader: Any,
    writer_types: Mapping[str, Any],
    reader_types: Mapping[str, Any],
    path: tuple[str, ...],
) -> Iterator[str]:
    """Yield the paths of :meth:`Avro.left_out`; types are by their names."""
    candidates = _records(reader, reader_types)
    for record in _records(writer, writer_types):
        counterpart = _counterpart(record, candidates)
        if counterpart is None:
            continue
        fields = {
            name: f for f in counterpart["fields"] for name in (f["name"], *f.get("aliases", ()))
        }
        for field in record["fields"]:
            below = (*path, field["name"])
            if field["name"] in fields:
                kinds = field["type"], fields[field["name"]]["type"]
                yield from _left_out(*kinds, writer_types, reader_types, below)
            else:
                yield ".".join(below)


def _records(schema: Any, named: Mapping[str, Any]) -> list[Any]:
    """Return the records that a value of ``schema`` is, or has in its arrays and maps."""
    if isinstance(schema, str):
        return _records(named[schema], named) if schema in named else []
    if isinstance(schema, dict) and "fields" in schema:
        return [schema]
    return [record for _, part in _parts(schema) for record in _records(part, named)]


def _counterpart(record: Mapping[str, Any], candidates: list[Any]) -> Any:
    """Return the candidate of the same name; a single candidate matches under any name."""
    if len(candidates) == 1:
        return candidates[0]
    return next((other for other in candidates if other["name"] == record["name"]), None)


def _shape(schema: Any, named: Mapping[str, Any]) -> Shape:
    if isinstance(schema, str) and schema not in _PRIMITIVE:
        if schema not in named:
            return Shape(schema)
        name, schema = schema, named[schema]
        named = {other: kind for other, kind in named.items() if other != name}
    if isinstance(schema, list):
        return _of_union([member for member in schema if member != "null"], named)
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return _shape(kind, named)
    if kind in _RECORD:
        parts = [(field["name"], _shape(field["type"], named)) for field in schema["fields"]]
        return Shape(STRUCT, tuple(parts))
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return Shape(ARRAY if kind == "array" else MAP, (("", _shape(schema[inner], named)),))
    if kind == "enum":
        return Shape("string", symbols=tuple(schema["symbols"]))
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return Shape(f"decimal({schema['precision']},{schema.get('scale', 0)})")
    if isinstance(schema, dict) and kind not in _PRIMITIVE | {"fixed"}:
        return _shape(kind, named)
    return Shape(_LOGICAL.get((kind, logical or ""), _NAMES.get(kind, kind)))


def _of_union(members: list[Any], named: Mapping[str, Any]) -> Shape:
    scalars = frozenset(member for member in members if isinstance(member, str))
    if len(scalars) == len(members) and scalars in _MERGED:
        return _shape(_MERGED[scalars], named)
    if len(members) == 1:
        return _shape(members[0], named)
    parts = [(f"member{n}", _shape(member, named)) for n, member in enumerate(members)]
    return Shape(STRUCT, tuple(parts))


def _written_out(
    schema: Any, named: Mapping[str, Any], defined: dict[str, Any], *, strict: bool
) -> Any:
    """Return ``schema`` with each named type defined at its first use, and by name from then on.
    ``strict``: enums lose their defaults.
    """
    if isinstance(schema, list):
        return [_written_out(member, named, defined, strict=strict) for member in schema]
    if isinstance(schema, str):
        if schema in _PRIMITIVE:
            return schema
        schema = named[schema]
    result = dict(schema)
    if strict and result["type"] == "enum":
        result.pop("default", None)
    if "name" in result:
        if result["name"] in defined:
            if defined[result["name"]] != schema:
                raise ValueError(f"the type {result['name']}")
            return result["name"]
        defined[result["name"]] = schema
    for inner in result.keys() & {"items", "values"}:
        result[inner] = _written_out(result[inner], named, defined, strict=strict)
    if "fields" in result:
        result["fields"] = [
            {**field, "type": _written_out(field["type"], named, defined, strict=strict)}
            for field in result["fields"]
        ]
    elif not isinstance(result["type"], str):
        result["type"] = _written_out(result["type"], named, defined, strict=strict)
    return result

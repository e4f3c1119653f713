"""Avro schemas as JSON: conversion to columns, and differences between two schemas. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from eo_pipeline._lazy import library
from eo_pipeline.formats.schema_diff import ARRAY, MAP, STRUCT, Shape
from eo_pipeline.ledger.schemas import canonical

#: Added to the reader's schema with the default true: null in a record that could not be read, and
#: in no other. Without it a record of nulls only would look the same.
OK_FIELD = "_eo_ok"

_TAKEN = frozenset({OK_FIELD, "_kafka"})
PRIMITIVE = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"},
)
_PLAIN = {"type": "record", "name": "PlainKey", "namespace": "eo"}
RECORD = ("record", "error")
_NAMED = (*RECORD, "enum", "fixed")
_DECIMAL_DIGITS_MAX = 38


def as_record(text: str) -> str:
    """``text``; or, of what is no record, one with that as its only field ``key``. Both have the
    same bytes.
    """
    try:
        schema = text if text in PRIMITIVE else json.loads(text)
    except ValueError:
        return text  # fault_of tells
    if isinstance(schema, dict) and schema.get("type") == "record":
        return text
    return json.dumps({**_PLAIN, "fields": [{"name": "key", "type": schema}]})


def is_plain(text: str) -> bool:
    """Whether :func:`as_record` made it."""
    schema = json.loads(text)
    return all(schema.get(name) == value for name, value in _PLAIN.items())


def fault_of(text: str) -> str | None:
    """Why the fields of ``text`` cannot become columns; None if they can."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        return f"is not JSON: {error}"
    if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
        return "is not a record with fields, which would be the table's columns"
    try:
        if taken := _TAKEN.intersection(field_names(text)):
            return f"has a field {min(taken)}, a name that is taken"
        whole = qualified(schema, "")
        defined = {name for name, _ in named_types(whole)}
        for path, reason in _faults(whole, (), frozenset()):
            return f"has a field {'.'.join(path)} that {reason}"
        if unknown := {*_names_used(whole)} - defined - PRIMITIVE:
            return f"names a type {min(unknown)} that it does not define"
        if array := weightless(text):
            return (
                f"has an array {array} whose items take no bytes, so that ten bytes hold any number"
            )
    except (KeyError, TypeError, AttributeError) as error:
        return f"is no Avro schema: {type(error).__name__} {error}"
    return None


def field_names(text: str) -> list[str]:
    """The names of a record's fields, in order."""
    return [field["name"] for field in json.loads(text)["fields"]]


def with_ok_field(text: str) -> str:
    """``text`` with :data:`OK_FIELD`."""
    schema = json.loads(text)
    ok = {"name": OK_FIELD, "type": "boolean", "default": True}
    return json.dumps({**schema, "fields": [*schema["fields"], ok]})


def left_out(writer: str, reader: str) -> list[str]:
    """The paths of the fields that ``writer`` has and ``reader``, of which :func:`fault_of` finds
    nothing, does not read.
    """
    written, read = (qualified(json.loads(text), "") for text in (writer, reader))
    named = dict(named_types(written)), dict(named_types(read))
    return sorted(set(_left_out(written, read, *named, ())))


def self_contained(text: str, references: Mapping[str, str]) -> str:
    """``text`` with the schemas that it refers to by name written out in it."""
    if not references:
        return canonical(text)
    named = {name: json.loads(each) for name, each in references.items()}
    avro = library("confluent_kafka.schema_registry.common.avro")
    return canonical(json.dumps(_without_hints(avro.parse_schema_with_repo(text, named))))


def _without_hints(schema: Any) -> Any:
    """Without the marks that fastavro leaves in a schema it has parsed."""
    if isinstance(schema, list):
        return [_without_hints(each) for each in schema]
    if isinstance(schema, dict):
        return {k: _without_hints(v) for k, v in schema.items() if not k.startswith("__fastavro")}
    return schema


def qualified(schema: Any, namespace: str) -> Any:
    """The same with full names everywhere: inside a named type its namespace need not be said."""
    if isinstance(schema, list):
        return [qualified(each, namespace) for each in schema]
    if isinstance(schema, str):
        return schema if schema in PRIMITIVE else _full_name(schema, namespace)
    kind = schema["type"]
    if kind not in (*_NAMED, "array", "map"):
        return {**schema, "type": qualified(kind, namespace)}
    made = dict(schema)
    if kind in _NAMED:
        made["name"] = _full_name(schema["name"], schema.get("namespace", namespace))
        namespace = made["name"].rpartition(".")[0]
    for inner in schema.keys() & {"items", "values"}:
        made[inner] = qualified(schema[inner], namespace)
    if kind in RECORD:
        made["fields"] = [
            {**field, "type": qualified(field["type"], namespace)} for field in schema["fields"]
        ]
    return made


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _parts(schema: Any) -> list[tuple[str, Any]]:
    """The schemas directly in one, each with the name of the field that it is of, if any."""
    if isinstance(schema, list):
        return [("", each) for each in schema]
    if isinstance(schema, str):
        return []
    fields = [(field["name"], field["type"]) for field in schema.get("fields", ())]
    inner = [("", schema[each]) for each in ("items", "values") if each in schema]
    return [*fields, *inner, *([] if isinstance(schema["type"], str) else [("", schema["type"])])]


def _faults(
    schema: Any, path: tuple[str, ...], around: frozenset[str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """What cannot become a column, and why; ``around`` are the records that it is in."""
    if isinstance(schema, str) and schema in around:
        yield path, f"refers to the record {schema} that it is in: no table has such a column"
    if schema == "null" or (isinstance(schema, list) and set(map(str, schema)) == {"null"}):
        yield path, "is never anything but null"
    if isinstance(schema, dict):
        if schema.get("logicalType") == "decimal" and schema["precision"] > _DECIMAL_DIGITS_MAX:
            yield path, f"is a decimal of more than {_DECIMAL_DIGITS_MAX} digits"
        if schema["type"] in RECORD:
            around |= {schema["name"]}
            lower: dict[str, str] = {}
            for name in (field["name"] for field in schema["fields"]):
                if (first := lower.setdefault(name.lower(), name)) != name:
                    yield (*path, name), f"differs from {first} only in case"
    for name, part in _parts(schema):
        if not (isinstance(schema, list) and part == "null"):
            yield from _faults(part, (*path, name) if name else path, around)


def weightless(text: str) -> str | None:
    """Find an array whose items take no bytes: ten bytes of a record may hold 2**63 of them.

    Returns:
        The path of its field; None if there is none.
    """
    whole = qualified(json.loads(text), "")
    named = dict(named_types(whole))
    paths = (path for path, items in _arrays(whole, ()) if _is_weightless(items, named))
    return next((".".join(path) for path in paths), None)


def _arrays(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(schema, dict) and schema["type"] == "array":
        yield path, schema["items"]
    for name, part in _parts(schema):
        yield from _arrays(part, (*path, name) if name else path)


def _is_weightless(schema: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _is_weightless(named[schema], named))
    if isinstance(schema, list):
        return False
    if schema["type"] in RECORD:
        return all(_is_weightless(field["type"], named) for field in schema["fields"])
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    if schema["type"] in ("array", "map", "enum"):
        return False
    return _is_weightless(schema["type"], named)


def named_types(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every named type that is defined in ``schema``."""
    if isinstance(schema, dict) and "name" in schema:
        yield schema["name"], schema
    for _, part in _parts(schema):
        yield from named_types(part)


def _names_used(schema: Any) -> Iterator[str]:
    """Whatever is said by a name alone."""
    if isinstance(schema, str):
        yield schema
    for _, part in _parts(schema):
        yield from _names_used(part)


def _left_out(
    writer: Any,
    reader: Any,
    written: Mapping[str, Any],
    read: Mapping[str, Any],
    path: tuple[str, ...],
) -> Iterator[str]:
    """See :func:`left_out`; ``written`` and ``read`` are the named types of either."""
    others = _records(reader, read)
    for record in _records(writer, written):
        other = _of_the_same_name(record, others)
        if other is None:
            continue
        wanted = {name: f for f in other["fields"] for name in (f["name"], *f.get("aliases", ()))}
        for field in record["fields"]:
            below = (*path, field["name"])
            if field["name"] in wanted:
                kinds = field["type"], wanted[field["name"]]["type"]
                yield from _left_out(*kinds, written, read, below)
            else:
                yield ".".join(below)


def _records(schema: Any, named: Mapping[str, Any]) -> list[Any]:
    """The records that a value of ``schema`` is, or has in its arrays and maps."""
    if isinstance(schema, str):
        return _records(named[schema], named) if schema in named else []
    if isinstance(schema, dict) and "fields" in schema:
        return [schema]
    return [found for _, part in _parts(schema) for found in _records(part, named)]


def _of_the_same_name(record: Mapping[str, Any], others: list[Any]) -> Any:
    """Among several records of a union the one of the same name; one alone is meant anyhow."""
    if len(others) == 1:
        return others[0]
    return next((other for other in others if other["name"] == record["name"]), None)


#: With :func:`shape_of` and :func:`partly` all that a kind of schema is asked.
__all__ = ["fault_of", "field_names", "left_out", "partly", "self_contained", "shape_of", "without"]

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


def shape_of(text: str) -> Shape:
    """The columns of a record. A type that is within itself, which no columns can be made of but a
    writer may have, is looked into once.
    """
    schema = qualified(json.loads(text), "")
    return _shape(schema, dict(named_types(schema)))


def _shape(schema: Any, named: Mapping[str, Any]) -> Shape:
    if isinstance(schema, str) and schema not in PRIMITIVE:
        if schema not in named:
            return Shape(schema)
        name, schema = schema, named[schema]
        named = {each: kind for each, kind in named.items() if each != name}
    if isinstance(schema, list):
        return _of_union([each for each in schema if each != "null"], named)
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return _shape(kind, named)
    if kind in RECORD:
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
    if isinstance(schema, dict) and kind not in PRIMITIVE | {"fixed"}:
        return _shape(kind, named)
    return Shape(_LOGICAL.get((kind, logical or ""), _NAMES.get(kind, kind)))


def _of_union(members: list[Any], named: Mapping[str, Any]) -> Shape:
    plain = frozenset(each for each in members if isinstance(each, str))
    if len(plain) == len(members) and plain in _MERGED:
        return _shape(_MERGED[plain], named)
    if len(members) == 1:
        return _shape(members[0], named)
    parts = [(f"member{n}", _shape(each, named)) for n, each in enumerate(members)]
    return Shape(STRUCT, tuple(parts))


def partly(before: str, now: str, as_before: Collection[str]) -> str:
    """The record ``now``, but that the fields ``as_before`` are what they are in ``before``, or are
    not there if they were not. An enum among them has no default: what it lacks is an error.

    Raises:
        ValueError: both define a type of one name in another way, and either is needed.
    """
    old, new = (qualified(json.loads(text), "") for text in (before, now))
    types = dict(named_types(old)), dict(named_types(new))
    was = {field["name"]: field for field in old["fields"]}
    fields = []
    defined: dict[str, Any] = {}
    present = [field["name"] for field in new["fields"]]
    gone = [name for name in was if name in as_before and name not in present]
    for field in [*new["fields"], *(was[name] for name in gone)]:
        kept = field["name"] in as_before
        if kept and field["name"] not in was:
            continue
        chosen, named = (was[field["name"]], types[0]) if kept else (field, types[1])
        kind = _written_out(chosen["type"], named, defined, strict=kept)
        fields.append({**chosen, "type": kind})
    return json.dumps({**new, "fields": fields})


def without(text: str, names: Collection[str]) -> str:
    """The record without some of its fields."""
    schema = qualified(json.loads(text), "")
    gone = {f["name"]: {"name": f["name"], "type": "null"} for f in schema["fields"]}
    nothing = json.dumps({**schema, "fields": list(gone.values())})
    kept = [name for name in gone if name not in names]
    made = json.loads(partly(text, nothing, kept))
    return json.dumps({**made, "fields": [f for f in made["fields"] if f["name"] in kept]})


def _written_out(
    schema: Any, named: Mapping[str, Any], defined: dict[str, Any], *, strict: bool
) -> Any:
    """``schema`` with each named type where it is first met, and by its name from then on."""
    if isinstance(schema, list):
        return [_written_out(each, named, defined, strict=strict) for each in schema]
    if isinstance(schema, str):
        if schema in PRIMITIVE:
            return schema
        schema = named[schema]
    made = dict(schema)
    if strict and made["type"] == "enum":
        made.pop("default", None)
    if "name" in made:
        if made["name"] in defined:
            if defined[made["name"]] != schema:
                raise ValueError(f"the type {made['name']}")
            return made["name"]
        defined[made["name"]] = schema
    for inner in made.keys() & {"items", "values"}:
        made[inner] = _written_out(made[inner], named, defined, strict=strict)
    if "fields" in made:
        made["fields"] = [
            {**each, "type": _written_out(each["type"], named, defined, strict=strict)}
            for each in made["fields"]
        ]
    elif not isinstance(made["type"], str):
        made["type"] = _written_out(made["type"], named, defined, strict=strict)
    return made

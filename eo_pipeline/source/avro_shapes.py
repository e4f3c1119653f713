"""Avro schemas as columns: what each looks like, and one made of two. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from eo_pipeline.source.avro_schema import (
    PRIMITIVE,
    RECORD,
    fault_of,
    field_names,
    left_out,
    named_types,
    qualified,
    self_contained,
)
from eo_pipeline.source.shapes import ARRAY, MAP, STRUCT, Shape

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

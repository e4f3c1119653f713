"""JSON Schemas as texts: conversion to columns, and differences between two schemas. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

from eo_pipeline.formats.schema_diff import ARRAY, MAP, STRUCT, Shape
from eo_pipeline.ledger.schemas import canonical

_TAKEN = frozenset({"_kafka", "_eo_corrupt"})

#: The type of what has no type that a column could have: the JSON text as it stands.
_ANY = Shape("string")
_SCALARS = {"boolean": "boolean", "integer": "bigint", "number": "double", "string": "string"}
_TEXTS = {"date-time": "timestamp", "date": "date"}

#: In the key of a record that is no object: whether :func:`as_object` made one of it.
_PLAIN = "x-plain-key"
_DEFINITIONS = ("$schema", "$id", "$defs", "definitions")

#: Where the schemas that one refers to are kept in it, by the names it has for them.
_BUNDLED = "x-references"


class _UnfitError(ValueError):
    """The text says why."""


def fault_of(text: str) -> str | None:
    """Why the fields of ``text`` cannot become columns; None if they can."""
    try:
        names = field_names(text)
    except _UnfitError as error:
        return str(error)
    except RecursionError:
        return "is nested too deeply"
    if not names:
        return "is not an object with properties, which would be the table's columns"
    if taken := _TAKEN.intersection(names):
        return f"has a field {min(taken)}, a name that is taken"
    return None


def is_one(text: str) -> bool:
    """Whether ``text`` is meant as a JSON Schema, and not as a ``StructType`` in its JSON form or
    as DDL.
    """
    if not text.lstrip().startswith("{"):
        return False
    try:
        found = json.loads(text)
    except ValueError:
        return True  # fault_of tells
    return isinstance(found, dict) and found.get("type") != STRUCT


def as_object(text: str) -> str:
    """``text``; or, of what is no object with properties, one with that as its only property
    ``key``.
    """
    try:
        schema = json.loads(text)
        _struct(text)
    except _UnfitError:
        if isinstance(schema, dict) and _is_scalar(schema):
            kept = {name: schema[name] for name in _DEFINITIONS if name in schema}
            return json.dumps(
                {**kept, _PLAIN: True, "type": "object", "properties": {"key": schema}}
            )
    except ValueError:
        pass  # fault_of tells
    return text


def is_plain(text: str) -> bool:
    """Whether :func:`as_object` made it."""
    return json.loads(text).get(_PLAIN) is True


def field_names(text: str) -> list[str]:
    """The names of the properties, in order."""
    return list(_struct(text).fields)


def spark_type(text: str) -> str:
    """The columns of ``text``, of which :func:`fault_of` finds nothing, as the JSON of Spark's
    ``StructType``.
    """
    return json.dumps(_spark_type(_struct(text)))


def left_out(writer: str, reader: str) -> list[str]:
    """The paths of the properties that ``writer`` has and ``reader``, of which :func:`fault_of`
    finds nothing, does not read.
    """
    return sorted(set(_paths_not_in(_struct(writer), _struct(reader), ())))


def shape_of(text: str) -> Shape:
    """The columns; an enum of texts has its values."""
    return _struct(text)


def partly(before: str, now: str, as_before: Collection[str]) -> str:
    """See :class:`eo_pipeline.formats.kinds.SchemaKind`; the types, and the values of enums, and
    nothing else.
    """
    was, made = _struct(before).fields, _struct(now).fields
    for name in as_before:
        if name in was:
            made[name] = was[name]
        else:
            made.pop(name)
    return json.dumps(_declared(Shape(STRUCT, tuple(made.items()))))


def self_contained(text: str, references: Mapping[str, str]) -> str:
    """``text`` with the schemas that it refers to by name kept in it."""
    if not references:
        return canonical(text)
    named = {name: json.loads(each) for name, each in references.items()}
    return canonical(json.dumps({**json.loads(text), _BUNDLED: named}))


@dataclass(frozen=True)
class _Documents:
    """What ``$ref`` may lead to: the ``root``, and the ``others`` by the names it has for them."""

    root: Any
    others: Mapping[str, Any]

    def found(self, ref: str, base: Any) -> tuple[Any, Any]:
        """The schema, and the document that it is in."""
        where, _, inside = ref.partition("#")
        document = self._document(where, base) if where else base
        schema = document
        for step in filter(None, unquote(inside).split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            place = schema[int(name)] if isinstance(schema, list) else None
            schema = schema.get(name) if isinstance(schema, dict) else place
        if schema is None or (inside and not inside.startswith("/")):
            raise _UnfitError(f"refers to {ref}, which it does not hold")
        return schema, document

    def _document(self, where: str, base: Any) -> Any:
        own = base.get("$id", "") if isinstance(base, dict) else ""
        for name in (where, urljoin(own, where)):
            if name in self.others:
                return self.others[name]
            for each in (self.root, *self.others.values()):
                if isinstance(each, dict) and each.get("$id") == name:
                    return each
        raise _UnfitError(
            f"refers to {where}, which the registry does not name among its references"
        )


def _struct(text: str) -> Shape:
    try:
        root = json.loads(text)
    except ValueError as error:
        raise _UnfitError(f"is not JSON: {error}") from None
    others = root.get(_BUNDLED, {}) if isinstance(root, dict) else {}
    try:
        found = _Types(_Documents(root, others)).of(root, root, (), ())
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise _UnfitError(f"is no JSON Schema: {type(error).__name__} {error}") from None
    if found.type != STRUCT:
        raise _UnfitError("is not an object with properties, which would be the table's columns")
    return found


@dataclass(frozen=True)
class _Types:
    """What becomes of the schemas in ``documents``."""

    documents: _Documents

    def of(self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]) -> Shape:
        """``base`` is the document that ``schema`` is in, ``around`` are those that it is in."""
        if not isinstance(schema, dict):
            return _ANY
        if id(schema) in around:
            raise _UnfitError(
                f"has a field {'.'.join(path)} that refers to the schema that it is in: no table "
                "has such a column"
            )
        around = (*around, id(schema))
        if "$ref" in schema:
            return self.of(*self.documents.found(schema["$ref"], base), path, around)
        if "properties" in schema or "allOf" in schema:
            return self._object(schema, base, path, around)
        for choice in ("oneOf", "anyOf"):
            if choice in schema:
                kinds = [self.of(s, base, path, around) for s in schema[choice] if not _null(s)]
                return _common(kinds)
        kind = schema.get("type", _implied(schema))
        if isinstance(kind, list):
            kinds = [k for k in kind if k != "null"]
            return _common([self.of({**schema, "type": k}, base, path, around) for k in kinds])
        if kind == "array":
            return self._array(schema, base, path, around)
        if kind == "object":
            return self._map(schema, base, path, around)
        if kind == "string":
            return Shape(_TEXTS.get(schema.get("format", ""), "string"), symbols=_symbols(schema))
        return Shape(_SCALARS.get(kind, _ANY.type))

    def _object(
        self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]
    ) -> Shape:
        """Its own properties, and those of ``allOf`` together."""
        fields: dict[str, Shape] = {}
        for each in schema.get("allOf", ()):
            part = self.of(each, base, path, around)
            if part.type != STRUCT:
                return part if len(schema["allOf"]) == 1 and "properties" not in schema else _ANY
            fields |= part.fields
        for name, each in schema.get("properties", {}).items():
            fields[name] = self.of(each, base, (*path, name), around)
        lower: dict[str, str] = {}
        for name in fields:
            if (first := lower.setdefault(name.lower(), name)) != name:
                raise _UnfitError(f"has fields {first} and {name} that differ only in case")
        return Shape(STRUCT, tuple(fields.items())) if fields else _ANY

    def _array(
        self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]
    ) -> Shape:
        item = schema.get("items")
        element = self.of(item, base, path, around) if "prefixItems" not in schema else _ANY
        return Shape(ARRAY, (("", element),))

    def _map(self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]) -> Shape:
        """An object without properties of its own: whatever its names, all are of one type; or
        nothing is known of it.
        """
        more = schema.get("additionalProperties")
        if not isinstance(more, dict) or "patternProperties" in schema:
            return _ANY
        return Shape(MAP, (("", self.of(more, base, path, around)),))


def _null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """Those of an enum, or the one of a ``const``."""
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))


def _implied(schema: Mapping[str, Any]) -> Any:
    """The type of what says its values only."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    found = {kinds.get(type(value)) for value in _values(schema) if value is not None}
    return found.pop() if len(found) == 1 else None


def _symbols(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts that there may be; none if there may be any."""
    if schema.get("format") in _TEXTS:
        return ()
    return tuple(each for each in _values(schema) if isinstance(each, str))


def _common(kinds: list[Shape]) -> Shape:
    """The one type of all; the wider number; all values of several enums; otherwise the text."""
    different = list(dict.fromkeys(kinds))
    if len(different) == 1:
        return different[0]
    types = {each.type for each in different}
    if types == {"bigint", "double"}:
        return Shape("double")
    if different and all(each.symbols for each in different):
        return Shape(
            "string", symbols=tuple(dict.fromkeys(s for e in different for s in e.symbols))
        )
    return _ANY


def _is_scalar(schema: Mapping[str, Any]) -> bool:
    """One of a number, a text or a truth value, or null."""
    kind = schema.get("type", _implied(schema))
    kinds = kind if isinstance(kind, list) else [kind]
    return all(each in (*_SCALARS, "null") for each in kinds) and any(k in _SCALARS for k in kinds)


def _paths_not_in(writer: Shape, reader: Shape, path: tuple[str, ...]) -> Iterator[str]:
    if writer.type != reader.type:
        return
    if writer.type != STRUCT:
        for (_, written), (_, read) in zip(writer.parts, reader.parts, strict=True):
            yield from _paths_not_in(written, read, path)
        return
    wanted = reader.fields
    for name, kind in writer.parts:
        if name in wanted:
            yield from _paths_not_in(kind, wanted[name], (*path, name))
        else:
            yield ".".join((*path, name))


def _spark_type(shape: Shape) -> str | dict[str, Any]:
    """In Spark's own JSON: a name, or an object."""
    if shape.type == STRUCT:
        fields = [
            {"name": name, "type": _spark_type(part), "nullable": True, "metadata": {}}
            for name, part in shape.parts
        ]
        return {"type": "struct", "fields": fields}
    if not shape.parts:
        return "long" if shape.type == "bigint" else shape.type
    held = _spark_type(shape.parts[0][1])
    if shape.type == ARRAY:
        return {"type": "array", "elementType": held, "containsNull": True}
    return {"type": "map", "keyType": "string", "valueType": held, "valueContainsNull": True}


def _declared(shape: Shape) -> dict[str, Any]:
    """A schema that becomes just this."""
    if shape.type == STRUCT:
        properties = {name: _declared(part) for name, part in shape.parts}
        return {"type": "object", "properties": properties}
    if shape.parts:
        inner = _declared(shape.parts[0][1])
        if shape.type == ARRAY:
            return {"type": "array", "items": inner}
        return {"type": "object", "additionalProperties": inner}
    formats = {name: text for text, name in _TEXTS.items()}
    if shape.type in formats:
        return {"type": "string", "format": formats[shape.type]}
    kind = next(name for name, each in _SCALARS.items() if each == shape.type)
    return {"type": kind, **({"enum": list(shape.symbols)} if shape.symbols else {})}

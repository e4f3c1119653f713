"""JSON Schemas: conversion to columns, and comparison of two schemas. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

from eo_pipeline.formats.base import SchemaKind
from eo_pipeline.formats.schema_diff import ARRAY, MAP, STRUCT, Shape
from eo_pipeline.ledger.schemas import canonical

_TAKEN = frozenset({"_kafka", "_eo_corrupt"})

#: Column of a value that fits no other type: its JSON text, unchanged.
_ANY = Shape("string")
_SCALARS = {"boolean": "boolean", "integer": "bigint", "number": "double", "string": "string"}
_TEXTS = {"date-time": "timestamp", "date": "date"}

#: Mark of a key's schema that :meth:`JsonSchema.as_record` made an object.
_PLAIN = "x-plain-key"
_DEFINITIONS = ("$schema", "$id", "$defs", "definitions")

#: Property with the referenced schemas by name.
_BUNDLED = "x-references"


class _UnfitError(ValueError):
    """The text is the reason."""


class JsonSchema(SchemaKind):
    """JSON Schemas."""

    def fault_of(self, text: str) -> str | None:
        try:
            names = self.field_names(text)
        except _UnfitError as error:
            return str(error)
        except RecursionError:
            return "is nested too deeply"
        if not names:
            return "is not an object with properties, which would be the table's columns"
        if taken := _TAKEN.intersection(names):
            return f"has a field {min(taken)}, a name that is taken"
        return None

    def field_names(self, text: str) -> list[str]:
        return list(self.shape_of(text).fields)

    def left_out(self, writer: str, reader: str) -> list[str]:
        return sorted(set(_paths_not_in(self.shape_of(writer), self.shape_of(reader), ())))

    def shape_of(self, text: str) -> Shape:
        """Return the columns; an enum of texts has its values."""
        try:
            root = json.loads(text)
        except ValueError as error:
            raise _UnfitError(f"is not JSON: {error}") from None
        others = root.get(_BUNDLED, {}) if isinstance(root, dict) else {}
        try:
            shape = _Types(_Documents(root, others)).of(root, root, (), ())
        except (TypeError, AttributeError, KeyError, IndexError) as error:
            raise _UnfitError(f"is no JSON Schema: {type(error).__name__} {error}") from None
        if shape.type != STRUCT:
            raise _UnfitError(
                "is not an object with properties, which would be the table's columns"
            )
        return shape

    def evolve_except(self, before: str, now: str, unchanged: Collection[str]) -> str:
        """Merge two schemas; the result has types and the values of enums, nothing else."""
        was, fields = self.shape_of(before).fields, self.shape_of(now).fields
        for name in unchanged:
            if name in was:
                fields[name] = was[name]
            else:
                fields.pop(name)
        return json.dumps(_declared(Shape(STRUCT, tuple(fields.items()))))

    def self_contained(self, text: str, references: Mapping[str, str]) -> str:
        if not references:
            return canonical(text)
        named = {name: json.loads(reference) for name, reference in references.items()}
        return canonical(json.dumps({**json.loads(text), _BUNDLED: named}))

    def as_record(self, text: str) -> str:
        """Return an object with the one property ``key``."""
        try:
            schema = json.loads(text)
            self.shape_of(text)
        except _UnfitError:
            if isinstance(schema, dict) and _is_scalar(schema):
                kept = {name: schema[name] for name in _DEFINITIONS if name in schema}
                return json.dumps(
                    {**kept, _PLAIN: True, "type": "object", "properties": {"key": schema}}
                )
        except ValueError:
            pass  # fault_of reports it
        return text

    def is_plain(self, text: str) -> bool:
        return json.loads(text).get(_PLAIN) is True


def is_one(text: str) -> bool:
    """Return whether ``text`` is a JSON Schema, and neither DDL nor the JSON form of a
    ``StructType``.
    """
    if not text.lstrip().startswith("{"):
        return False
    try:
        document = json.loads(text)
    except ValueError:
        return True  # fault_of reports it
    return isinstance(document, dict) and document.get("type") != STRUCT


def spark_type(text: str) -> str:
    """Return the columns as the JSON form of Spark's ``StructType``. ``text`` has passed
    :meth:`JsonSchema.fault_of`.
    """
    return json.dumps(_spark_type(JsonSchema().shape_of(text)))


@dataclass(frozen=True)
class _Documents:
    """Targets of ``$ref``: the ``root``, and ``others`` by the names that it has for them."""

    root: Any
    others: Mapping[str, Any]

    def resolve(self, ref: str, base: Any) -> tuple[Any, Any]:
        """Return the schema, and the document that it is in. ``base``: document of the ``ref``."""
        uri, _, inside = ref.partition("#")
        document = self._document(uri, base) if uri else base
        schema = document
        for step in filter(None, unquote(inside).split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            item = schema[int(name)] if isinstance(schema, list) else None
            schema = schema.get(name) if isinstance(schema, dict) else item
        if schema is None or (inside and not inside.startswith("/")):
            raise _UnfitError(f"refers to {ref}, which it does not hold")
        return schema, document

    def _document(self, uri: str, base: Any) -> Any:
        base_uri = base.get("$id", "") if isinstance(base, dict) else ""
        for name in (uri, urljoin(base_uri, uri)):
            if name in self.others:
                return self.others[name]
            for document in (self.root, *self.others.values()):
                if isinstance(document, dict) and document.get("$id") == name:
                    return document
        raise _UnfitError(f"refers to {uri}, which the registry does not name among its references")


@dataclass(frozen=True)
class _Types:
    """Column types of the schemas in ``documents``."""

    documents: _Documents

    def of(self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]) -> Shape:
        """Return the type. ``base``: document of ``schema``; ``around``: ids of the enclosing
        schemas.
        """
        if not isinstance(schema, dict):
            return _ANY
        if id(schema) in around:
            raise _UnfitError(
                f"has a field {'.'.join(path)} that refers to the schema that it is in: no table "
                "has such a column"
            )
        around = (*around, id(schema))
        if "$ref" in schema:
            return self.of(*self.documents.resolve(schema["$ref"], base), path, around)
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
        """Return the properties, with those of ``allOf``."""
        fields: dict[str, Shape] = {}
        for member in schema.get("allOf", ()):
            part = self.of(member, base, path, around)
            if part.type != STRUCT:
                return part if len(schema["allOf"]) == 1 and "properties" not in schema else _ANY
            fields |= part.fields
        for name, value in schema.get("properties", {}).items():
            fields[name] = self.of(value, base, (*path, name), around)
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
        """Return the type of an object without properties: a map if all values have one type."""
        value = schema.get("additionalProperties")
        if not isinstance(value, dict) or "patternProperties" in schema:
            return _ANY
        return Shape(MAP, (("", self.of(value, base, path, around)),))


def _null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values of an ``enum``, or that of a ``const``."""
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))


def _implied(schema: Mapping[str, Any]) -> Any:
    """Return the type of a schema that lists values only; None if they differ in type."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    types = {kinds.get(type(value)) for value in _values(schema) if value is not None}
    return types.pop() if len(types) == 1 else None


def _symbols(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the allowed texts; none if any text is allowed."""
    if schema.get("format") in _TEXTS:
        return ()
    return tuple(value for value in _values(schema) if isinstance(value, str))


def _common(kinds: list[Shape]) -> Shape:
    """Return the type of all; the wider number; the union of enums; otherwise the JSON text."""
    different = list(dict.fromkeys(kinds))
    if len(different) == 1:
        return different[0]
    types = {shape.type for shape in different}
    if types == {"bigint", "double"}:
        return Shape("double")
    if different and all(shape.symbols for shape in different):
        return Shape(
            "string", symbols=tuple(dict.fromkeys(s for e in different for s in e.symbols))
        )
    return _ANY


def _is_scalar(schema: Mapping[str, Any]) -> bool:
    """Return whether values are numbers, texts or booleans, or null."""
    kind = schema.get("type", _implied(schema))
    kinds = kind if isinstance(kind, list) else [kind]
    return all(k in (*_SCALARS, "null") for k in kinds) and any(k in _SCALARS for k in kinds)


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
    """Return the type in Spark's JSON form: a name, or an object."""
    if shape.type == STRUCT:
        fields = [
            {"name": name, "type": _spark_type(part), "nullable": True, "metadata": {}}
            for name, part in shape.parts
        ]
        return {"type": "struct", "fields": fields}
    if not shape.parts:
        return "long" if shape.type == "bigint" else shape.type
    inner = _spark_type(shape.parts[0][1])
    if shape.type == ARRAY:
        return {"type": "array", "elementType": inner, "containsNull": True}
    return {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True}


def _declared(shape: Shape) -> dict[str, Any]:
    """Return a schema of this shape."""
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
    kind = next(name for name, spark in _SCALARS.items() if spark == shape.type)
    return {"type": kind, **({"enum": list(shape.symbols)} if shape.symbols else {})}

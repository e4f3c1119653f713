"""JSON Schemas as texts: what of one can become columns, as which types, and what two of them
differ in. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

from eo_pipeline.ledger.schemas import canonical
from eo_pipeline.source.shapes import ARRAY, STRUCT, Shape

#: A type in Spark's own JSON: its name, or an object.
SparkType = str | dict[str, Any]

_TAKEN = frozenset({"_kafka", "_eo_corrupt"})

#: The type of what has no type that a column could have: the JSON text as it stands.
_ANY = "string"
_SCALARS = {"boolean": "boolean", "integer": "long", "number": "double", "string": "string"}
_TEXTS = {"date-time": "timestamp", "date": "date"}

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


def field_names(text: str) -> list[str]:
    """The names of the properties, in order."""
    return [field["name"] for field in _struct(text)["fields"]]


def spark_type(text: str) -> str:
    """The columns of ``text``, of which :func:`fault_of` finds nothing, as the JSON of Spark's
    ``StructType``.
    """
    return json.dumps(_struct(text))


def left_out(writer: str, reader: str) -> list[str]:
    """The paths of the properties that ``writer`` has and ``reader``, of which :func:`fault_of`
    finds nothing, does not read.
    """
    return sorted(set(_paths_not_in(_struct(writer), _struct(reader), ())))


def shape_of(text: str) -> Shape:
    """The columns. An enum is a text, whatever its values are."""
    return _shape(_struct(text))


def partly(before: str, now: str, as_before: Collection[str]) -> str:
    """See :class:`eo_pipeline.source.kinds.SchemaKind`; it says the types and nothing else."""
    was, made = ({f["name"]: f["type"] for f in _struct(each)["fields"]} for each in (before, now))
    for name in as_before:
        if name in was:
            made[name] = was[name]
        else:
            made.pop(name)
    return json.dumps({"type": "object", "properties": {n: _declared(t) for n, t in made.items()}})


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


def _struct(text: str) -> dict[str, Any]:
    try:
        root = json.loads(text)
    except ValueError as error:
        raise _UnfitError(f"is not JSON: {error}") from None
    others = root.get(_BUNDLED, {}) if isinstance(root, dict) else {}
    try:
        found = _Types(_Documents(root, others)).of(root, root, (), ())
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise _UnfitError(f"is no JSON Schema: {type(error).__name__} {error}") from None
    if isinstance(found, str) or found["type"] != "struct":
        raise _UnfitError("is not an object with properties, which would be the table's columns")
    return found


@dataclass(frozen=True)
class _Types:
    """Spark's types of the schemas in ``documents``."""

    documents: _Documents

    def of(
        self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]
    ) -> SparkType:
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
            return _TEXTS.get(schema.get("format", ""), _ANY)
        return _SCALARS.get(kind, _ANY)

    def _object(
        self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]
    ) -> SparkType:
        """Its own properties, and those of ``allOf`` together."""
        fields: dict[str, SparkType] = {}
        for each in schema.get("allOf", ()):
            part = self.of(each, base, path, around)
            if isinstance(part, str) or part["type"] != "struct":
                return part if len(schema["allOf"]) == 1 and "properties" not in schema else _ANY
            fields |= {f["name"]: f["type"] for f in part["fields"]}
        for name, each in schema.get("properties", {}).items():
            fields[name] = self.of(each, base, (*path, name), around)
        lower: dict[str, str] = {}
        for name in fields:
            if (first := lower.setdefault(name.lower(), name)) != name:
                raise _UnfitError(f"has fields {first} and {name} that differ only in case")
        made = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in fields.items()
        ]
        return {"type": "struct", "fields": made} if made else _ANY

    def _array(
        self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]
    ) -> SparkType:
        item = schema.get("items")
        element = self.of(item, base, path, around) if "prefixItems" not in schema else _ANY
        return {"type": "array", "elementType": element, "containsNull": True}

    def _map(
        self, schema: Any, base: Any, path: tuple[str, ...], around: tuple[int, ...]
    ) -> SparkType:
        """An object without properties of its own: whatever its names, all are of one type; or
        nothing is known of it.
        """
        more = schema.get("additionalProperties")
        if not isinstance(more, dict) or "patternProperties" in schema:
            return _ANY
        held = self.of(more, base, path, around)
        return {"type": "map", "keyType": "string", "valueType": held, "valueContainsNull": True}


def _null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _implied(schema: Mapping[str, Any]) -> Any:
    """The type of what says its values only."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    found = {kinds.get(type(value)) for value in values if value is not None}
    return found.pop() if len(found) == 1 else None


def _common(kinds: list[SparkType]) -> SparkType:
    """The one type of all; the wider number; otherwise the text."""
    different = [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]]
    if len(different) == 1:
        return different[0]
    return "double" if different and all(k in ("long", "double") for k in different) else _ANY


def _paths_not_in(writer: SparkType, reader: SparkType, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(writer, str) or isinstance(reader, str) or writer["type"] != reader["type"]:
        return
    if writer["type"] == "struct":
        wanted = {field["name"]: field["type"] for field in reader["fields"]}
        for field in writer["fields"]:
            below = (*path, field["name"])
            if field["name"] in wanted:
                yield from _paths_not_in(field["type"], wanted[field["name"]], below)
            else:
                yield ".".join(below)
        return
    inner = "elementType" if writer["type"] == "array" else "valueType"
    yield from _paths_not_in(writer[inner], reader[inner], path)


def _shape(kind: SparkType) -> Shape:
    if isinstance(kind, str):
        return Shape("bigint" if kind == "long" else kind)
    if kind["type"] == STRUCT:
        return Shape(STRUCT, tuple((f["name"], _shape(f["type"])) for f in kind["fields"]))
    inner = "elementType" if kind["type"] == ARRAY else "valueType"
    return Shape(kind["type"], (("", _shape(kind[inner])),))


def _declared(kind: SparkType) -> dict[str, Any]:
    """A schema that becomes just this type."""
    if isinstance(kind, str):
        formats = {name: text for text, name in _TEXTS.items()}
        if kind in formats:
            return {"type": "string", "format": formats[kind]}
        return {"type": next(name for name, each in _SCALARS.items() if each == kind)}
    if kind["type"] == STRUCT:
        properties = {field["name"]: _declared(field["type"]) for field in kind["fields"]}
        return {"type": "object", "properties": properties}
    if kind["type"] == ARRAY:
        return {"type": "array", "items": _declared(kind["elementType"])}
    return {"type": "object", "additionalProperties": _declared(kind["valueType"])}

"""Avro schemas as JSON: what of one can become columns, and what two of them differ in. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: Added to the reader's schema with the default true: null in a record that could not be read, and
#: in no other. Without it a record of nulls only would look the same.
OK_FIELD = "_eo_ok"

_NAMED = frozenset({"record", "error", "enum", "fixed"})
_DECIMAL_DIGITS_MAX = 38


def fault_of(text: str) -> str | None:
    """Why the fields of ``text`` cannot become columns; None if they can."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        return f"is not JSON: {error}"
    if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
        return "is not a record with fields, which would be the table's columns"
    for path, reason in _faults(schema, (), {}):
        return f"has a field {'.'.join(path)} that {reason}"
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
    """The paths of the fields that ``writer`` has and ``reader`` does not read."""
    return sorted(set(_left_out(json.loads(writer), json.loads(reader), {}, {}, ())))


def _faults(
    schema: Any, path: tuple[str, ...], around: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """What cannot become a column, and why."""
    if isinstance(schema, list):
        if all(each == "null" for each in schema):
            yield path, "is never anything but null"
        for each in schema:
            if each != "null":
                yield from _faults(each, path, around)
    elif isinstance(schema, str):
        if schema in around or any(name.endswith(f".{schema}") for name in around):
            yield path, f"refers to the record {schema} that it is in: no table has such a column"
        elif schema == "null":
            yield path, "is never anything but null"
    elif _digits(schema) > _DECIMAL_DIGITS_MAX:
        yield path, f"is a decimal of more than {_DECIMAL_DIGITS_MAX} digits"
    elif schema["type"] in ("record", "error"):
        within = {**around, _full_name(schema): schema}
        for field in schema["fields"]:
            if not path and field["name"] in (OK_FIELD, "_kafka"):
                yield (field["name"],), "has a name that is taken"
            yield from _faults(field["type"], (*path, field["name"]), within)
    elif schema["type"] == "array":
        yield from _faults(schema["items"], path, around)
    elif schema["type"] == "map":
        yield from _faults(schema["values"], path, around)
    elif not isinstance(schema["type"], str) or schema["type"] not in _NAMED:
        yield from _faults(schema["type"], path, around)


def _digits(schema: Mapping[str, Any]) -> int:
    decimal = schema.get("logicalType") == "decimal"
    return int(schema.get("precision", 0)) if decimal else 0


def _full_name(schema: Mapping[str, Any]) -> str:
    namespace, name = schema.get("namespace"), str(schema["name"])
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _left_out(
    writer: Any,
    reader: Any,
    written: dict[str, Any],
    read: dict[str, Any],
    path: tuple[str, ...],
) -> Iterator[str]:
    """See :func:`left_out`; ``written`` and ``read`` are the named types met so far."""
    writers, readers = _records(writer, written), _records(reader, read)
    for each in writers:
        other = _of_the_same_name(each, readers)
        if other is None:
            continue
        fields = {name: f for f in other["fields"] for name in (f["name"], *f.get("aliases", ()))}
        for field in each["fields"]:
            below = (*path, field["name"])
            if field["name"] not in fields:
                yield ".".join(below)
            else:
                wanted = fields[field["name"]]["type"]
                yield from _left_out(field["type"], wanted, dict(written), dict(read), below)


def _records(schema: Any, named: dict[str, Any]) -> list[Any]:
    """The records that a value of ``schema`` is, or has in its arrays and maps."""
    if isinstance(schema, list):
        return [found for each in schema for found in _records(each, named)]
    if isinstance(schema, str):
        known = named.get(schema)
        return [] if known is None else [known]
    if schema["type"] in ("record", "error"):
        named[_full_name(schema)] = named[schema["name"]] = schema
        return [schema]
    for inner in ("items", "values"):
        if inner in schema:
            return _records(schema[inner], named)
    return _records(schema["type"], named) if isinstance(schema["type"], dict | list) else []


def _of_the_same_name(record: Mapping[str, Any], others: list[Any]) -> Any:
    """Among several records of a union the one of the same name; one alone is meant anyhow."""
    if len(others) == 1:
        return others[0]
    return next((o for o in others if o["name"] == record["name"]), None)

"""Unknown fields of a JSON record, those that its schema does not name: found, counted, kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from eo_pipeline.batch.json_values import READING, unmarked

#: Names that a checkpoint shows, and characters of each: keys may be data, and the ledger is kept
#: for good.
NAMES_MAX = 20
NAME_CHARACTERS_MAX = 100


def _no_names() -> Column:
    return F.array().cast("array<string>")


#: Stands for a name that an object has twice; no field name ends like this.
_TWICE = "\x00 twice"


def keys_if_needed(schema: StructType, text: Column, marks: Column, parsed: Column) -> Column:
    """Return the keys of the record's object; null if there cannot be more of them than values were
    parsed, so that no field is unknown or duplicate. ``marks`` is the
    :func:`~eo_pipeline.batch.json_values.marked` ``text``.

    Listing keys parses the whole text again, and nearly all records need no list: a colon follows
    each key, so there are at most as many keys as ``":``, unless white space precedes a colon. If
    the count exceeds the values, because of a text or a null, the keys are listed.
    """
    rest = F.replace(text, F.lit('":'), F.lit(""))
    colons_bytes = F.octet_length(text) - F.octet_length(rest)
    after_space = [rest.contains(f"{space}:") for space in (" ", "\t", "\r", "\n")]
    # nearly all records have no other colon at all: test that first
    hidden = F.when(rest.contains(":"), reduce(Column.__or__, after_space)).otherwise(F.lit(False))
    unsure = (colons_bytes > _values_read(schema, parsed) * 2) | hidden
    return F.when(F.coalesce(unsure, F.lit(True)), F.json_object_keys(marks))


def _values_read(schema: StructType, parsed: Column) -> Column:
    """Count the values, nested structs included; each has a key."""
    counts = [F.lit(0)]
    for field in schema:
        value = parsed.getField(field.name)
        counts.append(value.isNotNull().cast("int"))
        if isinstance(field.dataType, StructType):
            inner = _values_read(field.dataType, value)
            counts.append(F.when(value.isNotNull(), inner).otherwise(0))
    return _sum(counts)


def _sum(terms: Sequence[Column]) -> Column:
    """Add in a balanced tree: a chain would be as deep as there are terms, and Spark Connect's
    client copies no plan of more than a hundred levels.
    """
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _sum(terms[:half]) + _sum(terms[half:])


def nested_names(schema: StructType, marks: Column, keys: Column) -> Column | None:
    """Return the paths of the unknown fields within structs, an array, with the marks that
    :func:`is_twice` needs; None if ``schema`` has no structs. Each level of structs parses the text
    once more. ``keys``: see :func:`keys_if_needed`.
    """
    nested = [names for shape in _shapes(schema) for names in _nested_names(shape, schema, marks)]
    return F.when(keys.isNotNull(), F.concat(*nested)) if nested else None


def has_structs(schema: StructType) -> bool:
    """Return whether :func:`nested_names` returns a column."""
    return next(_shapes(schema), None) is not None


def unknown_fields(schema: StructType, keys: Column, nested: Column | None) -> Column:
    """Return the names of the unknown fields, an array; null if there are none. A nested field is
    ``outer.inner``. ``keys``: see :func:`keys_if_needed`.
    """
    names = [field.name for field in schema]
    # no filter by a lambda: Spark generates no code for a step that has one
    unknown = F.array_except(keys, F.array(*map(F.lit, names)))
    if nested is not None:
        paths = F.filter(nested, lambda path: ~path.endswith(_TWICE))
        unknown = F.array_distinct(F.concat(unknown, paths))
    return F.when(keys.isNotNull(), F.when(F.size(unknown) > 0, unknown))


def is_twice(keys: Column, nested: Column | None) -> Column:
    """Return whether an object has a key twice, of which Spark takes the last. ``keys``: see
    :func:`keys_if_needed`; ``nested``: :func:`nested_names`.
    """
    twice = F.size(F.array_distinct(keys)) < F.size(keys)
    if nested is not None:
        twice = twice | F.exists(nested, lambda path: path.endswith(_TWICE))
    return F.coalesce(twice, F.lit(False))


def kept_fields(marks: Column, schema: StructType, unknown: Column, lost: Column) -> Column:
    """Return the unknown fields as one JSON object. A field of the schema is kept whole if it has
    an unknown field within, or is in the array ``lost``. Null also if a kept field has a key twice,
    or is too large for Spark.
    """
    names = [field.name for field in schema]
    tops = F.transform(unknown, lambda name: F.substring_index(name, ".", 1))
    tops = F.concat(F.coalesce(tops, _no_names()), lost)
    is_any = unknown.isNotNull() | (F.size(lost) > 0)
    fields = F.from_json(marks, "map<string, variant>", READING)
    chosen = F.map_filter(fields, lambda key, _: ~key.isin(names) | F.array_contains(tops, key))
    return F.when(is_any, unmarked(F.to_json(chosen)))


def metrics(unknown: Column, counts: Column) -> list[Column]:
    """Return aggregates over the records where ``counts`` holds: the number of records with unknown
    fields, and the names of a few: of the one with the most, the first, the last, a random one.
    """
    few = F.transform(
        F.slice(unknown, 1, NAMES_MAX), lambda n: F.left(n, F.lit(NAME_CHARACTERS_MAX))
    )
    names = F.when(counts & unknown.isNotNull(), F.to_json(few))
    longest = F.concat(F.lpad(F.size(unknown).cast("string"), 9, "0"), names)
    chance = F.concat(F.hex(F.xxhash64(names)), names)
    return [
        F.count(names).alias("unknown"),
        F.max(longest).alias("unknown_longest"),
        F.min(names).alias("unknown_first"),
        F.max(names).alias("unknown_last"),
        F.min(F.when(names.isNotNull(), chance)).alias("unknown_chance"),
    ]


def shown(seen: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names from the results of :func:`metrics`."""
    texts = [seen[f"unknown_{which}"] for which in ("longest", "first", "last", "chance")]
    names = {name for text in texts if text for name in json.loads(text[text.index("[") :])}
    return tuple(sorted(names)[:NAMES_MAX])


def _shapes(schema: StructType) -> Iterator[StructType]:
    """Yield the schema down to each level of structs below the first, with maps at that level."""
    depth = 1
    while (shape := _cut(schema, depth)) is not None:
        yield StructType([StructField(f.name, f.dataType) for f in shape])
        depth += 1


def _cut(data_type: DataType, depth: int) -> Any:
    """Return ``data_type`` with maps in place of the structs at ``depth``, without the fields that
    lead to none; None if there are none at that depth.
    """
    if isinstance(data_type, ArrayType):
        inner = _cut(data_type.elementType, depth)
        return inner and ArrayType(inner)
    if isinstance(data_type, MapType):
        inner = _cut(data_type.valueType, depth)
        return inner and MapType(StringType(), inner)
    if not isinstance(data_type, StructType):
        return None
    if depth == 0:
        return MapType(StringType(), StringType())
    cut = [(field.name, _cut(field.dataType, depth - 1)) for field in data_type]
    fields = [StructField(name, inner) for name, inner in cut if inner]
    return StructType(fields) if fields else None


def _nested_names(shape: StructType, schema: StructType, text: Column) -> Iterator[Column]:
    """Yield arrays, never null, of the paths of unknown fields at the maps of ``shape``, and of
    :data:`_TWICE`.
    """
    parsed = F.from_json(text, shape, READING)
    for field in shape:
        wanted = schema[field.name].dataType
        names = _names_in(parsed.getField(field.name), field.dataType, wanted)
        paths = F.transform(names, _prefixed(field.name))
        yield F.coalesce(paths, _no_names())


def _prefixed(outer: str) -> Callable[[Column], Column]:
    return lambda name: F.concat(F.lit(f"{outer}."), name)


def _names_in(value: Column, shape: DataType, wanted: DataType) -> Column:
    """Return the unknown names in ``value``; null for null."""
    if isinstance(wanted, ArrayType) and isinstance(shape, ArrayType):
        return _names_in_each(value, shape.elementType, wanted.elementType)
    if isinstance(wanted, MapType) and isinstance(shape, MapType):
        return _names_in_each(F.map_values(value), shape.valueType, wanted.valueType)
    assert isinstance(wanted, StructType)
    if isinstance(shape, MapType):
        fields, keys = [field.name for field in wanted], F.map_keys(value)
        others = F.filter(keys, lambda key: ~key.isin(fields))
        twice = F.size(F.array_distinct(keys)) < F.size(keys)
        return F.when(twice, F.array_append(others, F.lit(_TWICE))).otherwise(others)
    assert isinstance(shape, StructType)
    arrays = []
    for field in shape:
        names = _names_in(value.getField(field.name), field.dataType, wanted[field.name].dataType)
        paths = F.transform(names, _prefixed(field.name))
        arrays.append(F.coalesce(paths, _no_names()))
    return F.concat(*arrays)


def _names_in_each(values: Column, shape: DataType, wanted: DataType) -> Column:
    def names_in(value: Column) -> Column:
        return F.coalesce(_names_in(value, shape, wanted), _no_names())

    return F.flatten(F.transform(values, names_in))

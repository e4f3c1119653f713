"""Fields of a JSON record that the schema does not name: found, shown, kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from eo_pipeline.source.json_values import unmarked

#: How Spark's reader reads a record: as JSON, which has no single quotes.
READING = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}

#: Names that a checkpoint shows, and characters of each: keys may be data, and the ledger is kept.
NAMES_MAX = 20
NAME_CHARACTERS_MAX = 100


def _no_names() -> Column:
    return F.array().cast("array<string>")


#: In place of a name, where an object has one twice: no field's name ends so.
_TWICE = "\x00 twice"


def keys_if_more(schema: StructType, text: Column, marks: Column, parsed: Column) -> Column:
    """The keys of the record's object; null where it has as many as values were read of it, which
    leaves none for an unknown field or for one that is there twice. ``marks`` is the record's
    ``text``, :func:`~eo_pipeline.source.json_values.marked`.

    Listing them is a second reading of the whole text. Nearly all records are told by less: each
    key has a colon of its own behind it, so there are at most as many keys as there are ``":`` if
    no other colon follows white space. Where they are more than the values, in a text or because a
    value is null, the keys are listed.
    """
    rest = F.replace(text, F.lit('":'), F.lit(""))
    colons_bytes = F.octet_length(text) - F.octet_length(rest)
    apart = [rest.contains(f"{before}:") for before in (" ", "\t", "\r", "\n")]
    # nearly all have no other colon at all, which one look tells
    hidden = F.when(rest.contains(":"), reduce(Column.__or__, apart)).otherwise(F.lit(False))
    unsure = (colons_bytes > _values_read(schema, parsed) * 2) | hidden
    return F.when(F.coalesce(unsure, F.lit(True)), F.json_object_keys(marks))


def _values_read(schema: StructType, parsed: Column) -> Column:
    """How many values are there, in structs of structs too; each has a key of its own."""
    counts = [F.lit(0)]
    for field in schema:
        value = parsed.getField(field.name)
        counts.append(value.isNotNull().cast("int"))
        if isinstance(field.dataType, StructType):
            within = _values_read(field.dataType, value)
            counts.append(F.when(value.isNotNull(), within).otherwise(0))
    return _sum(counts)


def _sum(terms: Sequence[Column]) -> Column:
    """Halves of halves: one after the other they would be as deep as they are many, and Spark
    Connect's client copies no plan of more than a hundred levels into a query.
    """
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _sum(terms[:half]) + _sum(terms[half:])


def nested_names(schema: StructType, marks: Column, keys: Column) -> Column | None:
    """The paths of the fields in structs that ``schema`` does not have, an array, with what
    :func:`is_twice` finds. It takes a reading of the text for each level of structs; None: there
    are none. ``keys``: see :func:`keys_if_more`.
    """
    nested = [each for shape in _shapes(schema) for each in _nested_names(shape, schema, marks)]
    return F.when(keys.isNotNull(), F.concat(*nested)) if nested else None


def unknown_fields(schema: StructType, keys: Column, nested: Column | None) -> Column:
    """The names of the fields that ``schema`` does not have, an array; null if there are none. A
    nested field is ``outer.inner``. ``keys``: see :func:`keys_if_more`.
    """
    names = [field.name for field in schema]
    # not a filter by a function of each: Spark generates no code for a step that has one
    found = F.array_except(keys, F.array(*map(F.lit, names)))
    if nested is not None:
        own = F.filter(nested, lambda path: ~path.endswith(_TWICE))
        found = F.array_distinct(F.concat(found, own))
    return F.when(keys.isNotNull(), F.when(F.size(found) > 0, found))


def is_twice(keys: Column, nested: Column | None) -> Column:
    """Whether a field is there twice; Spark takes the last one. ``keys``: see
    :func:`keys_if_more`; ``nested``: :func:`nested_names`.
    """
    found = F.size(F.array_distinct(keys)) < F.size(keys)
    if nested is not None:
        found = found | F.exists(nested, lambda path: path.endswith(_TWICE))
    return F.coalesce(found, F.lit(False))


def kept(marks: Column, schema: StructType, unknown: Column, lost: Column) -> Column:
    """The unknown fields as the text of one JSON object; a field of the schema in which there is a
    nested one is kept whole, and so are those whose names are ``lost``, an array. Null also where
    one of them has a field twice, or Spark cannot hold it.
    """
    names = [field.name for field in schema]
    tops = F.transform(unknown, lambda name: F.substring_index(name, ".", 1))
    tops = F.concat(F.coalesce(tops, _no_names()), lost)
    any_ = unknown.isNotNull() | (F.size(lost) > 0)
    fields = F.from_json(marks, "map<string, variant>", READING)
    chosen = F.map_filter(fields, lambda key, _: ~key.isin(names) | F.array_contains(tops, key))
    return F.when(any_, unmarked(F.to_json(chosen)))


def rescued(kept: Column, unknown: Column) -> Column:
    """The names of the fields in the JSON text ``kept`` that lead to none of the ``unknown`` ones:
    their values do not fit their columns. An array, never null.
    """
    tops = F.transform(unknown, lambda path: F.substring_index(path, ".", 1))
    others = F.array_except(F.json_object_keys(kept), F.coalesce(tops, _no_names()))
    return F.coalesce(others, _no_names())


def metrics(unknown: Column, counts: Column) -> list[Column]:
    """Aggregates over records where ``counts``: how many have unknown fields, and the names of a
    few of them: the one with the most, the first, the last, and one by chance.
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
    """The names in what :func:`metrics` found."""
    found = [seen[f"unknown_{which}"] for which in ("longest", "first", "last", "chance")]
    names = {name for each in found if each for name in json.loads(each[each.index("[") :])}
    return tuple(sorted(names)[:NAMES_MAX])


def _shapes(schema: StructType) -> Iterator[StructType]:
    """For each level of structs below the first the schema down to it, where each is a map."""
    depth = 1
    while (shape := _cut(schema, depth)) is not None:
        yield StructType([StructField(f.name, f.dataType) for f in shape])
        depth += 1


def _cut(data_type: DataType, depth: int) -> Any:
    """``data_type`` with maps in place of the structs at ``depth``, and nothing that leads to none;
    None if it has none there.
    """
    if isinstance(data_type, ArrayType):
        within = _cut(data_type.elementType, depth)
        return within and ArrayType(within)
    if isinstance(data_type, MapType):
        within = _cut(data_type.valueType, depth)
        return within and MapType(StringType(), within)
    if not isinstance(data_type, StructType):
        return None
    if depth == 0:
        return MapType(StringType(), StringType())
    cut = [(field.name, _cut(field.dataType, depth - 1)) for field in data_type]
    fields = [StructField(name, within) for name, within in cut if within]
    return StructType(fields) if fields else None


def _nested_names(shape: StructType, schema: StructType, text: Column) -> Iterator[Column]:
    """Arrays with the paths of unknown fields that ``shape`` leads to, and of :data:`_TWICE`;
    empty, never null.
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
    """Unknown names in ``value``; null where there is nothing to look into."""
    if isinstance(wanted, ArrayType) and isinstance(shape, ArrayType):
        return _names_in_each(value, shape.elementType, wanted.elementType)
    if isinstance(wanted, MapType) and isinstance(shape, MapType):
        return _names_in_each(F.map_values(value), shape.valueType, wanted.valueType)
    assert isinstance(wanted, StructType)
    if isinstance(shape, MapType):
        known, keys = [field.name for field in wanted], F.map_keys(value)
        others = F.filter(keys, lambda key: ~key.isin(known))
        twice = F.size(F.array_distinct(keys)) < F.size(keys)
        return F.when(twice, F.array_append(others, F.lit(_TWICE))).otherwise(others)
    assert isinstance(shape, StructType)
    found = []
    for field in shape:
        names = _names_in(value.getField(field.name), field.dataType, wanted[field.name].dataType)
        paths = F.transform(names, _prefixed(field.name))
        found.append(F.coalesce(paths, _no_names()))
    return F.concat(*found)


def _names_in_each(values: Column, shape: DataType, wanted: DataType) -> Column:
    def names_in(each: Column) -> Column:
        found = _names_in(each, shape, wanted)
        return F.coalesce(found, _no_names())

    return F.flatten(F.transform(values, names_in))

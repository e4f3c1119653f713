"""JSON values that their columns cannot hold, by the schema they were written with, and what policy
makes of them. Lazy Spark expressions only.

Of most records there is nothing here: those of a writer whose every type is the reader's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType, VariantType

from eo_pipeline.source import wire
from eo_pipeline.source.json_fields import READING
from eo_pipeline.source.json_values import converted, is_marked, leaf_type
from eo_pipeline.source.schema_changes import Policy
from eo_pipeline.source.shapes import MAP, STRUCT, Change, ChangeKind, Shape, unreadable
from eo_pipeline.source.wire import WireSchemas, first_that

#: What is not a record has its text there, of what :func:`leaves_of` makes.
CORRUPT = "_eo_corrupt"
_OPTIONS = {**READING, "columnNameOfCorruptRecord": CORRUPT}

#: What JSON writes as a text.
_TEXTS = frozenset({"string", "timestamp", "date"})


def read_as(schema: StructType) -> StructType:
    """What Spark's reader makes of records of ``schema``: see
    :func:`~eo_pipeline.source.json_values.leaf_type`, and a column for what is none.
    """
    leaves = leaf_type(schema)
    assert isinstance(leaves, StructType)
    return StructType([*leaves, StructField(CORRUPT, StringType())])


def leaves_of(schemas: WireSchemas | None, marks: Column, schema: StructType) -> Column:
    """The record ``marks`` as :func:`read_as` of ``schema``; but of a writer that has other types
    in columns that are rescued, those are null where they do not fit.
    """
    whole, branches = F.from_json(marks, read_as(schema), _OPTIONS), _rescued(schemas)
    if schemas is None or not branches:
        return whole
    held = _shapes(schemas)
    chain = (
        (_is_of(schemas, places), _read(marks, schema, held, names))
        for names, places in branches.items()
    )
    return first_that([*chain, (F.lit(True), whole)])


def rescues(schemas: WireSchemas | None) -> bool:
    """Whether there may be such columns."""
    return bool(_rescued(schemas))


def lost(schemas: WireSchemas | None, marks: Column, schema: StructType) -> Column | None:
    """The names of columns that are null because what is there does not fit, an array; None if
    there are never any.
    """
    branches = _rescued(schemas)
    if schemas is None or not branches:
        return None
    held = _shapes(schemas)
    chain = []
    for names, places in branches.items():
        found = [
            F.when(_is_lost(marks, schema[name], held[name]), F.lit(name)) for name in sorted(names)
        ]
        chain.append((_is_of(schemas, places), F.array_compact(F.array(*found))))
    return F.coalesce(first_that(chain), F.array().cast("array<string>"))


def errors(schemas: WireSchemas | None, struct: Column) -> Iterator[tuple[Column, Column]]:
    """Values of an enum that only its writer has, where such are quarantined."""
    if schemas is None or schemas.policy.new_enum_value is not Policy.QUARANTINE:
        return
    held = _shapes(schemas)
    for place, key in enumerate(schemas.writers):
        for name in dict.fromkeys(each.column for each in _of_values(schemas, key)):
            outside = _outside(struct.getField(name), held[name])
            said = f"field {name!r} has a value that schema {schemas.reader} does not list, and "
            reason = F.lit(said + f"source.schema_changes quarantines those of schema {key}")
            yield (wire.writer(schemas) == place) & F.coalesce(outside, F.lit(False)), reason


def _of_values(schemas: WireSchemas, key: str) -> Iterator[Change]:
    shapes = schemas.kind.shape_of(schemas.texts[key]), schemas.kind.shape_of(schemas.reader_text)
    return (e for e in unreadable(*shapes) if e.kind is ChangeKind.NEW_ENUM_VALUE)


def _rescued(schemas: WireSchemas | None) -> Mapping[frozenset[str], list[int]]:
    """Columns that cannot hold all that a writer has, with the places of the writers."""
    found: dict[frozenset[str], list[int]] = {}
    if schemas is None or not schemas.policy.rescues_values:
        return found
    shape_of, reader = schemas.kind.shape_of, schemas.kind.shape_of(schemas.reader_text)
    for place, key in enumerate(schemas.writers):
        decided = schemas.policy.decide(unreadable(shape_of(schemas.texts[key]), reader))
        names = frozenset(decided.rescued)
        if names:
            found.setdefault(names, []).append(place)
    return found


def _shapes(schemas: WireSchemas) -> dict[str, Shape]:
    return schemas.kind.shape_of(schemas.reader_text).fields


def _is_of(schemas: WireSchemas, places: list[int]) -> Column:
    return F.coalesce(wire.writer(schemas).isin(places), F.lit(False))


def _read(
    marks: Column, schema: StructType, held: Mapping[str, Shape], names: frozenset[str]
) -> Column:
    """The same without what the columns ``names`` cannot hold."""
    others = StructType([f for f in schema if f.name not in names or not held[f.name].parts])
    rest = F.from_json(marks, read_as(others), _OPTIONS)
    fields = []
    for field in schema:
        if field.name not in names:
            value = rest.getField(field.name)
        elif held[field.name].parts:
            value = F.lit(None).cast(leaf_type(field.dataType))
        else:
            is_lost = _is_lost(marks, field, held[field.name])
            value = F.when(~is_lost, rest.getField(field.name))
        fields.append(value.alias(field.name))
    corrupt = rest.getField(CORRUPT).alias(CORRUPT)
    return F.when(rest.isNotNull(), F.struct(*fields, corrupt))


def _alone(marks: Column, name: str, kind: DataType) -> Column:
    """The one field, as ``kind``."""
    return F.from_json(marks, StructType([StructField(name, kind)]), READING).getField(name)


def _is_lost(marks: Column, field: StructField, held: Shape) -> Column:
    """Whether there is something that the column cannot hold. A text is no number, whatever it
    looks like, and no number is a text. What has parts is not looked into.
    """
    leaf = _alone(marks, field.name, StringType())
    is_there = leaf.isNotNull()
    if held.parts:
        return is_there
    fits = converted(leaf, field.dataType).isNotNull()
    if held.type in _TEXTS:
        fits = fits & _is_text(marks, field.name, leaf)
    if held.symbols:
        fits = fits & leaf.isin(*held.symbols)
    return is_there & ~fits


def _is_text(marks: Column, name: str, leaf: Column) -> Column:
    """An object and an array begin as a text may."""
    kind = F.schema_of_variant(_alone(marks, name, VariantType()))
    return ~is_marked(leaf) & F.coalesce(kind == "STRING", F.lit(False))


def _outside(value: Column, held: Shape) -> Column:
    """Whether there is a text in ``value`` that an enum does not have."""
    if held.symbols:
        return ~value.isin(*held.symbols)
    if held.type == STRUCT:
        inner = [_outside(value.getField(name), part) for name, part in held.parts]
        sure = (F.coalesce(each, F.lit(False)) for each in inner)
        return reduce(Column.__or__, sure, F.lit(False))
    if not held.parts:
        return F.lit(False)
    part = held.parts[0][1]
    values = F.map_values(value) if held.type == MAP else value
    return F.exists(values, lambda each: F.coalesce(_outside(each, part), F.lit(False)))

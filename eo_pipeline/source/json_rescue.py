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
from eo_pipeline.source.schema_changes import Policy
from eo_pipeline.source.shapes import MAP, STRUCT, Change, ChangeKind, Shape, unreadable
from eo_pipeline.source.wire import WireSchemas, first_that

_CORRUPT = "_eo_corrupt"
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}

#: What JSON writes as a text.
_TEXTS = frozenset({"string", "timestamp", "date"})


def parsed(schemas: WireSchemas | None, text: Column, reading: StructType, whole: Column) -> Column:
    """``whole``, which is ``text`` as ``reading`` with :data:`_CORRUPT` besides; but of a writer
    that has other types in columns that are rescued, those are null where they do not fit.
    """
    branches = _rescued(schemas)
    if schemas is None or not branches:
        return whole
    held = _shapes(schemas)
    chain = (
        (_is_of(schemas, places), _read(text, reading, held, names))
        for names, places in branches.items()
    )
    return first_that([*chain, (F.lit(True), whole)])


def rescues(schemas: WireSchemas | None) -> bool:
    """Whether there may be such columns."""
    return bool(_rescued(schemas))


def lost(schemas: WireSchemas | None, text: Column, reading: StructType) -> Column | None:
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
            F.when(_is_lost(text, reading[name], held[name]), F.lit(name)) for name in sorted(names)
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
    text: Column, reading: StructType, held: Mapping[str, Shape], names: frozenset[str]
) -> Column:
    """A struct like that of ``reading``, of which the columns ``names`` are read each alone."""
    others = StructType([field for field in reading if field.name not in names])
    rest = F.from_json(text, others.add(_CORRUPT, "string"), _OPTIONS)
    fields = [
        (
            F.when(~_is_lost(text, field, held[field.name]), _alone(text, field)[field.name])
            if field.name in names
            else rest.getField(field.name)
        ).alias(field.name)
        for field in reading
    ]
    corrupt = rest.getField(_CORRUPT).alias(_CORRUPT)
    return F.when(rest.isNotNull(), F.struct(*fields, corrupt))


def _alone(text: Column, field: StructField, kind: DataType | None = None) -> Column:
    """The one field, as what it is to be; with :data:`_CORRUPT` if it is not."""
    shape = StructType([StructField(field.name, kind or field.dataType)])
    return F.from_json(text, shape.add(_CORRUPT, "string"), _OPTIONS)


def _is_lost(text: Column, field: StructField, held: Shape) -> Column:
    """Whether there is something that the column cannot hold. A text is no number, whatever it
    looks like, and no number is a text. What has parts is not looked into.
    """
    there = F.from_json(text, StructType([StructField(field.name, StringType())]), _OPTIONS)
    is_there = there.getField(field.name).isNotNull()
    if held.parts:
        return is_there
    fits = _alone(text, field).getField(_CORRUPT).isNull()
    if held.type in _TEXTS:
        kind = F.schema_of_variant(_alone(text, field, VariantType()).getField(field.name))
        fits = fits & F.coalesce(kind == "STRING", F.lit(False))
    if held.symbols:
        fits = fits & there.getField(field.name).isin(*held.symbols)
    return is_there & ~fits


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

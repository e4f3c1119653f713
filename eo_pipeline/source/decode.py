"""Kafka bytes to columns, and what makes a record a bad one. Lazy Spark expressions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from eo_pipeline.errors import ConfigError
from eo_pipeline.source import json_fields, json_rescue, keys, wire
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.decoded import (
    BYTES,
    ERROR,
    KEPT,
    KEY_BYTES,
    LOST,
    PARSED,
    TEXT,
    UNKNOWN,
    WORKING,
    Decoded,
)
from eo_pipeline.source.decoders import decoder_of
from eo_pipeline.source.json_fields import is_twice, keys_if_more, nested_names, unknown_fields
from eo_pipeline.source.json_rescue import CORRUPT, leaves_of, read_as
from eo_pipeline.source.json_values import (
    braced,
    converted,
    faults,
    marked,
    misfit,
    text_faults,
)
from eo_pipeline.source.kinds import kind_of
from eo_pipeline.source.ordinary import Ordinary, ordinary
from eo_pipeline.source.parts import KEY, KEY_COLUMN
from eo_pipeline.source.typed import value_schema
from eo_pipeline.source.wire import NOTHING, UNKNOWN_COLUMN, ReadBy, WireSchemas

_FOUND, _MARKS, _LEAVES, _KEYS, _NESTED = WORKING

#: Of a record with fields that the schema does not name, and the policy to keep them.
_NOT_KEPT = (
    "its unknown fields cannot be kept as they are: one has a field twice, or is larger than 16 MiB"
)


class _Record(NamedTuple):
    """What a JSON record is judged by: its text, the marked one, what was read of that, and whether
    a field is there twice.
    """

    text: Column
    marks: Column
    leaves: Column
    is_twice: Column


def decode(
    raw: DataFrame,
    source: KafkaSource,
    schemas: ReadBy | None = None,
    *,
    has_ordinary: bool = False,
) -> Decoded:
    """Parse the values of Spark's Kafka columns ``raw``, and the keys if they have a format.

    A JSON record is bad if its value is null, is not one JSON object in UTF-8, has a field of what
    its type does not take, has a field twice, or lacks a field declared NOT NULL; and by
    ``unknown_fields``: ``fail``, or ``keep`` where that cannot be. One of a kind of schema is
    bad if its value is null, names none of ``schemas``, or cannot be read by that into the
    reader's. So is one whose key is not null and not what its format says.

    Raises:
        ConfigError: ``value_schema`` or ``key_schema`` is not a Spark schema; or a column of the
            key has the name of one of the value.
    """
    raw = raw.withColumns({BYTES: F.length("value"), KEY_BYTES: F.length("key")})
    schemas = schemas or NOTHING
    if source.key_format == "raw":
        return _decode_value(raw, source, schemas.value, has_ordinary=has_ordinary)
    if source.key_format == "json":
        raw, columns = _decode_json_key(raw, source, schemas.key)
    else:
        raw, columns = keys.decoded(raw, source, schemas.key)
    decoded = _decode_value(raw, source, schemas.value, has_ordinary=has_ordinary)
    keys.refuse_two_of_one_name(columns, _value_names(source, schemas.value))
    read_by = ReadBy(decoded.schemas.value, schemas.key)
    return replace(decoded, schemas=read_by, key_columns=list(columns.values()))


def _decode_json_key(
    raw: DataFrame, source: KafkaSource, schemas: WireSchemas | None
) -> tuple[DataFrame, Mapping[str, Column]]:
    """A key is decoded as a value would be; then its columns get names of their own."""
    as_values = raw.withColumn(KEY.own("value"), F.col("value")).withColumn("value", F.col("key"))
    like_a_value, plain = keys.as_value(source, schemas), keys.is_plain_json(source, schemas)
    try:
        fields = value_schema(like_a_value)
        whole = _decode_json(as_values, like_a_value, schemas, plain=plain).all
    except ConfigError as error:
        raise ConfigError(str(error).replace("value_schema", "key_schema")) from error
    whole = whole.drop(TEXT, *WORKING)
    made = {PARSED: "parsed", UNKNOWN: "unknown", ERROR: "error"}
    moved = whole.withColumnsRenamed({name: KEY.own(own) for name, own in made.items()})
    restored = moved.withColumn("value", F.col(KEY.own("value"))).drop(KEY.own("value"))
    parsed = F.col(KEY.own("parsed"))
    columns = {
        name: parsed.getField(field.name).alias(name)
        for field in fields
        if (name := KEY_COLUMN if plain else f"{source.key_prefix}{field.name}")
    }
    return restored.withColumn(KEY.own("error"), keys.told_of_the_key(plain=plain)), columns


def _decode_value(
    raw: DataFrame, source: KafkaSource, schemas: WireSchemas | None, *, has_ordinary: bool
) -> Decoded:
    if source.value_format == "raw":
        missing = F.when(F.col("value").isNull(), F.lit("the value is null (a tombstone)"))
        nothing = raw.withColumn(UNKNOWN, F.lit(None).cast("array<string>"))
        return Decoded(_with_error(nothing, missing, source), source)
    if source.value_format != "json":
        return _decode_by_schema(raw, source, schemas)
    has_ordinary = has_ordinary and schemas is None and not source.keeps_unknown
    return _decode_json(raw, source, schemas, has_ordinary=has_ordinary)


def _decode_json(
    raw: DataFrame,
    source: KafkaSource,
    schemas: WireSchemas | None,
    *,
    plain: bool = False,
    has_ordinary: bool = False,
) -> Decoded:
    """By ``source.value_schema``; or what follows the number of one of ``schemas``, by the
    reader's: whichever a record names, its fields are told by their names. Of a ``plain`` one the
    value is that of the only field.
    """
    value, named = F.col("value"), list[tuple[Column, Column]]()
    if schemas is not None:
        columns = {"value_schema": schemas.reader_text}
        schemas = _by_policy(schemas, source)
        source, raw = source.model_copy(update=columns), wire.keyed(raw, schemas)
        value, named = wire.body(schemas), [*wire.errors(schemas)]
    schema = value_schema(source)
    # a column, since bytes that become a text wherever one is asked for are copied each time
    text, made_of = F.col(TEXT), read_as(schema)
    made = keys.as_field(value.cast("string")) if plain else value.cast("string")
    found = ordinary(value, schema, made_of) if has_ordinary else None
    if found is None:
        judged, marks = _always, F.col(_MARKS)
        read = raw.withColumn(TEXT, made).withColumn(_MARKS, marked(text))
        read = read.withColumn(_LEAVES, leaves_of(schemas, marks, schema))
        leaves = F.col(_LEAVES)
        parsed = read.withColumn(PARSED, converted(leaves, schema))
    else:
        its = Ordinary(F.col(_FOUND))
        judged, marks, leaves = _if_judged, its.marks, its.leaves
        # in one step, since each step of a plan copies what it hands on
        read = raw.withColumns({TEXT: made, _FOUND: found})
        parsed = read.withColumn(PARSED, F.coalesce(its.row, converted(leaves, schema)))
    listed = judged(keys_if_more(schema, text, marks, F.col(PARSED)))
    looked, nested = parsed.withColumn(_KEYS, listed), None
    if (names := nested_names(schema, marks, F.col(_KEYS))) is not None:
        looked, nested = looked.withColumn(_NESTED, judged(names)), F.col(_NESTED)
    unknown = judged(unknown_fields(schema, F.col(_KEYS), nested))
    if found is not None:
        unknown = F.coalesce(unknown, Ordinary(F.col(_FOUND)).unknown)
    looked = looked.withColumn(UNKNOWN, unknown)
    if (lost := json_rescue.lost(schemas, marks, schema)) is not None:
        looked = looked.withColumn(LOST, lost)
    record = _Record(text, marks, leaves, is_twice(F.col(_KEYS), nested))
    named += json_rescue.errors(schemas, F.col(PARSED))
    error = judged(_json_error(schema, record, named))
    if source.keeps_unknown:
        more = F.array().cast("array<string>") if lost is None else F.col(LOST)
        kept = json_fields.kept(marks, schema, F.col(UNKNOWN), more)
        # a field that is there twice would be an error of Spark's
        looked = looked.withColumn(KEPT, F.when(~record.is_twice, kept))
        is_kept = F.col(KEPT).isNotNull() | (F.col(UNKNOWN).isNull() & (F.size(more) == 0))
        error = F.coalesce(error, F.when(~is_kept, F.lit(_NOT_KEPT)))
    if source.unknown_fields == "fail":
        error = _or_unknown(error)
    return Decoded(_with_error(looked, error, source), source, ReadBy(schemas))


def _if_judged(of: Column) -> Column:
    """``of`` records of which something may be wrong; null for ordinary ones."""
    return F.when(Ordinary(F.col(_FOUND)).row.isNull(), of)


def _always(of: Column) -> Column:
    return of


def _decode_by_schema(raw: DataFrame, source: KafkaSource, schemas: WireSchemas | None) -> Decoded:
    if schemas is None:
        schemas = WireSchemas.alone(source.schema_text, source.schema_type, source.message)
    schemas = _by_policy(schemas, source)
    decoder = decoder_of(schemas.type)
    looked = decoder.parsed(wire.keyed(raw, schemas), schemas, PARSED, UNKNOWN)
    if schemas.rescues:
        kept = F.col(PARSED).getField(UNKNOWN_COLUMN)
        looked = looked.withColumn(LOST, json_fields.rescued(kept, F.col(UNKNOWN)))
    error = F.when(F.col("value").isNull(), F.lit("the value is null (a tombstone)"))
    wrong = decoder.errors(schemas, F.col(PARSED), F.col(UNKNOWN))
    for found, reason in [*wire.errors(schemas), *wrong]:
        error = error.when(found, reason)
    if source.unknown_fields == "fail":
        error = _or_unknown(error)
    return Decoded(_with_error(looked, error, source), source, ReadBy(schemas))


def _by_policy(schemas: WireSchemas, source: KafkaSource) -> WireSchemas:
    if source.keeps_unknown and UNKNOWN_COLUMN in schemas.kind.field_names(schemas.reader_text):
        raise ConfigError(
            f"source.schema_changes or source.unknown_fields makes a column {UNKNOWN_COLUMN!r}, "
            f"and schema {schemas.reader or 'source.value_schema'} has a field of that name"
        )
    return replace(schemas, policy=source.schema_changes, keeps=source.keeps_unknown)


def _with_error(df: DataFrame, error: Column, source: KafkaSource) -> DataFrame:
    if source.key_format != "raw":
        error = F.coalesce(error.cast("string"), F.col(KEY.own("error")))
    if source.tombstones == "skip":
        error = F.when(F.col("value").isNotNull(), error)
    # Spark moves no condition on it below a step that is not sure to give the same again. There it
    # would judge each record by reading it anew for every value that it looks at
    return df.withColumn(ERROR, F.when(F.spark_partition_id() >= 0, error.cast("string")))


def _json_error(
    schema: StructType, record: _Record, named: Sequence[tuple[Column, Column]]
) -> Column:
    """The first thing wrong with a record, null if nothing is; ``named`` is what may be wrong with
    what stands in front of its ``text``; without that the text is all of its value.

    Spark's parser takes the first element of a top-level array, ignores what follows the first
    object, and calls the record good; the look at the first and last character does not.
    """
    text, leaves = record.text, record.leaves
    whole = F.col("value") if named else text
    error = F.when(whole.isNull(), "the value is null (a tombstone)")
    for found, reason in named:
        error = error.when(found, reason)
    error = (
        error.when(~braced(text), "the value is not a JSON object")
        .when(leaves.getField(CORRUPT).isNotNull(), misfit(text, schema))
        .when(leaves.isNull(), "the value is not a JSON object")
        .when(record.is_twice, "a field is written twice")
    )
    for fault in text_faults(text, record.marks):
        error = error.when(fault.found, fault.reason)
    for field in schema:
        leaf, value = leaves.getField(field.name), F.col(PARSED).getField(field.name)
        if not field.nullable:
            error = error.when(leaf.isNull(), f"required field {field.name!r} is missing or null")
        for fault in faults(leaf, value, field.dataType, field.name):
            error = error.when(fault.found, fault.reason)
    return error


def _or_unknown(error: Column) -> Column:
    named = F.array_join(F.slice(F.col(UNKNOWN), 1, json_fields.NAMES_MAX), ", ")
    reason = F.concat(F.lit("it has fields that the schema does not name: "), named)
    return F.coalesce(error, F.when(F.col(UNKNOWN).isNotNull(), reason))


def _value_names(source: KafkaSource, schemas: WireSchemas | None) -> list[str]:
    if source.value_format == "raw":
        return ["value"]
    if schemas is not None:
        return schemas.kind.field_names(schemas.reader_text)
    if source.value_format == "json":
        return value_schema(source).names
    return kind_of(source.schema_type, source.message).field_names(source.schema_text)

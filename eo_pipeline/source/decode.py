"""Kafka bytes to columns, and what makes a record a bad one. Lazy Spark expressions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from eo_pipeline.errors import ConfigError
from eo_pipeline.source import json_fields, json_rescue, keys, wire
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.decoded import (
    BYTES,
    ERROR,
    KEY_BYTES,
    LOST,
    PARSED,
    TEXT,
    UNKNOWN,
    Decoded,
)
from eo_pipeline.source.decoders import decoder_of
from eo_pipeline.source.json_fields import keys_if_more, unknown_fields, written_twice
from eo_pipeline.source.json_values import braced, exact, faults, read_type, text_faults
from eo_pipeline.source.kinds import kind_of
from eo_pipeline.source.ordinary import is_judged, ordinary
from eo_pipeline.source.ordinary import unknown as unknown_of
from eo_pipeline.source.parts import KEY, KEY_COLUMN
from eo_pipeline.source.typed import value_schema
from eo_pipeline.source.wire import NOTHING, UNKNOWN_COLUMN, ReadBy, WireSchemas

_KEYS = "_eo_keys"
_CORRUPT = "_eo_corrupt"


def decode(
    raw: DataFrame,
    source: KafkaSource,
    schemas: ReadBy | None = None,
    *,
    has_ordinary: bool = False,
) -> Decoded:
    """Parse the values of Spark's Kafka columns ``raw``, and the keys if they have a format.

    A JSON record is bad if its value is null, is not one JSON object in UTF-8, has a field of
    another type than the schema says or of a value that would change on its way, has a field twice,
    or lacks a field declared NOT NULL; and by ``unknown_fields: fail``. One of a kind of schema is
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
    made = {TEXT: "text", PARSED: "parsed", _KEYS: "keys", UNKNOWN: "unknown", ERROR: "error"}
    moved = whole.withColumnsRenamed({name: KEY.own(own) for name, own in made.items()})
    restored = moved.withColumn("value", F.col(KEY.own("value"))).drop(KEY.own("value"))
    parsed = F.col(KEY.own("parsed"))
    columns = {
        name: exact(parsed.getField(field.name), field.dataType).alias(name)
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
    text = F.col(TEXT)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    made_of = read_as(schema)
    reading = StructType(made_of.fields[:-1])
    found = ordinary(value, schema, made_of) if has_ordinary else None
    made = keys.as_field(value.cast("string")) if plain else value.cast("string")
    judged = _always if found is None else _if_judged
    read = found
    if read is None:
        read = json_rescue.parsed(schemas, made, reading, F.from_json(made, made_of, options))
    # in one step, since each step of a plan copies what it hands on
    parsed = raw.withColumns({TEXT: made, PARSED: read})
    keyed = parsed.withColumn(_KEYS, judged(keys_if_more(schema, text, F.col(PARSED))))
    unknown = judged(unknown_fields(schema, text, F.col(_KEYS)))
    if found is not None:
        unknown = F.coalesce(unknown, unknown_of(F.col(PARSED)))
    looked = keyed.withColumn(UNKNOWN, unknown)
    if (lost := json_rescue.lost(schemas, text, reading)) is not None:
        looked = looked.withColumn(LOST, lost)
    named += json_rescue.errors(schemas, F.col(PARSED))
    error = judged(_json_error(schema, text, named))
    if source.unknown_fields == "fail":
        error = _or_unknown(error)
    return Decoded(_with_error(looked, error, source), source, ReadBy(schemas))


def read_as(schema: StructType) -> StructType:
    """What Spark's reader makes of records of ``schema``: see :func:`read_type`, and a column for
    what is none.
    """
    reading = read_type(schema)
    assert isinstance(reading, StructType)
    return StructType(list(reading)).add(_CORRUPT, "string")


def _if_judged(of: Column) -> Column:
    """``of`` records of which something may be wrong; null for ordinary ones."""
    return F.when(is_judged(F.col(PARSED)), of)


def _always(of: Column) -> Column:
    return of


def _decode_by_schema(raw: DataFrame, source: KafkaSource, schemas: WireSchemas | None) -> Decoded:
    if schemas is None:
        schemas = WireSchemas.alone(source.schema_text, source.schema_type, source.message)
    schemas = _by_policy(schemas, source)
    decoder = decoder_of(schemas.type)
    looked = decoder.parsed(wire.keyed(raw, schemas), schemas, PARSED, UNKNOWN)
    error = F.when(F.col("value").isNull(), F.lit("the value is null (a tombstone)"))
    wrong = decoder.errors(schemas, F.col(PARSED))
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
    return df.withColumn(ERROR, error.cast("string"))


def _json_error(schema: StructType, text: Column, named: Sequence[tuple[Column, Column]]) -> Column:
    """The first thing wrong with a record, null if nothing is; ``named`` is what may be wrong with
    what stands in front of its ``text``; without that the text is all of its value.

    Spark's parser takes the first element of a top-level array, ignores what follows the first
    object, and calls the record good; the look at the first and last character does not.
    """
    whole = F.col("value") if named else text
    error = F.when(whole.isNull(), "the value is null (a tombstone)")
    for found, reason in named:
        error = error.when(found, reason)
    error = (
        error.when(~braced(text), "the value is not a JSON object")
        .when(F.col(f"{PARSED}.{_CORRUPT}").isNotNull(), "the value does not fit the schema")
        .when(F.col(PARSED).isNull(), "the value is not a JSON object")
        .when(written_twice(F.col(_KEYS)), "a field is written twice")
    )
    for fault in text_faults(text):
        error = error.when(fault.found, fault.reason)
    for field in schema:
        value = F.col(PARSED).getField(field.name)
        if not field.nullable:
            error = error.when(value.isNull(), f"required field {field.name!r} is missing or null")
        for fault in faults(value, field.dataType, field.name, text):
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

"""Keys to columns: what is of a key alone. Lazy Spark expressions only.

A key that is a record becomes a column for each of its fields, with a prefix; any other becomes the
column ``key``. No key, no values in them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.schemas import AVRO
from eo_pipeline.source import json_schema, wire
from eo_pipeline.source.avro_schema import is_plain
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.decoders import decoder_of
from eo_pipeline.source.parts import KEY, KEY_COLUMN
from eo_pipeline.source.schema_changes import SchemaChanges
from eo_pipeline.source.wire import WireSchemas

_PARSED, _UNKNOWN, _ERROR = KEY.own("parsed"), KEY.own("unknown"), KEY.own("error")


def decoded(
    raw: DataFrame, source: KafkaSource, schemas: WireSchemas | None
) -> tuple[DataFrame, Mapping[str, Column]]:
    """``raw`` with what is wrong with each key, and with its unknown fields, each null if nothing;
    and the columns of the key by their names. Of all formats but ``json``.
    """
    if source.key_format == "text":
        text = F.col("key").cast("string")
        error = F.when(~F.is_valid_utf8(text), "the key is not text in UTF-8")
        looked = raw.withColumn(_ERROR, error)
        return looked.withColumn(_UNKNOWN, _none()), {KEY_COLUMN: text.alias(KEY_COLUMN)}
    if schemas is None:
        schema_type, message = source.schema_type_of(KEY), source.message_of(KEY)
        schemas = WireSchemas.alone(source.schema_text_of(KEY), schema_type, message, KEY)
    return _by_schema(raw, source, schemas)


def _by_schema(
    raw: DataFrame, source: KafkaSource, schemas: WireSchemas
) -> tuple[DataFrame, Mapping[str, Column]]:
    decoder, struct = decoder_of(schemas.type), F.col(_PARSED)
    looked = decoder.parsed(wire.keyed(raw, schemas), schemas, _PARSED, _UNKNOWN)
    error = F.when(F.col("key").isNull(), F.lit(None).cast("string"))
    wrong = decoder.errors(schemas, struct, F.col(_UNKNOWN))
    for found, reason in [*wire.errors(schemas), *wrong]:
        error = error.when(found, reason)
    if source.unknown_fields == "fail":
        more = "the key has fields that the schema does not name"
        error = error.when(F.col(_UNKNOWN).isNotNull(), more)
    plain = schemas.type == AVRO and is_plain(schemas.reader_text)
    columns = {
        name: struct.getField(field).alias(name)
        for field in schemas.kind.field_names(schemas.reader_text)
        if (name := KEY_COLUMN if plain else f"{source.key_prefix}{field}")
    }
    return looked.withColumn(_ERROR, error), columns


def as_value(source: KafkaSource, schemas: WireSchemas | None) -> KafkaSource:
    """A source whose values are what the keys of ``source`` are, a null one no error."""
    return source.model_copy(
        update={
            "value_format": source.key_format,
            "value_schema": _json_schema(source, schemas),
            "key_format": "raw",
            "registry": None,
            "tombstones": "skip",
            "unknown_fields": "fail" if source.unknown_fields == "fail" else "ignore",
            "schema_changes": SchemaChanges(),
        }
    )


def is_plain_json(source: KafkaSource, schemas: WireSchemas | None) -> bool:
    """Whether a JSON key is no object, but the value of the one column."""
    text = _json_schema(source, schemas)
    return json_schema.is_one(text) and json_schema.is_plain(text)


def _json_schema(source: KafkaSource, schemas: WireSchemas | None) -> str:
    if schemas is not None:
        return schemas.reader_text
    text = source.key_schema or ""
    return json_schema.as_object(text) if json_schema.is_one(text) else text


def as_field(text: Column) -> Column:
    """The text of a plain JSON key as that of an object."""
    return F.concat(F.lit('{"key":'), text, F.lit("}"))


def told_of_the_key(*, plain: bool) -> Column:
    """The error of a key that was decoded as a value is."""
    error, of_a_value = F.col(_ERROR), "the value"
    if plain:  # with more behind it, which made fields of its own
        more = F.when(F.col(_UNKNOWN).isNotNull(), F.lit("the value is not one JSON value"))
        error = F.coalesce(error, more)
    renamed = F.concat(F.lit("the key"), F.substring(error, len(of_a_value) + 1, 1_000_000))
    return (
        F.when(error.startswith(of_a_value), renamed)
        .when(error.startswith("the key"), error)
        .otherwise(F.concat(F.lit("the key: "), error))
    )


def together(value: Column, key: Column) -> Column:
    """Paths of unknown fields of both, null if there are none in either."""
    of_key = F.transform(key, lambda path: F.concat(F.lit("key: "), path))
    none = F.array().cast("array<string>")
    both = F.concat(F.coalesce(value, none), F.coalesce(of_key, none))
    return F.when(value.isNotNull() | key.isNotNull(), both)


def refuse_two_of_one_name(columns: Collection[str], of_value: Collection[str]) -> None:
    """Return if no column of the key has the name of one of the value.

    Raises:
        ConfigError: one has.
    """
    taken = {name.lower() for name in of_value}
    if twice := sorted(name for name in columns if name.lower() in taken):
        raise ConfigError(
            f"the key and the value both have a column {', '.join(twice)}. Nothing was read. Give "
            "the key's columns another prefix (source.key_prefix), or leave the key as it is "
            "(source.key_format: raw): transforms have it in _kafka.key."
        )


def _none() -> Column:
    return F.lit(None).cast("array<string>")

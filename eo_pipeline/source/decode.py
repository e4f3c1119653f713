"""Kafka bytes to columns, and what makes a record a bad one. Lazy Spark expressions only.

A decoded frame has the value's own columns, and one struct column ``_kafka`` with ``topic``,
``partition``, ``offset``, ``timestamp``, ``timestamp_type``, ``key`` and ``headers``, so that
Kafka's names never clash with a field of the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.source import json_fields, json_rescue, keys, wire
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.decoders import decoder_of
from eo_pipeline.source.json_fields import kept, keys_if_more, unknown_fields, written_twice
from eo_pipeline.source.json_values import braced, exact, faults, read_type, text_faults
from eo_pipeline.source.kinds import kind_of
from eo_pipeline.source.ordinary import is_judged, ordinary
from eo_pipeline.source.ordinary import unknown as unknown_of
from eo_pipeline.source.parts import KEY, KEY_COLUMN
from eo_pipeline.source.typed import value_schema
from eo_pipeline.source.wire import NOTHING, UNKNOWN_COLUMN, ReadBy, WireSchemas

#: The struct column with a record's coordinates; a transform that keeps it keeps the lineage.
KAFKA_COLUMN = "_kafka"

#: Lineage columns in the table, and the field of ``_kafka`` each comes from.
LINEAGE = {"_eo_topic": "topic", "_eo_partition": "partition", "_eo_offset": "offset"}

_ERROR = "_eo_error"
_PARSED = "_eo_parsed"
_KEYS = "_eo_keys"
_UNKNOWN = "_eo_unknown"
_CORRUPT = "_eo_corrupt"
_TEXT = "_eo_text"
_BYTES = "_eo_bytes"
_SHOWN = "_eo_shown"
_LOST = "_eo_lost"

#: Characters of a bad value that are shown to a person.
SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class Decoded:
    """One read, four views of it. All lazy.

    ``all``: every record with its error (or null); ``flowing``: the same without what nobody needs
    any more; ``good``: what the transform gets; ``metrics``: aggregates over ``flowing`` for an
    Observation.
    """

    all: DataFrame
    source: KafkaSource
    schemas: ReadBy = NOTHING
    #: of the key's columns, in order
    key_columns: Sequence[Column] = ()

    @property
    def flowing(self) -> DataFrame:
        """Every record as it flows into the metrics, and from there into :meth:`good`.

        A row is copied before its metrics and after them, and a record's own bytes are half of it:
        what is said of them is said before.
        """
        is_bad = F.col(_ERROR).isNotNull()
        is_all = self.source.value_format == "json" and self.schemas.value is None
        value = F.col(_TEXT) if is_all else F.col("value").cast("string")
        begin = F.left(value, F.lit(SHOWN_CHARACTERS)).alias("value")
        error = F.col(_ERROR).alias("error")
        shown = F.to_json(F.struct("topic", "partition", "offset", error, begin))
        said = self.all.withColumn(_SHOWN, F.when(is_bad, shown))
        return said.drop(*(() if self._gives_value else ("value", _TEXT)))

    def metrics(self) -> list[Column]:
        """``records``, ``bytes``, ``key_bytes``, ``good``, ``bad``, ``skipped``, ``first_bad``
        (JSON text), and what :func:`json_fields.metrics` says of unknown fields, in records that
        are good.
        """
        return [
            F.count(F.lit(1)).alias("records"),
            F.coalesce(F.sum(_BYTES), F.lit(0)).alias("bytes"),
            F.coalesce(F.sum(F.length("key")), F.lit(0)).alias("key_bytes"),
            F.count(F.when(self._is_good(), 1)).alias("good"),
            F.count(_ERROR).alias("bad"),
            F.count(F.when(self._skipped(), 1)).alias("skipped"),
            F.min(_SHOWN).alias("first_bad"),
            *json_fields.metrics(self._unknown(), self._is_good()),
            *(metric for each in self.schemas.parts for metric in wire.metrics(each)),
        ]

    @property
    def writers(self) -> list[tuple[str, ...]]:
        """Keys of the schemas in a registry that records are looked for of, by part."""
        return self.schemas.writers

    @property
    def decides(self) -> tuple[str | bool | None, ...]:
        """What the columns and their types follow from."""
        source, value, key = self.source, self.schemas.value, self.schemas.key
        return (
            source.value_format,
            value.reader_text if value else source.value_schema,
            source.message,
            source.keeps_unknown,
            source.key_format,
            key.reader_text if key else source.key_schema,
            source.key_message,
            source.key_prefix,
        )

    def good(self, observed: DataFrame, *, whole: bool = True) -> DataFrame:
        """What the transform gets: the value's columns, the key's, and ``_kafka``; that only with
        what says where a record came from, unless ``whole``.
        """
        columns = [*_value_columns(self.source, self.schemas.value), *self.key_columns]
        kafka = _kafka_struct() if whole else F.struct(*LINEAGE.values()).alias(KAFKA_COLUMN)
        return observed.where(self._is_good()).select(*columns, kafka)

    def _unknown(self) -> Column:
        """The paths of unknown fields of value and key, null if there are none."""
        value, key = F.col(_UNKNOWN), F.col(KEY.own("unknown"))
        return keys.together(value, key) if self.key_columns else value

    def dead_letters(self, version: int) -> DataFrame:
        """The bad records as they came, with their coordinates and the error."""
        return self.all.where(F.col(_ERROR).isNotNull()).select(
            F.lit(version).cast("bigint").alias(CHECKPOINT_COLUMN),
            *("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
            F.col(_ERROR).alias("error"),
        )

    def marked(self, errors: Sequence[Mapping[str, Any]]) -> Decoded:
        """The same, with these records bad too: each has ``topic``, ``partition``, ``offset`` and
        ``error``, and no two are of one record.
        """
        shape = "array<struct<topic: string, partition: int, offset: bigint, more: string>>"
        listed = [{**each, "more": each["error"]} for each in errors]
        text = F.lit(json.dumps(listed))
        more = self.all.sparkSession.range(1).select(F.inline(F.from_json(text, shape)))
        joined = self.all.join(F.broadcast(more), ["topic", "partition", "offset"], "left")
        error = F.coalesce(F.col(_ERROR), F.col("more"))
        return replace(self, all=joined.withColumn(_ERROR, error).drop("more"))

    def marks(self) -> DataFrame:
        """Every record's topic, partition and offset, and whether it is ``bad`` or ``skipped``."""
        return self.all.select(
            *("topic", "partition", "offset"),
            F.col(_ERROR).isNotNull().alias("bad"),
            self._skipped().alias("skipped"),
        )

    def _is_good(self) -> Column:
        return F.col(_ERROR).isNull() & ~self._skipped()

    def _skipped(self) -> Column:
        skip = self.source.tombstones == "skip"
        return F.col(_BYTES).isNull() if skip else F.lit(False)

    @property
    def _gives_value(self) -> bool:
        return self.source.value_format == "raw" or self.source.keeps_unknown


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
    raw = raw.withColumn(_BYTES, F.length("value"))
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
    made = {_TEXT: "text", _PARSED: "parsed", _KEYS: "keys", _UNKNOWN: "unknown", _ERROR: "error"}
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
        nothing = raw.withColumn(_UNKNOWN, F.lit(None).cast("array<string>"))
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
    text = F.col(_TEXT)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    reading = read_type(schema)
    assert isinstance(reading, StructType)
    made_of = StructType(list(reading)).add(_CORRUPT, "string")
    found = ordinary(value, schema, made_of) if has_ordinary else None
    made = keys.as_field(value.cast("string")) if plain else value.cast("string")
    judged = _always if found is None else _if_judged
    read = found
    if read is None:
        read = json_rescue.parsed(schemas, made, reading, F.from_json(made, made_of, options))
    # in one step, since each step of a plan copies what it hands on
    parsed = raw.withColumns({_TEXT: made, _PARSED: read})
    keyed = parsed.withColumn(_KEYS, judged(keys_if_more(schema, text, F.col(_PARSED))))
    unknown = judged(unknown_fields(schema, text, F.col(_KEYS)))
    if found is not None:
        unknown = F.coalesce(unknown, unknown_of(F.col(_PARSED)))
    looked = keyed.withColumn(_UNKNOWN, unknown)
    if (lost := json_rescue.lost(schemas, text, reading)) is not None:
        looked = looked.withColumn(_LOST, lost)
    named += json_rescue.errors(schemas, F.col(_PARSED))
    error = judged(_json_error(schema, text, named))
    if source.unknown_fields == "fail":
        error = _or_unknown(error)
    return Decoded(_with_error(looked, error, source), source, ReadBy(schemas))


def _if_judged(of: Column) -> Column:
    """``of`` records of which something may be wrong; null for ordinary ones."""
    return F.when(is_judged(F.col(_PARSED)), of)


def _always(of: Column) -> Column:
    return of


def _decode_by_schema(raw: DataFrame, source: KafkaSource, schemas: WireSchemas | None) -> Decoded:
    if schemas is None:
        schemas = WireSchemas.alone(source.schema_text, source.schema_type, source.message)
    schemas = _by_policy(schemas, source)
    decoder = decoder_of(schemas.type)
    looked = decoder.parsed(wire.keyed(raw, schemas), schemas, _PARSED, _UNKNOWN)
    error = F.when(F.col("value").isNull(), F.lit("the value is null (a tombstone)"))
    wrong = decoder.errors(schemas, F.col(_PARSED))
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
    return df.withColumn(_ERROR, error.cast("string"))


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
        .when(F.col(f"{_PARSED}.{_CORRUPT}").isNotNull(), "the value does not fit the schema")
        .when(F.col(_PARSED).isNull(), "the value is not a JSON object")
        .when(written_twice(F.col(_KEYS)), "a field is written twice")
    )
    for fault in text_faults(text):
        error = error.when(fault.found, fault.reason)
    for field in schema:
        value = F.col(_PARSED).getField(field.name)
        if not field.nullable:
            error = error.when(value.isNull(), f"required field {field.name!r} is missing or null")
        for fault in faults(value, field.dataType, field.name, text):
            error = error.when(fault.found, fault.reason)
    return error


def _or_unknown(error: Column) -> Column:
    named = F.array_join(F.slice(F.col(_UNKNOWN), 1, json_fields.NAMES_MAX), ", ")
    reason = F.concat(F.lit("it has fields that the schema does not name: "), named)
    return F.coalesce(error, F.when(F.col(_UNKNOWN).isNotNull(), reason))


def _value_names(source: KafkaSource, schemas: WireSchemas | None) -> list[str]:
    if source.value_format == "raw":
        return ["value"]
    if schemas is not None:
        return schemas.kind.field_names(schemas.reader_text)
    if source.value_format == "json":
        return value_schema(source).names
    return kind_of(source.schema_type, source.message).field_names(source.schema_text)


def _value_columns(source: KafkaSource, schemas: WireSchemas | None) -> list[Column]:
    if source.value_format == "raw":
        return [F.col("value")]
    if schemas is not None and source.value_format != "json":
        return decoder_of(schemas.type).columns(schemas, F.col(_PARSED))
    schema, parsed = value_schema(source), F.col(_PARSED)
    columns = [exact(parsed.getField(f.name), f.dataType).alias(f.name) for f in schema]
    if source.keeps_unknown:
        lost = F.col(_LOST) if json_rescue.rescues(schemas) else None
        columns.append(kept(F.col(_TEXT), schema, F.col(_UNKNOWN), lost).alias(UNKNOWN_COLUMN))
    return columns


def _kafka_struct() -> Column:
    return F.struct(
        *("topic", "partition", "offset", "timestamp"),
        F.col("timestampType").alias("timestamp_type"),
        *("key", "headers"),
    ).alias(KAFKA_COLUMN)

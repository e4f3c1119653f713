"""Kafka records to rows: the columns of good records, the errors of bad ones. Lazy expressions."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from eo_pipeline.batch.decode_avro import AvroDecoder
from eo_pipeline.batch.decode_json import TEXT, WORKING, JsonDecoder, has_native_json
from eo_pipeline.batch.decode_protobuf import ProtobufDecoder
from eo_pipeline.batch.decoder import LOST, PARSED, TOMBSTONE, UNKNOWN, Decoder, SchemaDecoder
from eo_pipeline.batch.json_values import FIRST_MICROS, LAST_MICROS
from eo_pipeline.batch.spark_schema import value_schema
from eo_pipeline.batch.unknown_fields import NAMES_MAX
from eo_pipeline.batch.unknown_fields import metrics as unknown_metrics
from eo_pipeline.errors import ConfigError
from eo_pipeline.formats import json_schema, wire_format
from eo_pipeline.formats.json_schema import JsonSchema
from eo_pipeline.formats.parts import KEY, KEY_COLUMN
from eo_pipeline.formats.schema_diff import SchemaChanges
from eo_pipeline.formats.wire_format import NOTHING, UNKNOWN_COLUMN, ReadSchemas, WriterSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.ledger.schemas import AVRO, PROTOBUF

#: The struct column with a record's coordinates; a transform that keeps it keeps the lineage.
KAFKA_COLUMN = "_kafka"

#: Lineage columns in the table, and the field of ``_kafka`` each comes from.
LINEAGE = {"_eo_topic": "topic", "_eo_partition": "partition", "_eo_offset": "offset"}

#: Columns that a decoded record has beside Kafka's own and the decoder's.
ERROR = "_eo_error"
BYTES = "_eo_bytes"
KEY_BYTES = "_eo_key_bytes"

_SHOWN = "_eo_shown"

#: Characters of a bad value that messages show.
SHOWN_CHARACTERS = 120

#: The decoder's columns of a key, renamed to make room for those of the value.
_KEY_COLUMNS = {
    PARSED: KEY.column_name("parsed"),
    UNKNOWN: KEY.column_name("unknown"),
    ERROR: KEY.column_name("error"),
}
_KEY_PARSED, _KEY_UNKNOWN, _KEY_ERROR = _KEY_COLUMNS.values()

_DECODERS: Mapping[str, type[SchemaDecoder]] = {AVRO: AvroDecoder, PROTOBUF: ProtobufDecoder}


def gives_utf8(source: KafkaSource) -> bool:
    """Return whether all texts of good records are UTF-8, by a JSON parser or a test. Avro and
    Protobuf pass bytes on as they are.
    """
    return source.value_format == "json" and source.key_format in ("raw", "text", "json")


@dataclass(frozen=True)
class Rows:
    """Every record in one ``frame``: its row, for which ``is_good`` holds or not, and the
    ``columns`` that the ``metrics`` aggregate.
    """

    frame: DataFrame
    is_good: Column
    columns: Sequence[str]
    metrics: Sequence[Column]


@dataclass(frozen=True)
class Decoded:
    """One read, five views of it. All lazy.

    ``all``: every record with its error (or null); ``trimmed``: the same without columns that
    nothing needs after that; ``good``: input of the transform; ``rows``: ``trimmed`` and ``good``
    at once, for sources without a transform; ``metrics``: aggregates over ``trimmed`` or ``rows``
    for an Observation.
    """

    all: DataFrame
    source: KafkaSource
    schemas: ReadSchemas = NOTHING
    #: of values; None for raw ones
    decoder: Decoder | None = None
    #: of the key, in order
    key_columns: Sequence[Column] = ()

    @property
    def trimmed(self) -> DataFrame:
        """Every record as the metrics, and then :meth:`good`, take it.

        Spark copies a row before its metrics and after them, and a record's own bytes are half of
        it: all that depends on the bytes is computed before.
        """
        df = self.all.withColumn(_SHOWN, self._shown())
        is_raw = self.source.value_format == "raw"
        return df.drop(*WORKING, *(() if is_raw else ("value", TEXT)))

    def _shown(self) -> Column:
        """Return what messages show of a bad record, JSON text; null for any other one."""
        is_bad = F.col(ERROR).isNotNull()
        has_text = self.source.value_format == "json" and self.schemas.value is None
        value = F.col(TEXT) if has_text else F.col("value").cast("string")
        begin = F.left(value, F.lit(SHOWN_CHARACTERS)).alias("value")
        error = F.col(ERROR).alias("error")
        return F.when(is_bad, F.to_json(F.struct("topic", "partition", "offset", error, begin)))

    def metrics(self) -> list[Column]:
        """Return the aggregates ``records``, ``bytes``, ``key_bytes``, ``good``, ``bad``,
        ``skipped``, ``first_bad`` (JSON text), those of the unknown fields of good records, and
        those of the schemas that were met.
        """
        return [
            F.count(F.lit(1)).alias("records"),
            F.coalesce(F.sum(BYTES), F.lit(0)).alias("bytes"),
            F.coalesce(F.sum(KEY_BYTES), F.lit(0)).alias("key_bytes"),
            F.count(F.when(self._is_good(), 1)).alias("good"),
            F.count(ERROR).alias("bad"),
            F.count(F.when(self._skipped(), 1)).alias("skipped"),
            F.min(_SHOWN).alias("first_bad"),
            *unknown_metrics(self._unknown(), self._is_good()),
            *(metric for part in self.schemas.parts for metric in wire_format.metrics(part)),
        ]

    @property
    def writers(self) -> list[tuple[str, ...]]:
        """Keys of the registry's schemas that records are tested for, by part."""
        return self.schemas.writers

    @property
    def decides(self) -> tuple[str | bool | None, ...]:
        """Everything that determines the columns and their types."""
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
        """Return the input of the transform: the columns of value and key, and ``_kafka``, with the
        coordinates alone unless ``whole``.
        """
        kafka = _kafka_struct() if whole else _coordinates()
        return observed.where(self._is_good()).select(*self._columns(), kafka)

    def rows(self) -> Rows:
        """See :class:`Rows`. Spark copies every row before and after a step that counts: this has
        one such step, where ``trimmed`` and ``good`` have one each.
        """
        counted = [BYTES, KEY_BYTES, ERROR, _SHOWN, UNKNOWN]
        if self.key_columns:
            counted.append(_KEY_UNKNOWN)
        if self._has_lost:
            counted.append(LOST)
        counted += [
            name for part in self.schemas.parts for name in wire_format.metric_columns(part)
        ]
        frame = self.trimmed.select(*self._columns(), _coordinates(), *counted)
        return Rows(frame, self._is_good(), counted, self.metrics())

    def _columns(self) -> list[Column]:
        value = [F.col("value")] if self.decoder is None else self.decoder.columns()
        return [*value, *self.key_columns]

    def _unknown(self) -> Column:
        """Return the paths of unknown fields of value and key, and the names of columns that cannot
        hold the value of their field; null if there are none.
        """
        value = F.col(UNKNOWN)
        if self._has_lost:
            both = F.array_union(
                F.coalesce(value, _no_names()), F.coalesce(F.col(LOST), _no_names())
            )
            value = F.when(F.size(both) > 0, both)
        if not self.key_columns:
            return value
        key = F.col(_KEY_UNKNOWN)
        key_paths = F.transform(key, lambda path: F.concat(F.lit("key: "), path))
        both = F.concat(F.coalesce(value, _no_names()), F.coalesce(key_paths, _no_names()))
        return F.when(value.isNotNull() | key.isNotNull(), both)

    @property
    def _has_lost(self) -> bool:
        return self.decoder is not None and self.decoder.has_lost

    def dead_letters(self, version: int) -> DataFrame:
        """Return the bad records unchanged, with their coordinates and the error."""
        number = F.lit(version).cast("bigint").alias(CHECKPOINT_COLUMN)
        return self.all.where(F.col(ERROR).isNotNull()).select(number, *_letter())

    def marked(self, errors: Sequence[Mapping[str, Any]]) -> Decoded:
        """Return a copy in which these records are bad too: each has ``topic``, ``partition``,
        ``offset`` and ``error``, and no two are of one record.
        """
        if not errors:
            return self
        schema = "array<struct<topic: string, partition: int, offset: bigint, added: string>>"
        text = F.lit(json.dumps([{**error, "added": error["error"]} for error in errors]))
        added = self.all.sparkSession.range(1).select(F.inline(F.from_json(text, schema)))
        joined = self.all.join(F.broadcast(added), ["topic", "partition", "offset"], "left")
        error = F.coalesce(F.col(ERROR), F.col("added"))
        return replace(self, all=joined.withColumn(ERROR, error).drop("added"))

    def all_bad(self, error: str) -> Decoded:
        """Return a copy in which every record is bad, for the reason ``error``."""
        # of a constant Spark would make an empty plan, which counts nothing
        always = F.when(F.col("offset") >= 0, F.lit(error))
        return replace(self, all=self.all.withColumn(ERROR, always))

    def verdicts(self) -> DataFrame:
        """Return of every record: the ``row`` of a good one, a struct; the names of ``unknown``
        fields; how a bad one is ``shown``; the columns of a dead letter, of which ``error`` is null
        for a good one; and for each part with a registry, ``writer_`` and its name, the index of
        the writer's schema, and ``stranger_`` and its name, see
        :func:`~eo_pipeline.formats.wire_format.stranger`.
        """
        met = []
        for part in self.schemas.by_registry:
            name = part.part.name
            met.append(wire_format.writer_index(part).alias(f"writer_{name}"))
            met.append(wire_format.stranger(part).alias(f"stranger_{name}"))
        return self.all.select(
            F.struct(*self._columns()).alias("row"),
            self._unknown().alias("unknown"),
            self._shown().alias("shown"),
            *_letter(),
            *met,
        )

    def marks(self) -> DataFrame:
        """Return the coordinates of every record, and if it is ``bad`` or ``skipped``."""
        return self.all.select(
            *("topic", "partition", "offset"),
            F.col(ERROR).isNotNull().alias("bad"),
            self._skipped().alias("skipped"),
        )

    def _is_good(self) -> Column:
        return F.col(ERROR).isNull() & ~self._skipped()

    def _skipped(self) -> Column:
        skip = self.source.tombstones == "skip"
        return F.col(BYTES).isNull() if skip else F.lit(False)


def key_schema(source: KafkaSource) -> StructType | None:
    """Return the fields of keys that are texts or JSON objects, without a registry; none of raw
    keys; None of any other ones. :func:`key_names` has the names of their columns.

    Raises:
        ConfigError: ``key_schema`` is not a Spark schema.
    """
    if source.key_format == "raw":
        return StructType()
    if source.key_format == "text":
        return StructType().add(KEY_COLUMN, StringType())
    text = source.key_schema
    if source.key_format != "json" or text is None or json_schema.is_one(text):
        return None
    try:
        return value_schema(_as_value(source, text))
    except ConfigError as error:
        raise _of_key(error) from error


def key_names(source: KafkaSource, fields: StructType) -> list[str]:
    """Return the names of the columns of :func:`key_schema`."""
    prefix = "" if source.key_format == "text" else source.key_prefix
    return [f"{prefix}{field.name}" for field in fields]


def decode(
    raw: DataFrame,
    source: KafkaSource,
    schemas: ReadSchemas | None = None,
    *,
    native: bool = False,
) -> Decoded:
    """Decode the values of Spark's Kafka columns ``raw``, and the keys if they have a format.
    ``native``: JSON by a function of this package, if Spark has it; a few records are not worth it.

    A JSON record is bad if its value is null, is not one JSON object in UTF-8, has a value that its
    column does not take, has a field twice, or lacks a field declared NOT NULL; and with
    ``unknown_fields``: ``fail`` if it has some, or ``keep`` if they cannot be kept. A record of
    Avro or Protobuf is bad if its value is null, names none of ``schemas``, or cannot be read from
    that into the reader's schema. So is a record whose key is neither null nor of its format.

    Raises:
        ConfigError: ``value_schema`` or ``key_schema`` is not a Spark schema; or a column of the
            key has the name of one of the value.
    """
    raw = raw.withColumns({BYTES: F.length("value"), KEY_BYTES: F.length("key")})
    schemas = schemas or NOTHING
    if source.key_format == "raw":
        return _decode_value(raw, source, schemas.value, native=native)
    raw, key_columns = _decode_key(raw, source, schemas.key)
    result = _decode_value(raw, source, schemas.value, native=native)
    refuse_common_names(key_columns, ["value"] if result.decoder is None else result.decoder.names)
    read_by = ReadSchemas(result.schemas.value, schemas.key)
    return replace(result, schemas=read_by, key_columns=list(key_columns.values()))


def _decode_value(
    raw: DataFrame, source: KafkaSource, schemas: WriterSchemas | None, *, native: bool
) -> Decoded:
    if source.value_format == "raw":
        raw = raw.withColumn(UNKNOWN, F.lit(None).cast("array<string>"))
        error = F.when(F.col("value").isNull(), F.lit(TOMBSTONE))
        return Decoded(_with_error(raw, error, source), source)
    if schemas is None and source.value_format != "json":
        schemas = WriterSchemas.single(source.schema_text, source.schema_type, source.message)
    if schemas is not None:
        schemas = _with_policy(schemas, source)
    decoder: Decoder
    if schemas is not None and source.value_format != "json":
        decoder = _DECODERS[schemas.type](schemas)
    else:
        native = native and schemas is None and not source.keeps_unknown
        native = native and has_native_json(raw.sparkSession)
        decoder = JsonDecoder(source, schemas, native=native)
    df, error = decoder.decoded(raw), decoder.error()
    if source.unknown_fields == "fail":
        error = _or_unknown(error)
    return Decoded(_with_error(df, error, source), source, ReadSchemas(schemas), decoder)


def _with_policy(schemas: WriterSchemas, source: KafkaSource) -> WriterSchemas:
    if source.keeps_unknown and UNKNOWN_COLUMN in schemas.kind.field_names(schemas.reader_text):
        raise ConfigError(
            f"source.schema_changes or source.unknown_fields makes a column {UNKNOWN_COLUMN!r}, "
            f"and schema {schemas.reader or 'source.value_schema'} has a field of that name"
        )
    return replace(schemas, policy=source.schema_changes, keeps=source.keeps_unknown)


def _with_error(df: DataFrame, error: Column, source: KafkaSource) -> DataFrame:
    if source.key_format != "raw":
        error = F.coalesce(error.cast("string"), F.col(_KEY_ERROR))
    if source.tombstones == "skip":
        error = F.when(F.col("value").isNotNull(), error)
    # A condition on a nondeterministic column stays above it. Below, Spark would evaluate the
    # expression, and so parse the record, once for each value that the condition uses
    return df.withColumn(ERROR, F.when(F.spark_partition_id() >= 0, error.cast("string")))


def _or_unknown(error: Column) -> Column:
    """Return the error; that of unknown fields if it is null."""
    names = F.array_join(F.slice(F.col(UNKNOWN), 1, NAMES_MAX), ", ")
    reason = F.concat(F.lit("it has fields that the schema does not name: "), names)
    return F.coalesce(error, F.when(F.col(UNKNOWN).isNotNull(), reason))


def _decode_key(
    raw: DataFrame, source: KafkaSource, schemas: WriterSchemas | None
) -> tuple[DataFrame, Mapping[str, Column]]:
    """Add :data:`_KEY_COLUMNS`; return also the columns of the key by their names."""
    if source.key_format == "json":
        return _decode_json_key(raw, source, schemas)
    if source.key_format == "text":
        text = F.col("key").cast("string")
        error = F.when(~F.is_valid_utf8(text), "the key is not text in UTF-8")
        null = F.lit(None).cast("array<string>")
        df = raw.withColumn(_KEY_ERROR, error).withColumn(_KEY_UNKNOWN, null)
        return df, {KEY_COLUMN: text.alias(KEY_COLUMN)}
    if schemas is None:
        schema_type, message = source.schema_type_of(KEY), source.message_of(KEY)
        schemas = WriterSchemas.single(source.schema_text_of(KEY), schema_type, message, KEY)
    decoder = _DECODERS[schemas.type](schemas)
    df, error = decoder.decoded(raw), decoder.error()
    if source.unknown_fields == "fail":
        reason = "the key has fields that the schema does not name"
        error = error.when(F.col(UNKNOWN).isNotNull(), reason)
    plain = schemas.kind.is_plain(schemas.reader_text)
    columns = _key_columns(source, decoder.names, plain=plain)
    return df.withColumn(ERROR, error).withColumnsRenamed(_KEY_COLUMNS), columns


def _decode_json_key(
    raw: DataFrame, source: KafkaSource, schemas: WriterSchemas | None
) -> tuple[DataFrame, Mapping[str, Column]]:
    """Decode the key in the place of the value."""
    text = _json_key_schema(source, schemas)
    plain = json_schema.is_one(text) and JsonSchema().is_plain(text)
    key_source = _as_value(source, text)
    value = KEY.column_name("value")
    df = raw.withColumn(value, F.col("value")).withColumn("value", F.col("key"))
    try:
        decoder = JsonDecoder(key_source, schemas, plain=plain)
        df, error = decoder.decoded(df), decoder.error()
    except ConfigError as error_of_value:
        raise _of_key(error_of_value) from error_of_value
    if key_source.unknown_fields == "fail":
        error = _or_unknown(error)
    df = _with_error(df, error, key_source).drop(TEXT, *WORKING).withColumnsRenamed(_KEY_COLUMNS)
    df = df.withColumn("value", F.col(value)).drop(value)
    columns = _key_columns(source, decoder.names, plain=plain)
    return df.withColumn(_KEY_ERROR, _json_key_error(plain=plain)), columns


def _of_key(error_of_value: ConfigError) -> ConfigError:
    return ConfigError(str(error_of_value).replace("value_schema", "key_schema"))


def _json_key_schema(source: KafkaSource, schemas: WriterSchemas | None) -> str:
    if schemas is not None:
        return schemas.reader_text
    text = source.key_schema or ""
    return JsonSchema().as_record(text) if json_schema.is_one(text) else text


def _as_value(source: KafkaSource, schema: str) -> KafkaSource:
    """Return a source whose values are the JSON keys of ``source``; null is no error."""
    return source.model_copy(
        update={
            "value_format": source.key_format,
            "value_schema": schema,
            "key_format": "raw",
            "registry": None,
            "tombstones": "skip",
            "unknown_fields": "fail" if source.unknown_fields == "fail" else "ignore",
            "schema_changes": SchemaChanges(),
        }
    )


def _json_key_error(*, plain: bool) -> Column:
    """Return the error of a key that was decoded as a value, in words of a key."""
    error, subject = F.col(_KEY_ERROR), "the value"
    if plain:  # text after the value became unknown fields
        trailing = F.when(F.col(_KEY_UNKNOWN).isNotNull(), F.lit("the value is not one JSON value"))
        error = F.coalesce(error, trailing)
    renamed = F.concat(F.lit("the key"), F.substring(error, len(subject) + 1, 1_000_000))
    return (
        F.when(error.startswith(subject), renamed)
        .when(error.startswith("the key"), error)
        .otherwise(F.concat(F.lit("the key: "), error))
    )


def _key_columns(source: KafkaSource, names: Sequence[str], *, plain: bool) -> dict[str, Column]:
    """Return the fields of the decoded key by their column names."""
    return {
        name: F.col(_KEY_PARSED).getField(field).alias(name)
        for field in names
        if (name := KEY_COLUMN if plain else f"{source.key_prefix}{field}")
    }


def refuse_common_names(key_names: Collection[str], value_names: Collection[str]) -> None:
    """Check that no column of the key has the name of one of the value.

    Raises:
        ConfigError: one has.
    """
    taken = {name.lower() for name in value_names}
    if twice := sorted(name for name in key_names if name.lower() in taken):
        raise ConfigError(
            f"the key and the value both have a column {', '.join(twice)}. Nothing was read. Give "
            "the key's columns another prefix (source.key_prefix), or leave the key as it is "
            "(source.key_format: raw): transforms have it in _kafka.key."
        )


def _coordinates() -> Column:
    return F.struct(*LINEAGE.values()).alias(KAFKA_COLUMN)


def _kafka_struct() -> Column:
    return F.struct(
        *("topic", "partition", "offset", _timestamp()),
        F.col("timestampType").alias("timestamp_type"),
        *("key", "headers"),
    ).alias(KAFKA_COLUMN)


def _letter() -> list[Column]:
    """Return the columns of a dead letter, but for the checkpoint's number."""
    coordinates = [F.col(name) for name in ("topic", "partition", "offset")]
    record = [F.col(name) for name in ("key", "value", "headers")]
    return [*coordinates, _timestamp(), *record, F.col(ERROR).alias("error")]


def _timestamp() -> Column:
    """Return Kafka's timestamp; null outside the years 1 to 9999, as of a producer that counts
    microseconds.
    """
    is_valid = F.unix_micros("timestamp").between(FIRST_MICROS, LAST_MICROS)
    return F.when(is_valid, F.col("timestamp")).alias("timestamp")


def _no_names() -> Column:
    return F.array().cast("array<string>")

"""Kafka bytes to columns, and what makes a record a bad one. Lazy Spark expressions only."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from eo_pipeline.batch import decode_avro, decode_json, decode_protobuf
from eo_pipeline.batch.decode_json import (
    CORRUPT,
    FIRST_MICROS,
    LAST_MICROS,
    braced,
    converted,
    faults,
    is_twice,
    keys_if_more,
    leaves_of,
    marked,
    misfit,
    nested_names,
    read_as,
    text_faults,
    unknown_fields,
)
from eo_pipeline.batch.fast_json import Ordinary, ordinary
from eo_pipeline.batch.spark_schema import value_schema
from eo_pipeline.errors import ConfigError
from eo_pipeline.formats import json_schema, wire_format
from eo_pipeline.formats.avro import is_plain
from eo_pipeline.formats.kinds import kind_of
from eo_pipeline.formats.parts import KEY, KEY_COLUMN
from eo_pipeline.formats.schema_diff import SchemaChanges
from eo_pipeline.formats.wire_format import NOTHING, UNKNOWN_COLUMN, ReadBy, WireSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.ledger.schemas import AVRO, PROTOBUF


class Decoder(Protocol):
    """What is asked of one. Lazy; no job of its own."""

    def parsed(self, keyed: DataFrame, schemas: WireSchemas, name: str, unknown: str) -> DataFrame:
        """``keyed``, see :func:`eo_pipeline.formats.wire_format.keyed`, with a struct ``name`` of
        the reader's fields, and ``unknown``, an array of the paths of fields that a record has, or
        may have by its writer's schema, and the reader has not; null if there are none.
        """

    def columns(self, schemas: WireSchemas, struct: Column) -> list[Column]:
        """The reader's fields of what :meth:`parsed` made."""

    def errors(
        self, schemas: WireSchemas, struct: Column, unknown: Column, /
    ) -> Iterator[tuple[Column, Column]]:
        """What may be wrong with one that names a known schema, in the order to be asked, and how
        it is said; ``struct`` and ``unknown`` are what :meth:`parsed` made.
        """


_DECODERS: Mapping[str, Decoder] = {AVRO: decode_avro, PROTOBUF: decode_protobuf}


def decoder_of(schema_type: str) -> Decoder:
    """Of what a registry calls so."""
    return _DECODERS[schema_type]


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
    looked = decoder.parsed(wire_format.keyed(raw, schemas), schemas, _PARSED, _UNKNOWN)
    error = F.when(F.col("key").isNull(), F.lit(None).cast("string"))
    wrong = decoder.errors(schemas, struct, F.col(_UNKNOWN))
    for found, reason in [*wire_format.errors(schemas), *wrong]:
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


#: The struct column with a record's coordinates; a transform that keeps it keeps the lineage.
KAFKA_COLUMN = "_kafka"

#: Lineage columns in the table, and the field of ``_kafka`` each comes from.
LINEAGE = {"_eo_topic": "topic", "_eo_partition": "partition", "_eo_offset": "offset"}

#: Columns that a decoded record has beside Kafka's own.
ERROR = "_eo_error"
PARSED = "_eo_parsed"
UNKNOWN = "_eo_unknown"
TEXT = "_eo_text"
BYTES = "_eo_bytes"
KEY_BYTES = "_eo_key_bytes"
LOST = "_eo_lost"
KEPT = "_eo_kept"

#: Columns by which a JSON record is judged; then nobody needs them any more.
WORKING = ("_eo_found", "_eo_marks", "_eo_leaves", "_eo_keys", "_eo_nested")

_SHOWN = "_eo_shown"

#: Characters of a bad value that are shown to a person.
SHOWN_CHARACTERS = 120


def gives_utf8(source: KafkaSource) -> bool:
    """Whether all text of a good record is UTF-8 by how it is read: a JSON parser makes it, or it
    was looked at. Avro and Protobuf hand on what bytes there are.
    """
    return source.value_format == "json" and source.key_format in ("raw", "text", "json")


@dataclass(frozen=True)
class Rows:
    """Every record in one ``frame``: the row that it is, if it ``is_good``, and beside that the
    ``columns`` that the ``metrics`` are of.
    """

    frame: DataFrame
    is_good: Column
    columns: Sequence[str]
    metrics: Sequence[Column]


@dataclass(frozen=True)
class Decoded:
    """One read, five views of it. All lazy.

    ``all``: every record with its error (or null); ``flowing``: the same without what nobody needs
    any more; ``good``: what the transform gets; ``rows``: ``flowing`` and ``good`` at once, for
    what nothing transforms; ``metrics``: aggregates over ``flowing`` or ``rows`` for an
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
        is_bad = F.col(ERROR).isNotNull()
        is_all = self.source.value_format == "json" and self.schemas.value is None
        value = F.col(TEXT) if is_all else F.col("value").cast("string")
        begin = F.left(value, F.lit(SHOWN_CHARACTERS)).alias("value")
        error = F.col(ERROR).alias("error")
        shown = F.to_json(F.struct("topic", "partition", "offset", error, begin))
        said = self.all.withColumn(_SHOWN, F.when(is_bad, shown))
        is_raw = self.source.value_format == "raw"
        return said.drop(*WORKING, *(() if is_raw else ("value", TEXT)))

    def metrics(self) -> list[Column]:
        """``records``, ``bytes``, ``key_bytes``, ``good``, ``bad``, ``skipped``, ``first_bad``
        (JSON text), and what :func:`json_fields.metrics` says of unknown fields, in records that
        are good.
        """
        return [
            F.count(F.lit(1)).alias("records"),
            F.coalesce(F.sum(BYTES), F.lit(0)).alias("bytes"),
            F.coalesce(F.sum(KEY_BYTES), F.lit(0)).alias("key_bytes"),
            F.count(F.when(self._is_good(), 1)).alias("good"),
            F.count(ERROR).alias("bad"),
            F.count(F.when(self._skipped(), 1)).alias("skipped"),
            F.min(_SHOWN).alias("first_bad"),
            *decode_json.metrics(self._unknown(), self._is_good()),
            *(metric for each in self.schemas.parts for metric in wire_format.metrics(each)),
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
        kafka = _kafka_struct() if whole else _coordinates()
        return observed.where(self._is_good()).select(*self._columns(), kafka)

    def rows(self) -> Rows:
        """See :class:`Rows`. A step that counts has every row copied before it and after it: this
        takes one such step, where ``flowing`` and ``good`` have one each.
        """
        counted = [BYTES, KEY_BYTES, ERROR, _SHOWN, UNKNOWN]
        if self.key_columns:
            counted.append(KEY.own("unknown"))
        if self._rescues:
            counted.append(LOST)
        counted += [name for each in self.schemas.parts for name in wire_format.counted(each)]
        frame = self.flowing.select(*self._columns(), _coordinates(), *counted)
        return Rows(frame, self._is_good(), counted, self.metrics())

    def _columns(self) -> list[Column]:
        return [*_value_columns(self.source, self.schemas.value), *self.key_columns]

    def _unknown(self) -> Column:
        """The paths of unknown fields of value and key, and the names of columns that cannot hold
        what their field is; null if there are none.
        """
        value, key = F.col(UNKNOWN), F.col(KEY.own("unknown"))
        if self._rescues:
            none = F.array().cast("array<string>")
            both = F.array_union(F.coalesce(value, none), F.coalesce(F.col(LOST), none))
            value = F.when(F.size(both) > 0, both)
        return together(value, key) if self.key_columns else value

    @property
    def _rescues(self) -> bool:
        """Whether there is :data:`LOST`."""
        schemas = self.schemas.value
        if self.source.value_format == "json":
            return decode_json.rescues(schemas)
        return schemas is not None and schemas.rescues

    def dead_letters(self, version: int) -> DataFrame:
        """The bad records as they came, with their coordinates and the error."""
        return self.all.where(F.col(ERROR).isNotNull()).select(
            F.lit(version).cast("bigint").alias(CHECKPOINT_COLUMN),
            *("topic", "partition", "offset", _timestamp(), "key", "value", "headers"),
            F.col(ERROR).alias("error"),
        )

    def marked(self, errors: Sequence[Mapping[str, Any]]) -> Decoded:
        """The same, with these records bad too: each has ``topic``, ``partition``, ``offset`` and
        ``error``, and no two are of one record.
        """
        if not errors:
            return self
        shape = "array<struct<topic: string, partition: int, offset: bigint, more: string>>"
        listed = [{**each, "more": each["error"]} for each in errors]
        text = F.lit(json.dumps(listed))
        more = self.all.sparkSession.range(1).select(F.inline(F.from_json(text, shape)))
        joined = self.all.join(F.broadcast(more), ["topic", "partition", "offset"], "left")
        error = F.coalesce(F.col(ERROR), F.col("more"))
        return replace(self, all=joined.withColumn(ERROR, error).drop("more"))

    def marks(self) -> DataFrame:
        """Every record's topic, partition and offset, and whether it is ``bad`` or ``skipped``."""
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


def _value_columns(source: KafkaSource, schemas: WireSchemas | None) -> list[Column]:
    if source.value_format == "raw":
        return [F.col("value")]
    if schemas is not None and source.value_format != "json":
        return decoder_of(schemas.type).columns(schemas, F.col(PARSED))
    schema, parsed = value_schema(source), F.col(PARSED)
    columns = [parsed.getField(f.name).alias(f.name) for f in schema]
    if source.keeps_unknown:
        columns.append(F.col(KEPT).alias(UNKNOWN_COLUMN))
    return columns


def _coordinates() -> Column:
    return F.struct(*LINEAGE.values()).alias(KAFKA_COLUMN)


def _kafka_struct() -> Column:
    return F.struct(
        *("topic", "partition", "offset", _timestamp()),
        F.col("timestampType").alias("timestamp_type"),
        *("key", "headers"),
    ).alias(KAFKA_COLUMN)


def _timestamp() -> Column:
    """Kafka's, null outside the years 1 to 9999: what a producer gave in microseconds, say."""
    is_one = F.unix_micros("timestamp").between(FIRST_MICROS, LAST_MICROS)
    return F.when(is_one, F.col("timestamp")).alias("timestamp")


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
        raw, columns = decoded(raw, source, schemas.key)
    result = _decode_value(raw, source, schemas.value, has_ordinary=has_ordinary)
    refuse_two_of_one_name(columns, _value_names(source, schemas.value))
    read_by = ReadBy(result.schemas.value, schemas.key)
    return replace(result, schemas=read_by, key_columns=list(columns.values()))


def _decode_json_key(
    raw: DataFrame, source: KafkaSource, schemas: WireSchemas | None
) -> tuple[DataFrame, Mapping[str, Column]]:
    """A key is decoded as a value would be; then its columns get names of their own."""
    as_values = raw.withColumn(KEY.own("value"), F.col("value")).withColumn("value", F.col("key"))
    like_a_value, plain = as_value(source, schemas), is_plain_json(source, schemas)
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
    return restored.withColumn(KEY.own("error"), told_of_the_key(plain=plain)), columns


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
        source, raw = source.model_copy(update=columns), wire_format.keyed(raw, schemas)
        value, named = wire_format.body(schemas), [*wire_format.errors(schemas)]
    schema = value_schema(source)
    # a column, since bytes that become a text wherever one is asked for are copied each time
    text, made_of = F.col(TEXT), read_as(schema)
    made = as_field(value.cast("string")) if plain else value.cast("string")
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
    if (lost := decode_json.lost(schemas, marks, schema)) is not None:
        looked = looked.withColumn(LOST, lost)
    record = _Record(text, marks, leaves, is_twice(F.col(_KEYS), nested))
    named += decode_json.errors(schemas, F.col(PARSED))
    error = judged(_json_error(schema, record, named))
    if source.keeps_unknown:
        more = F.array().cast("array<string>") if lost is None else F.col(LOST)
        kept = decode_json.kept(marks, schema, F.col(UNKNOWN), more)
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
    looked = decoder.parsed(wire_format.keyed(raw, schemas), schemas, PARSED, UNKNOWN)
    if schemas.rescues:
        kept = F.col(PARSED).getField(UNKNOWN_COLUMN)
        looked = looked.withColumn(LOST, decode_json.rescued(kept, F.col(UNKNOWN)))
    error = F.when(F.col("value").isNull(), F.lit("the value is null (a tombstone)"))
    wrong = decoder.errors(schemas, F.col(PARSED), F.col(UNKNOWN))
    for found, reason in [*wire_format.errors(schemas), *wrong]:
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
    named = F.array_join(F.slice(F.col(UNKNOWN), 1, decode_json.NAMES_MAX), ", ")
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

"""What decoded records are: their rows, their errors, and what is counted of them. Lazy Spark
expressions only.

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

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.source import json_fields, json_rescue, keys, wire
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.decoders import decoder_of
from eo_pipeline.source.json_values import FIRST_MICROS, LAST_MICROS
from eo_pipeline.source.parts import KEY
from eo_pipeline.source.typed import value_schema
from eo_pipeline.source.wire import NOTHING, UNKNOWN_COLUMN, ReadBy, WireSchemas

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
        counted += [name for each in self.schemas.parts for name in wire.counted(each)]
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
        return keys.together(value, key) if self.key_columns else value

    @property
    def _rescues(self) -> bool:
        """Whether there is :data:`LOST`."""
        schemas = self.schemas.value
        if self.source.value_format == "json":
            return json_rescue.rescues(schemas)
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

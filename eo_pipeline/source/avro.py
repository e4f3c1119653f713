"""Avro values to columns. Lazy Spark expressions only, one branch for each writer's schema.

In front of a value, or in a header, stands which schema it was written with (Confluent's wire
format). Each is decoded by the schema it was written with into the one that gives the columns, by
Avro's own rules. Without a registry there is one schema, and nothing in front of a value.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from eo_pipeline.errors import SetupError
from eo_pipeline.ledger.schemas import ReadWith
from eo_pipeline.source.avro_schema import OK_FIELD, field_names, left_out, with_ok_field

#: The header in which newer producers say which schema a value was written with.
HEADER = "__value_schema_id"

_KEY = "_eo_schema"
_WRITER = "_eo_writer"

#: Before a number of four bytes, and before a GUID of sixteen.
_NUMBER, _GUID = b"\x00", b"\x01"
_NUMBER_BYTES, _GUID_BYTES = 5, 17

#: Writers that one metric can tell apart: bits of a BIGINT.
_BITS = 60

#: The key of the one schema that there is without a registry.
ALONE = ""


@dataclass(frozen=True)
class AvroSchemas:
    """The ``texts`` of schemas by their keys; of which ``reader`` gives the columns, and records
    are looked for that were written with ``writers``. ``unknown`` are keys that are known to have
    no schema.
    """

    reader: str
    writers: tuple[str, ...]
    texts: Mapping[str, str] = field(repr=False)
    unknown: tuple[str, ...] = ()

    @classmethod
    def alone(cls, text: str) -> AvroSchemas:
        """All records are written with this one, and none says so."""
        return cls(ALONE, (ALONE,), {ALONE: text})

    @property
    def have_keys(self) -> bool:
        return self.reader != ALONE

    @property
    def reader_text(self) -> str:
        return self.texts[self.reader]

    def also(self, found: Mapping[str, str], unknown: Sequence[str]) -> AvroSchemas:
        """With more writers, and with more keys that have no schema."""
        return replace(
            self,
            writers=(*self.writers, *found),
            texts={**self.texts, **found},
            unknown=(*self.unknown, *unknown),
        )

    def read_with(self, seen: Mapping[str, Any], held: Mapping[str, Any]) -> ReadWith | None:
        """What of them was used, by the metrics that were ``seen``; with the texts not yet
        ``held``.
        """
        if not self.have_keys:
            return None
        bits = [seen[f"writers_{n}"] or 0 for n in range(len(_metric_groups(self.writers)))]
        used = tuple(
            key for i, key in enumerate(self.writers) if bits[i // _BITS] >> (i % _BITS) & 1
        )
        needed = dict.fromkeys((self.reader, *used))
        texts = {key: self.texts[key] for key in needed if key not in held}
        return ReadWith(self.reader, used, self.unknown, texts)


def parsed(raw: DataFrame, schemas: AvroSchemas, name: str, unknown: str) -> DataFrame:
    """``raw`` with a struct ``name`` of the reader's fields and :data:`OK_FIELD`, and ``unknown``,
    an array of the paths of the writer's fields that the reader does not have, null if none.
    """
    keyed = raw.withColumn(_KEY, _key() if schemas.have_keys else F.lit(bytearray()))
    looked = keyed.withColumn(_WRITER, _writer(schemas))
    options = {"avroSchema": with_ok_field(schemas.reader_text), "mode": "PERMISSIVE"}
    body = _body() if schemas.have_keys else F.col("value")

    def read(key: str) -> Column:
        try:
            return from_avro(body, schemas.texts[key], options)
        except TypeError as error:  # what pyspark makes of a class that is not there
            raise SetupError(
                "Spark has nothing that decodes Avro: put spark-avro, of the same release as the "
                "Kafka connector, into the folder that EO_SPARK_JARS names (`make setup` does)."
            ) from error

    values = _first_that((F.col(_WRITER) == i, read(key)) for i, key in enumerate(schemas.writers))
    return looked.withColumn(name, values).withColumn(unknown, _left_out(schemas))


def columns(schemas: AvroSchemas, struct: Column) -> list[Column]:
    """The reader's fields of what :func:`parsed` made."""
    return [struct.getField(name).alias(name) for name in field_names(schemas.reader_text)]


def errors(schemas: AvroSchemas, struct: Column) -> Iterator[tuple[Column, Column]]:
    """What may be wrong with a value that is not null, in the order to be asked, and how it is
    said.
    """
    if schemas.have_keys:
        no_key = "the value does not begin with the number of a schema in a registry"
        yield F.col(_KEY).isNull(), F.lit(no_key)
        unknown = F.concat(F.lit("the registry has no schema "), _key_text())
        yield F.col(_WRITER).isNull(), unknown
        reason = F.concat(
            F.lit("the value is cut off, or is not of the schema it names, or that one cannot be "),
            F.lit(f"read as schema {schemas.reader}: schema "),
            _key_text(),
        )
    else:
        reason = F.lit("the value is cut off, or is not of the schema")
    yield struct.getField(OK_FIELD).isNull(), reason


def metrics(schemas: AvroSchemas | None) -> list[Column]:
    """Aggregates: which writers there are, and two of the keys that are not among them."""
    if schemas is None or not schemas.have_keys:
        return []
    writer = F.col(_WRITER)
    bits = [
        F.bit_or(
            F.when(
                (writer >= start) & (writer < start + _BITS),
                F.expr(f"shiftleft(1L, {_WRITER} - {start})"),
            )
        ).alias(f"writers_{n}")
        for n, start in enumerate(_metric_groups(schemas.writers))
    ]
    stranger = F.when(_is_stranger(schemas), F.hex(F.col(_KEY)))
    return [*bits, F.min(stranger).alias("stranger_first"), F.max(stranger).alias("stranger_last")]


def strangers(schemas: AvroSchemas, seen: Mapping[str, Any]) -> set[str]:
    """Keys without a branch, by the metrics that were ``seen``: all if there are not more than two,
    otherwise two of them.
    """
    found = [seen.get("stranger_first"), seen.get("stranger_last")] if schemas.have_keys else []
    return {key_of(bytes.fromhex(each)) for each in found if each}


def listed_strangers(frame: DataFrame, schemas: AvroSchemas, limit: int) -> DataFrame:
    """The keys without a branch, as hexadecimal text in the one column; at most ``limit``."""
    keys = frame.where(_is_stranger(schemas)).select(F.hex(F.col(_KEY)).alias("key"))
    return keys.distinct().limit(limit)


def key_of(stored: bytes) -> str:
    """A schema's key as the registry takes it, of the bytes that records have."""
    if stored[:1] == _NUMBER:
        return str(int.from_bytes(stored[1:], "big"))
    return str(uuid.UUID(bytes=stored[1:]))


def _bytes_of(key: str) -> bytes:
    """The inverse of :func:`key_of`."""
    if key.isdigit():
        return _NUMBER + int(key).to_bytes(_NUMBER_BYTES - 1, "big")
    return _GUID + uuid.UUID(key).bytes


def _header() -> Column:
    """The first such header's value, as Confluent's own clients take it."""
    return F.get(F.filter(F.col("headers"), lambda h: h["key"] == HEADER), F.lit(0))["value"]


def _key() -> Column:
    """The bytes that say which schema it is, null if there are none of either form, or no value."""
    value, header = F.col("value"), _header()
    told = F.when(F.col("headers").isNotNull() & header.isNotNull(), header)
    in_value = F.when(_begins(_NUMBER, value), F.substring(value, 1, _NUMBER_BYTES)).when(
        _begins(_GUID, value), F.substring(value, 1, _GUID_BYTES)
    )
    key = F.coalesce(told, in_value)
    whole = F.length(key) == F.when(_begins(_NUMBER, key), _NUMBER_BYTES).otherwise(_GUID_BYTES)
    known_form = _begins(_NUMBER, key) | _begins(_GUID, key)
    return F.when(value.isNotNull() & whole & known_form, key)


def _body() -> Column:
    """What comes after the key; all of it if that is in a header."""
    value = F.col("value")
    in_header = F.col("headers").isNotNull() & _header().isNotNull()
    length = F.length(F.col(_KEY))
    rest = F.substring(value, length + 1, F.length(value))
    return F.when(in_header, value).otherwise(rest)


def _begins(byte: bytes, binary: Column) -> Column:
    return F.substring(binary, 1, 1) == F.lit(bytearray(byte))


def _writer(schemas: AvroSchemas) -> Column:
    """The place of the record's schema among the writers, null if it is none of them."""
    if not schemas.have_keys:
        return F.lit(0)
    return _first_that(
        (F.col(_KEY) == F.lit(bytearray(_bytes_of(key))), F.lit(i))
        for i, key in enumerate(schemas.writers)
    )


def _is_stranger(schemas: AvroSchemas) -> Column:
    """Whether a value names a schema that is neither a writer's nor known to be nobody's."""
    known = [F.lit(bytearray(_bytes_of(key))) for key in schemas.unknown]
    named = F.col(_KEY).isNotNull() & F.col(_WRITER).isNull()
    return named & ~F.col(_KEY).isin(*known) if known else named


def _left_out(schemas: AvroSchemas) -> Column:
    return _first_that(
        (F.col(_WRITER) == i, F.array(*map(F.lit, paths)))
        for i, key in enumerate(schemas.writers)
        if (paths := left_out(schemas.texts[key], schemas.reader_text))
    ).cast("array<string>")


def _first_that(branches: Iterable[tuple[Column, Column]]) -> Column:
    """The value of the first branch whose condition holds, null if there is none."""
    chain: Column | None = None
    for holds, value in branches:
        chain = F.when(holds, value) if chain is None else chain.when(holds, value)
    return F.lit(None) if chain is None else chain


def _key_text() -> Column:
    key = F.col(_KEY)
    number = F.conv(F.hex(F.substring(key, 2, _NUMBER_BYTES)), 16, 10)
    digits = F.lower(F.hex(F.substring(key, 2, _GUID_BYTES)))
    guid = F.regexp_replace(digits, "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
    return F.when(_begins(_NUMBER, key), number).otherwise(guid)


def _metric_groups(writers: Sequence[str]) -> range:
    return range(0, max(1, len(writers)), _BITS)

"""Confluent's wire format: the schema that a key or a value was written with, for every kind of
schema. Lazy Spark expressions only.

The number or the GUID of a schema in a registry precedes the payload or is in a header. The decoder
of the kind reads the payload.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from eo_pipeline.formats.kinds import SchemaKind, kind_of
from eo_pipeline.formats.parts import VALUE, Part
from eo_pipeline.formats.schema_diff import (
    ChangeKind,
    Policy,
    SchemaChanges,
    Shape,
    rescaled,
    unreadable,
)
from eo_pipeline.ledger.schemas import AVRO, PROTOBUF, ReadWith, is_made

#: Before a number of four bytes, and before a GUID of sixteen.
_NUMBER, _GUID = b"\x00", b"\x01"
_NUMBER_BYTES, _GUID_BYTES = 5, 17

#: What keeping what the reader lacks adds to the columns: JSON text, null if there is nothing.
UNKNOWN_COLUMN = "_unknown_fields"

#: Writers that one metric can tell apart: bits of a BIGINT.
_BITS = 60

#: The key of the one schema that there is without a registry.
ALONE = ""


@dataclass(frozen=True)
class WireSchemas:
    """The ``texts`` of schemas, of one ``type``, by their keys; of which ``reader`` gives the
    columns, and records are looked for whose ``part`` was written with ``writers``. ``unknown`` are
    keys that are known to have no schema. ``message`` is for Protobuf, see
    :func:`eo_pipeline.formats.kinds.kind_of`. ``quarantined`` see
    :class:`~eo_pipeline.ledger.schemas.ReadWith`. What a writer has and the reader has not goes by
    ``policy``, and into a column if it is to be kept (``keeps``).
    """

    reader: str
    writers: tuple[str, ...]
    texts: Mapping[str, str] = field(repr=False)
    unknown: tuple[str, ...] = ()
    type: str = AVRO
    message: str = ""
    part: Part = VALUE
    quarantined: tuple[str, ...] = ()
    policy: SchemaChanges = field(default_factory=SchemaChanges, repr=False)
    keeps: bool = False

    @classmethod
    def alone(
        cls, text: str, schema_type: str = AVRO, message: str = "", part: Part = VALUE
    ) -> WireSchemas:
        """All are written with this one, and none says so."""
        return cls(ALONE, (ALONE,), {ALONE: text}, (), schema_type, message, part)

    @property
    def kind(self) -> SchemaKind:
        return kind_of(self.type, self.message)

    @property
    def have_keys(self) -> bool:
        return self.reader != ALONE

    @property
    def reader_text(self) -> str:
        return self.texts[self.reader]

    @property
    def rescues(self) -> bool:
        """Whether a value may be kept beside its column, which cannot hold it."""
        return self.keeps and self.policy.rescues_values

    def also(self, found: Mapping[str, str], unknown: Sequence[str]) -> WireSchemas:
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
        groups = range(len(_metric_groups(self.writers)))
        bits = [seen[self.part.own(f"writers_{n}")] or 0 for n in groups]
        used = tuple(
            key for i, key in enumerate(self.writers) if bits[i // _BITS] >> (i % _BITS) & 1
        )
        needed = dict.fromkeys((self.reader, *used))
        texts = {key: self.texts[key] for key in needed if key not in held}
        read = ReadWith(
            *(self.reader, used, self.unknown, texts),
            message=self.message,
            quarantined=self.quarantined,
        )
        return read.all_of(self.type)


@dataclass(frozen=True)
class ReadBy:
    """What values and keys are read with; None for one that no registry knows the schemas of."""

    value: WireSchemas | None = None
    key: WireSchemas | None = None

    @property
    def parts(self) -> list[WireSchemas]:
        return [each for each in (self.value, self.key) if each is not None]

    @property
    def writers(self) -> list[tuple[str, ...]]:
        """Of each in a registry: the keys of the schemas that records are looked for of."""
        return [each.writers for each in self.parts if each.have_keys]


#: No registry knows anything of these records.
NOTHING = ReadBy()


def keyed(raw: DataFrame, schemas: WireSchemas) -> DataFrame:
    """``raw`` with the columns that all else here takes."""
    key = _key(schemas) if schemas.have_keys else F.lit(bytearray())
    return raw.withColumn(_key_column(schemas), key).withColumn(
        schemas.part.own("writer"), _place(schemas)
    )


def writer(schemas: WireSchemas) -> Column:
    """The place of the record's schema among the writers, null if it is none of them."""
    return F.col(schemas.part.own("writer"))


def body(schemas: WireSchemas) -> Column:
    """What comes after the key; all of it if that is in a header, or there is none. What of
    Protobuf comes after the key in the header is in front of it.
    """
    whole, header = F.col(schemas.part.name), _header(schemas.part)
    if not schemas.have_keys:
        return whole
    in_header = F.col("headers").isNotNull() & header.isNotNull()
    length = F.length(F.col(_key_column(schemas)))
    rest = F.substring(whole, length + 1, F.length(whole))
    if schemas.type == PROTOBUF:
        whole = F.concat(F.substring(header, length + 1, F.length(header)), whole)
    return F.when(in_header, whole).otherwise(rest)


def errors(schemas: WireSchemas) -> Iterator[tuple[Column, Column]]:
    """What may be wrong with the key of something that is not null, in the order to be asked, and
    how it is said.
    """
    if schemas.have_keys:
        part = schemas.part.name
        no_key = f"the {part} does not begin with the number of a schema in a registry"
        yield F.col(_key_column(schemas)).isNull(), F.lit(no_key)
        unknown = F.concat(F.lit(f"the registry has no {schemas.type} schema "), key_text(schemas))
        yield writer(schemas).isNull(), unknown
        for place, key in enumerate(schemas.writers):
            if named := set_aside(schemas, key):
                by = f"schema {key} is quarantined, for what it has or lacks: {', '.join(named)}"
                yield writer(schemas) == place, F.lit(by)


def set_aside(schemas: WireSchemas, key: str) -> list[str]:
    """Because of which changes all records of a writer are bad, by policy."""
    kind, written, read = schemas.kind, schemas.texts[key], schemas.reader_text
    if is_made(key) or written == read:
        return []
    differ = {*kind.left_out(written, read), *kind.left_out(read, written)}
    unread = unreadable(kind.shape_of(written), kind.shape_of(read))
    named = {
        str(each.change)
        for each in schemas.policy.decide(unread).all
        if each.policy is Policy.QUARANTINE and each.change.kind is not ChangeKind.NEW_ENUM_VALUE
    }
    places = rescaled(kind.shape_of(written), kind.shape_of(read))
    named |= {f"other decimals within {name}" for name, can in places.items() if not can}
    return sorted(named | (differ & {*schemas.quarantined}))


def metrics(schemas: WireSchemas | None) -> list[Column]:
    """Aggregates: which writers there are, and two of the keys that are not among them."""
    if schemas is None or not schemas.have_keys:
        return []
    own, place = schemas.part.own, writer(schemas)
    bits = [
        F.bit_or(
            F.when(
                (place >= start) & (place < start + _BITS),
                F.expr(f"shiftleft(1L, {own('writer')} - {start})"),
            )
        ).alias(own(f"writers_{n}"))
        for n, start in enumerate(_metric_groups(schemas.writers))
    ]
    stranger = F.when(_is_stranger(schemas), F.hex(F.col(_key_column(schemas))))
    return [
        *bits,
        F.min(stranger).alias(own("stranger_first")),
        F.max(stranger).alias(own("stranger_last")),
    ]


def counted(schemas: WireSchemas) -> list[str]:
    """The columns that :func:`metrics` are of."""
    return [_key_column(schemas), schemas.part.own("writer")] if schemas.have_keys else []


def strangers(schemas: WireSchemas, seen: Mapping[str, Any]) -> set[str]:
    """Keys without a branch, by the metrics that were ``seen``: all if there are not more than two,
    otherwise two of them.
    """
    if not schemas.have_keys:
        return set()
    found = [seen.get(schemas.part.own(name)) for name in ("stranger_first", "stranger_last")]
    return {key_of(bytes.fromhex(each)) for each in found if each}


def listed_strangers(frame: DataFrame, schemas: WireSchemas, limit: int) -> DataFrame:
    """The keys without a branch, as hexadecimal text in the one column; at most ``limit``."""
    key = F.hex(F.col(_key_column(schemas))).alias("key")
    return frame.where(_is_stranger(schemas)).select(key).distinct().limit(limit)


def key_of(stored: bytes) -> str:
    """A schema's key as the registry takes it, of the bytes that records have."""
    if stored[:1] == _NUMBER:
        return str(int.from_bytes(stored[1:], "big"))
    return str(uuid.UUID(bytes=stored[1:]))


def key_text(schemas: WireSchemas) -> Column:
    """The key as :func:`key_of` writes it."""
    key = F.col(_key_column(schemas))
    number = F.conv(F.hex(F.substring(key, 2, _NUMBER_BYTES)), 16, 10)
    digits = F.lower(F.hex(F.substring(key, 2, _GUID_BYTES)))
    guid = F.regexp_replace(digits, "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
    return F.when(_begins(_NUMBER, key), number).otherwise(guid)


def left_out(schemas: WireSchemas) -> Column:
    """An array of the paths of the writer's fields that the reader does not have, null if none."""
    return first_that(
        (writer(schemas) == i, F.array(*map(F.lit, paths)))
        for i, key in enumerate(schemas.writers)
        if (paths := schemas.kind.left_out(schemas.texts[key], schemas.reader_text))
    ).cast("array<string>")


def first_that(branches: Iterable[tuple[Column, Column]]) -> Column:
    """The value of the first branch whose condition holds, null if there is none."""
    chain: Column | None = None
    for holds, value in branches:
        chain = F.when(holds, value) if chain is None else chain.when(holds, value)
    return F.lit(None) if chain is None else chain


def _bytes_of(key: str) -> bytes:
    """The inverse of :func:`key_of`."""
    if is_made(key):
        return b""  # which no record has
    if key.isdigit():
        return _NUMBER + int(key).to_bytes(_NUMBER_BYTES - 1, "big")
    return _GUID + uuid.UUID(key).bytes


def _key_column(schemas: WireSchemas) -> str:
    return schemas.part.own("schema")


def _header(part: Part) -> Column:
    """The first such header's value, as Confluent's own clients take it.

    Without a function of Spark's that takes a function: it has no code generated for those, nor
    for a step that one is in. Each task would make the rest of such a step's code by itself, and
    for each writer look at Hadoop's settings, which is most of what twenty writers cost.
    """
    place = F.array_position(F.col("headers.key"), part.header).cast("int")
    return F.get(F.col("headers.value"), place - 1)


def _key(schemas: WireSchemas) -> Column:
    """The bytes that say which schema it is, null if there are none of either form, or nothing."""
    whole, header = F.col(schemas.part.name), _header(schemas.part)
    told = F.when(F.col("headers").isNotNull() & header.isNotNull(), header)
    if schemas.type == PROTOBUF:  # which message of the schema it is may follow
        told = F.when(_begins(_NUMBER, told), F.substring(told, 1, _NUMBER_BYTES)).otherwise(
            F.substring(told, 1, _GUID_BYTES)
        )
    in_front = F.when(_begins(_NUMBER, whole), F.substring(whole, 1, _NUMBER_BYTES)).when(
        _begins(_GUID, whole), F.substring(whole, 1, _GUID_BYTES)
    )
    key = F.coalesce(told, in_front)
    length = F.when(_begins(_NUMBER, key), _NUMBER_BYTES).otherwise(_GUID_BYTES)
    known_form = _begins(_NUMBER, key) | _begins(_GUID, key)
    return F.when(whole.isNotNull() & (F.length(key) == length) & known_form, key)


def _begins(byte: bytes, binary: Column) -> Column:
    return F.substring(binary, 1, 1) == F.lit(bytearray(byte))


def _place(schemas: WireSchemas) -> Column:
    if not schemas.have_keys:
        return F.lit(0)
    return first_that(
        (F.col(_key_column(schemas)) == F.lit(bytearray(_bytes_of(key))), F.lit(i))
        for i, key in enumerate(schemas.writers)
    )


def _is_stranger(schemas: WireSchemas) -> Column:
    """Whether a schema is named that is neither a writer's nor known to be nobody's."""
    key = F.col(_key_column(schemas))
    known = [F.lit(bytearray(_bytes_of(each))) for each in schemas.unknown]
    named = key.isNotNull() & writer(schemas).isNull()
    return named & ~key.isin(*known) if known else named


def _metric_groups(writers: Sequence[str]) -> range:
    return range(0, max(1, len(writers)), _BITS)


#: Spark's own default cuts times to milliseconds.
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def is_scalar(*shapes: Shape) -> bool:
    """One that can be compared with what it becomes."""
    return not any(shape.parts for shape in shapes)


def fitting(value: Column, written: Shape, column: Shape) -> Column:
    """``value`` in the type of its column if it is one of that exactly, otherwise null."""
    if column.symbols:
        return F.when(value.isin(*column.symbols), value)
    if written.type == "string" or column.type == "string":
        return F.lit(None).cast(column.type)  # a text is no number, whatever it looks like
    made = value.try_cast(str(column))
    return F.when(made.try_cast(str(written)).eqNullSafe(value), made)


def as_json(fields: Sequence[Column]) -> Column:
    """One object of the named ``fields`` that are not null, as text; null if all are."""
    if not fields:
        return F.lit(None).cast("string")
    text = F.to_json(F.struct(*fields), _JSON_OPTIONS)
    return F.when(text != "{}", text)

"""Confluent's wire format: the writer's schema of a key or value, for every kind of schema. Lazy
Spark expressions only.

The id or the GUID of a schema in a registry precedes the payload or is in a header. The decoder of
the kind reads the payload.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from eo_pipeline.formats.base import SchemaKind
from eo_pipeline.formats.kinds import kind_of
from eo_pipeline.formats.parts import VALUE, Part
from eo_pipeline.formats.schema_diff import (
    MAP,
    STRUCT,
    ChangeKind,
    Policy,
    SchemaChanges,
    Shape,
    rescaled,
    unreadable,
)
from eo_pipeline.ledger.schemas import AVRO, PROTOBUF, ReadWith, is_made

#: First bytes of an id of four bytes, and of a GUID of sixteen.
_NUMBER, _GUID = b"\x00", b"\x01"
_NUMBER_BYTES, _GUID_BYTES = 5, 17

#: Column of kept fields that the reader lacks: JSON text, null if there are none.
UNKNOWN_COLUMN = "_unknown_fields"

#: SchemaNegotiator that one metric can distinguish: bits of a BIGINT.
_BITS = 60

#: Key of the only schema where there is no registry.
NO_KEY = ""


@dataclass(frozen=True)
class WriterSchemas:
    """The schemas of one ``part`` of the records, all of one ``type``.

    ``texts`` are by the schemas' keys. The ``reader`` gives the columns; records are tested for the
    ``writers``; the keys ``unknown`` have no schema. ``message``: of Protobuf, see
    :func:`eo_pipeline.formats.kinds.kind_of`; ``quarantined``: see
    :class:`~eo_pipeline.ledger.schemas.ReadWith`. ``policy`` decides about fields that a writer has
    and the reader lacks, and ``keeps`` keeps them in a column.
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
    def single(
        cls, text: str, schema_type: str = AVRO, message: str = "", part: Part = VALUE
    ) -> WriterSchemas:
        """Return the one schema of all records, which have no id of it."""
        return cls(NO_KEY, (NO_KEY,), {NO_KEY: text}, (), schema_type, message, part)

    @property
    def kind(self) -> SchemaKind:
        return kind_of(self.type, self.message)

    @property
    def has_keys(self) -> bool:
        return self.reader != NO_KEY

    @property
    def reader_text(self) -> str:
        return self.texts[self.reader]

    @property
    def rescues(self) -> bool:
        """True if values that their column cannot hold are kept."""
        return self.keeps and self.policy.rescues_values

    def also(self, texts: Mapping[str, str], unknown: Sequence[str]) -> WriterSchemas:
        """Add writers, by key, and keys that have no schema."""
        return replace(
            self,
            writers=(*self.writers, *texts),
            texts={**self.texts, **texts},
            unknown=(*self.unknown, *unknown),
        )

    def read_with(self, seen: Mapping[str, Any], held: Mapping[str, Any]) -> ReadWith | None:
        """Return the schemas of the records, by the metrics ``seen``, with the texts that are not
        ``held`` by the ledger yet.
        """
        if not self.has_keys:
            return None
        groups = range(len(_metric_groups(self.writers)))
        bits = [seen[self.part.column_name(f"writers_{n}")] or 0 for n in groups]
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
class ReadSchemas:
    """Schemas of values and keys; None for a part without a registry."""

    value: WriterSchemas | None = None
    key: WriterSchemas | None = None

    @property
    def parts(self) -> list[WriterSchemas]:
        return [schemas for schemas in (self.value, self.key) if schemas is not None]

    @property
    def by_registry(self) -> list[WriterSchemas]:
        """Those of parts whose schemas a registry has."""
        return [schemas for schemas in self.parts if schemas.has_keys]

    @property
    def writers(self) -> list[tuple[str, ...]]:
        """Keys of the registry's schemas that records are tested for, by part."""
        return [schemas.writers for schemas in self.by_registry]


#: For records without a registry.
NOTHING = ReadSchemas()


def with_writer(raw: DataFrame, schemas: WriterSchemas) -> DataFrame:
    """Add the columns that the other functions use: the key of the schema, the writer's index."""
    key = _key(schemas) if schemas.has_keys else F.lit(bytearray())
    return raw.withColumn(_key_column(schemas), key).withColumn(
        schemas.part.column_name("writer"), _index_of_writer(schemas)
    )


def writer_index(schemas: WriterSchemas) -> Column:
    """Return the index of the record's schema among the writers, null if it is none of them."""
    return F.col(schemas.part.column_name("writer"))


def body(schemas: WriterSchemas) -> Column:
    """Return the bytes after the schema's key; all bytes if a header has the key, or there is none.
    Protobuf's indexes, which follow the key, move from the header to the front.
    """
    payload, header = F.col(schemas.part.name), _header(schemas.part)
    if not schemas.has_keys:
        return payload
    in_header = F.col("headers").isNotNull() & header.isNotNull()
    length = F.length(F.col(_key_column(schemas)))
    rest = F.substring(payload, length + 1, F.length(payload))
    if schemas.type == PROTOBUF:
        payload = F.concat(F.substring(header, length + 1, F.length(header)), payload)
    return F.when(in_header, payload).otherwise(rest)


def errors(schemas: WriterSchemas) -> Iterator[tuple[Column, Column]]:
    """Yield condition and text of each possible error in the schema of a part that is not null; the
    first condition that holds counts.
    """
    if schemas.has_keys:
        part = schemas.part.name
        no_key = f"the {part} does not begin with the number of a schema in a registry"
        yield F.col(_key_column(schemas)).isNull(), F.lit(no_key)
        unknown = F.concat(F.lit(f"the registry has no {schemas.type} schema "), key_text(schemas))
        yield writer_index(schemas).isNull(), unknown
        for i, key in enumerate(schemas.writers):
            if names := quarantined_changes(schemas, key):
                text = f"schema {key} is quarantined, for what it has or lacks: {', '.join(names)}"
                yield writer_index(schemas) == i, F.lit(text)


def quarantined_changes(schemas: WriterSchemas, key: str) -> list[str]:
    """Return the changes for which, by policy, all records of the writer are bad."""
    kind, written, read = schemas.kind, schemas.texts[key], schemas.reader_text
    if is_made(key) or written == read:
        return []
    differ = {*kind.left_out(written, read), *kind.left_out(read, written)}
    unread = unreadable(kind.shape_of(written), kind.shape_of(read))
    names = {
        str(decided.change)
        for decided in schemas.policy.decide(unread).all
        if decided.policy is Policy.QUARANTINE
        and decided.change.kind is not ChangeKind.NEW_ENUM_VALUE
    }
    castable = rescaled(kind.shape_of(written), kind.shape_of(read))
    names |= {f"other decimals within {name}" for name, can in castable.items() if not can}
    return sorted(names | (differ & {*schemas.quarantined}))


def metrics(schemas: WriterSchemas | None) -> list[Column]:
    """Return aggregates: bits of the writers met, and two of the keys of other schemas."""
    if schemas is None or not schemas.has_keys:
        return []
    name_of, index, unknown = schemas.part.column_name, writer_index(schemas), stranger(schemas)
    bits = [
        F.bit_or(
            F.when(
                (index >= start) & (index < start + _BITS),
                F.expr(f"shiftleft(1L, {name_of('writer')} - {start})"),
            )
        ).alias(name_of(f"writers_{n}"))
        for n, start in enumerate(_metric_groups(schemas.writers))
    ]
    return [
        *bits,
        F.min(unknown).alias(name_of("stranger_first")),
        F.max(unknown).alias(name_of("stranger_last")),
    ]


def stranger(schemas: WriterSchemas) -> Column:
    """Return the key of a schema that is neither a writer's nor one of ``schemas.unknown``, in
    hexadecimal digits; null for any other record.
    """
    return F.when(_is_unknown(schemas), F.hex(F.col(_key_column(schemas))))


def counted_metrics(
    schemas: WriterSchemas, indexes: Iterable[int], strangers: Collection[str]
) -> dict[str, Any]:
    """Return what :func:`metrics` gives for records of the writers at ``indexes``, and of others
    with the keys ``strangers``.
    """
    name_of = schemas.part.column_name
    bits = {name_of(f"writers_{n}"): 0 for n in range(len(_metric_groups(schemas.writers)))}
    for index in set(indexes):
        bits[name_of(f"writers_{index // _BITS}")] |= 1 << index % _BITS
    return bits | {
        name_of("stranger_first"): min(strangers, default=None),
        name_of("stranger_last"): max(strangers, default=None),
    }


def metric_columns(schemas: WriterSchemas) -> list[str]:
    """Return the columns that :func:`metrics` aggregate."""
    return [_key_column(schemas), schemas.part.column_name("writer")] if schemas.has_keys else []


def unknown_keys(schemas: WriterSchemas, seen: Mapping[str, Any]) -> set[str]:
    """Return keys of schemas that are no writers, by the metrics ``seen``: all keys if there are at
    most two, otherwise two of them.
    """
    if not schemas.has_keys:
        return set()
    names = map(schemas.part.column_name, ("stranger_first", "stranger_last"))
    return {key_of(bytes.fromhex(digits)) for name in names if (digits := seen.get(name))}


def all_unknown_keys(frame: DataFrame, schemas: WriterSchemas, limit: int) -> DataFrame:
    """Return the keys of schemas that are no writers, as hexadecimal text in one column."""
    key = F.hex(F.col(_key_column(schemas))).alias("key")
    return frame.where(_is_unknown(schemas)).select(key).distinct().limit(limit)


def key_of(stored: bytes) -> str:
    """Return the registry's key of a schema from the bytes of a record."""
    if stored[:1] == _NUMBER:
        return str(int.from_bytes(stored[1:], "big"))
    return str(uuid.UUID(bytes=stored[1:]))


def key_text(schemas: WriterSchemas) -> Column:
    """Return the key in the form of :func:`key_of`."""
    key = F.col(_key_column(schemas))
    number = F.conv(F.hex(F.substring(key, 2, _NUMBER_BYTES)), 16, 10)
    digits = F.lower(F.hex(F.substring(key, 2, _GUID_BYTES)))
    guid = F.regexp_replace(digits, "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
    return F.when(_begins(_NUMBER, key), number).otherwise(guid)


def left_out(schemas: WriterSchemas) -> Column:
    """Return the paths of the writer's fields that the reader lacks, an array; null if none."""
    return first_match(
        (writer_index(schemas) == i, F.array(*map(F.lit, paths)))
        for i, key in enumerate(schemas.writers)
        if (paths := schemas.kind.left_out(schemas.texts[key], schemas.reader_text))
    ).cast("array<string>")


def first_match(branches: Iterable[tuple[Column, Column]]) -> Column:
    """Return the value of the first branch whose condition holds, null if none does."""
    chain: Column | None = None
    for holds, value in branches:
        chain = F.when(holds, value) if chain is None else chain.when(holds, value)
    return F.lit(None) if chain is None else chain


def bytes_of(key: str) -> bytes:
    """Return the bytes in front of the records of a schema: the inverse of :func:`key_of`."""
    if is_made(key) or key == NO_KEY:
        return b""  # no record has it
    if key.isdigit():
        return _NUMBER + int(key).to_bytes(_NUMBER_BYTES - 1, "big")
    return _GUID + uuid.UUID(key).bytes


def _key_column(schemas: WriterSchemas) -> str:
    return schemas.part.column_name("schema")


def _header(part: Part) -> Column:
    """Return the value of the first such header, as Confluent's clients do.

    Without a lambda: Spark generates no code for a step that has one. Each task would then compile
    the rest of the step by itself and, for each writer, read Hadoop's settings, which is most of
    the time of twenty writers.
    """
    position = F.array_position(F.col("headers.key"), part.header).cast("int")
    return F.get(F.col("headers.value"), position - 1)


def _key(schemas: WriterSchemas) -> Column:
    """Return the bytes of the schema's key; null without a key in one of the forms."""
    payload, header = F.col(schemas.part.name), _header(schemas.part)
    in_header = F.when(F.col("headers").isNotNull() & header.isNotNull(), header)
    if schemas.type == PROTOBUF:  # the message's indexes may follow
        number, guid = (F.substring(in_header, 1, n) for n in (_NUMBER_BYTES, _GUID_BYTES))
        in_header = F.when(_begins(_NUMBER, in_header), number).otherwise(guid)
    in_front = F.when(_begins(_NUMBER, payload), F.substring(payload, 1, _NUMBER_BYTES)).when(
        _begins(_GUID, payload), F.substring(payload, 1, _GUID_BYTES)
    )
    key = F.coalesce(in_header, in_front)
    length = F.when(_begins(_NUMBER, key), _NUMBER_BYTES).otherwise(_GUID_BYTES)
    is_key = _begins(_NUMBER, key) | _begins(_GUID, key)
    return F.when(payload.isNotNull() & (F.length(key) == length) & is_key, key)


def _begins(byte: bytes, binary: Column) -> Column:
    return F.substring(binary, 1, 1) == F.lit(bytearray(byte))


def _index_of_writer(schemas: WriterSchemas) -> Column:
    if not schemas.has_keys:
        return F.lit(0)
    return first_match(
        (F.col(_key_column(schemas)) == F.lit(bytearray(bytes_of(key))), F.lit(i))
        for i, key in enumerate(schemas.writers)
    )


def _is_unknown(schemas: WriterSchemas) -> Column:
    """Return whether the schema is neither a writer's nor one of ``schemas.unknown``."""
    key = F.col(_key_column(schemas))
    no_schemas = [F.lit(bytearray(bytes_of(unknown))) for unknown in schemas.unknown]
    is_new = key.isNotNull() & writer_index(schemas).isNull()
    return is_new & ~key.isin(*no_schemas) if no_schemas else is_new


def _metric_groups(writers: Sequence[str]) -> range:
    return range(0, max(1, len(writers)), _BITS)


#: Spark's default cuts times to milliseconds.
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def are_scalars(*shapes: Shape) -> bool:
    """Return whether values can be compared with their cast."""
    return not any(shape.parts for shape in shapes)


def exact_cast(value: Column, written: Shape, column: Shape) -> Column:
    """Return ``value`` in the type of its column; null unless that is exact."""
    if column.symbols:
        return F.when(value.isin(*column.symbols), value)
    if written.type == "string" or column.type == "string":
        return F.lit(None).cast(column.type)  # a text is never a number, whatever its characters
    cast = value.try_cast(str(column))
    return F.when(cast.try_cast(str(written)).eqNullSafe(value), cast)


def as_json(fields: Sequence[Column]) -> Column:
    """Return one JSON object of the ``fields`` that are not null; null if all are."""
    if not fields:
        return F.lit(None).cast("string")
    text = F.to_json(F.struct(*fields), _JSON_OPTIONS)
    return F.when(text != "{}", text)


def has_new_symbol(value: Column, shape: Shape) -> Column:
    """Return whether an enum within has a value that its ``shape`` lacks."""
    if shape.symbols:
        return ~value.isin(*shape.symbols)
    if shape.type == STRUCT:
        conditions = [has_new_symbol(value.getField(name), part) for name, part in shape.parts]
        safe = (F.coalesce(condition, F.lit(False)) for condition in conditions)
        return reduce(Column.__or__, safe, F.lit(False))
    if not shape.parts:
        return F.lit(False)
    part = shape.parts[0][1]
    values = F.map_values(value) if shape.type == MAP else value
    return F.exists(values, lambda item: F.coalesce(has_new_symbol(item, part), F.lit(False)))

"""Protobuf to columns: one pass of Spark's Python workers over Arrow batches, no job of its own.

Protobuf resolves by itself: fields have numbers, and the latest version of a message reads what
older ones wrote. Where a number means something else in a writer's, the field is read as that
writer has it: what can be a value of the column becomes one, and by policy the rest goes into a
column of JSON. Where that cannot be, records of that writer are bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from eo_pipeline._lazy import library
from eo_pipeline.batch import protobuf_worker
from eo_pipeline.batch.protobuf_worker import Columns, Message, Reading
from eo_pipeline.formats import wire_format
from eo_pipeline.formats.protobuf import Protobuf, only, plain_files, prefixes, without
from eo_pipeline.formats.schema_diff import (
    ARRAY,
    MAP,
    STRUCT,
    ChangeKind,
    Policy,
    Shape,
    unreadable,
)
from eo_pipeline.formats.wire_format import UNKNOWN_COLUMN, WireSchemas, as_json, fitting, is_scalar

_BODY = "_eo_message"

cloudpickle.register_pickle_by_value(protobuf_worker)  # type: ignore[no-untyped-call]


def parsed(keyed: DataFrame, schemas: WireSchemas, name: str, unknown: str) -> DataFrame:
    """See :class:`eo_pipeline.batch.decode.Decoder`; the struct has
    :data:`~eo_pipeline.formats.wire_format.UNKNOWN_COLUMN` besides, if that is to be kept.
    """
    library("ptars")
    branches = [_Branch.of(schemas, key) for key in schemas.writers]
    whole = _message_of(_kind(schemas), schemas.reader_text)
    readings = [each.reading(schemas.part.own(f"as_{i}")) for i, each in enumerate(branches)]
    columns = Columns(_BODY, schemas.part.own("writer"), name, unknown)
    decode = protobuf_worker.batches_decoder(whole, readings, columns)
    also = [each.also for each in readings if each.also]
    made = [
        StructField(name, _spark_type(whole)),
        StructField(unknown, ArrayType(StringType())),
        *(StructField(each, _spark_type(message)) for each, message in also),
    ]
    shape = StructType([*keyed.schema.fields, *made])
    read = keyed.withColumn(_BODY, _message(schemas)).mapInArrow(decode, shape)
    if not also and not schemas.keeps:
        return read
    value = _value(schemas, branches, F.col(name), F.col(unknown))
    return read.withColumn(name, value).drop(*(each for each, _ in also))


def columns(schemas: WireSchemas, struct: Column) -> list[Column]:
    """The reader's fields of what :func:`parsed` made."""
    names = schemas.kind.field_names(schemas.reader_text)
    kept = [UNKNOWN_COLUMN] if schemas.keeps else []
    return [struct.getField(name).alias(name) for name in [*names, *kept]]


def errors(
    schemas: WireSchemas, struct: Column, unknown: Column
) -> Iterator[tuple[Column, Column]]:
    """By the writer's schema, then by the record."""
    kind, part = _kind(schemas), schemas.part.name
    branches = [_Branch.of(schemas, key) for key in schemas.writers]
    for i, (key, branch) in enumerate(zip(schemas.writers, branches, strict=True)):
        if clash := kind.clash(schemas.texts[key], branch.text):
            said = f"schema {key} cannot be read as schema {schemas.reader}: {clash}"
            yield wire_format.writer(schemas) == i, F.lit(said)
    message = kind.descriptor(schemas.reader_text).full_name
    if schemas.have_keys:
        another = F.lit(f"the {part} is not the message {message}, but another one of schema ")
        yield _message(schemas).isNull(), F.concat(another, wire_format.key_text(schemas))
    where = F.concat(F.lit("field '"), F.get(unknown, F.lit(0)))
    reason = F.lit(
        "' is a time outside the years 1 to 9999, or a duration of more than 10,000 years"
    )
    yield struct.isNull() & unknown.isNotNull(), F.concat(where, reason)
    yield struct.isNull(), F.lit(f"the {part} is cut off, or is no message {message}")
    whole = kind.shape_of(schemas.reader_text).fields
    for i, branch in enumerate(branches):
        for name in branch.enums:
            stranger = _has_stranger(struct.getField(name), whole[name])
            said = f"the {part} has a new value of an enum within {name}, which is quarantined"
            yield (
                (wire_format.writer(schemas) == i) & F.coalesce(stranger, F.lit(False)),
                F.lit(said),
            )


@dataclass(frozen=True)
class _Branch:
    """The records of one writer. ``rescued`` columns of the reader's cannot hold all of what it
    writes; those ``cast`` hold it in another form; of ``unread`` fields the reader has nothing, or
    not all; ``enums`` are columns whose new values are quarantined.
    """

    kind: Protobuf
    writer: str
    reader: str
    keeps: bool
    rescued: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    enums: tuple[str, ...] = ()

    @classmethod
    def of(cls, schemas: WireSchemas, key: str) -> _Branch:
        kind, writer, reader = _kind(schemas), schemas.texts[key], schemas.reader_text
        plain = cls(kind, writer, reader, schemas.keeps)
        if writer == reader or kind.descriptor(writer) is None:
            return plain
        decided = schemas.policy.decide(unreadable(kind.shape_of(writer), kind.shape_of(reader)))
        rescued = decided.rescued
        enums = tuple(
            column
            for column, found in decided.by_column.items()
            if decided.policy(column) is Policy.QUARANTINE
            and any(each.change.kind is ChangeKind.NEW_ENUM_VALUE for each in found)
        )
        cast = tuple(c for c in kind.castable(writer, reader) if c not in rescued)
        unread: tuple[str, ...] = ()
        if schemas.keeps:
            fields = {path.partition(".")[0] for path in kind.left_out(writer, reader)}
            unread = tuple(name for name in kind.presentable(writer) if name in fields)
        return cls(kind, writer, reader, schemas.keeps, rescued, cast, unread, enums)

    @property
    def own(self) -> tuple[str, ...]:
        """What is read as the writer has it."""
        return tuple(dict.fromkeys((*self.rescued, *self.cast, *self.unread)))

    @property
    def text(self) -> str:
        """The reader's, but for the columns that are read otherwise."""
        names = {*self.rescued, *self.cast}
        return without(self.kind.descriptor(self.reader), names) if names else self.reader

    def reading(self, column: str) -> Reading:
        """What the workers do; what is read as the writer has it becomes that ``column``."""
        names: dict[tuple[int, ...], str | None] = {}
        names |= self.kind.names_left_out(self.writer, self.reader)
        message = _message_of(self.kind, self.text)
        if not self.own:
            return Reading(message, names)
        written = self.kind.descriptor(self.writer)
        numbers = {field.name: field.number for field in written.fields}
        read = {*self.rescued, *self.cast}
        names |= {(number,): None for name, number in numbers.items() if name in read}
        return Reading(message, names, (column, _message_of(self.kind, only(written, self.own))))

    def value(self, read: Column, own: Column, unknown: Column) -> Column:
        """A struct of the reader's fields; those of all branches have one type."""
        whole, written = (self.kind.shape_of(text).fields for text in (self.reader, self.writer))
        fits = {
            name: fitting(own.getField(name), written[name], whole[name])
            for name in (*self.rescued, *self.cast)
            if is_scalar(whole[name], written[name])
        }
        made = {name: read.getField(name) for name in whole}
        for name, fit in fits.items():
            absent = self.kind.when_absent(self.reader, name)
            nothing = F.lit(absent).cast(str(whole[name]))
            made[name] = F.when(own.getField(name).isNull(), nothing).otherwise(fit)
        fields = [column.alias(name) for name, column in made.items()]
        if self.keeps:
            fields.append(self._kept(own, unknown, written, fits).alias(UNKNOWN_COLUMN))
        return F.struct(*fields)

    def _kept(
        self,
        own: Column,
        unknown: Column,
        written: Mapping[str, Shape],
        fits: Mapping[str, Column],
    ) -> Column:
        """JSON of the fields that are not in the columns, or not as they are; null if none is."""
        fields = []
        for name in dict.fromkeys((*self.unread, *self.rescued)):
            value = own.getField(name)
            if name in fits:
                lost = fits[name].isNull()
            elif name in self.rescued:
                lost = F.size(value) > 0 if written[name].type in (ARRAY, MAP) else F.lit(True)
            else:
                lost = F.exists(unknown, _is_of(name))
            fields.append(F.when(lost, value).alias(name))
        return as_json(fields)


def _is_of(name: str) -> Any:
    return lambda path: (path == name) | path.startswith(f"{name}.")


def _value(schemas: WireSchemas, branches: list[_Branch], read: Column, unknown: Column) -> Column:
    """What the records of each writer become; null for none."""
    names = schemas.kind.field_names(schemas.reader_text)
    nothing = [F.lit(None).cast("string").alias(UNKNOWN_COLUMN)] if schemas.keeps else []
    plain = F.struct(*(read.getField(name).alias(name) for name in names), *nothing)
    chain: Column | None = None
    for i, branch in enumerate(branches):
        if branch.own:
            own = F.col(schemas.part.own(f"as_{i}"))
            made = F.when(own.isNotNull(), branch.value(read, own, unknown))
            ours = wire_format.writer(schemas) == i
            chain = F.when(ours, made) if chain is None else chain.when(ours, made)
    return F.when(read.isNotNull(), plain if chain is None else chain.otherwise(plain))


def _has_stranger(value: Column, shape: Shape) -> Column:
    """Whether an enum within has a value that its ``shape`` has not."""
    if shape.symbols:
        return ~value.isin(*shape.symbols)
    if shape.type == STRUCT:
        found = (_has_stranger(value.getField(name), part) for name, part in shape.parts)
        return reduce(or_, (F.coalesce(each, F.lit(False)) for each in found))
    if shape.type in (ARRAY, MAP):
        part = shape.parts[0][1]
        values = value if shape.type == ARRAY else F.map_values(value)
        return F.exists(values, lambda each: _has_stranger(each, part))
    return F.lit(False)


def _kind(schemas: WireSchemas) -> Protobuf:
    kind = schemas.kind
    assert isinstance(kind, Protobuf)
    return kind


def _message(schemas: WireSchemas) -> Column:
    """The serialized message, without what says which of its file's it is; null if another."""
    body = wire_format.body(schemas)
    if not schemas.have_keys:
        return body
    kind = _kind(schemas)
    return wire_format.first_that(
        (
            (wire_format.writer(schemas) == i)
            & (F.substring(body, 1, len(prefix)) == F.lit(bytearray(prefix))),
            F.substring(body, len(prefix) + 1, F.length(body)),
        )
        for i, key in enumerate(schemas.writers)
        for prefix in prefixes(kind.indexes(schemas.texts[key]))
    ).cast("binary")


def _message_of(kind: Protobuf, text: str) -> Message:
    return Message(plain_files(text), kind.descriptor(text).full_name)


@lru_cache(maxsize=64)
def _spark_type(message: Message) -> DataType:
    return from_arrow_type(protobuf_worker.arrow_type(message))

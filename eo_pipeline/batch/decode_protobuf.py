"""Protobuf to columns: one pass of Spark's Python workers over Arrow batches, no job of its own.

Protobuf resolves schemas by field numbers: the latest version of a message reads older records.
Where a number means something else in a writer's schema, the field is read in the writer's form:
values that the column can hold are cast, and by policy the others go into a column of JSON. Where
neither is possible, records of that writer are bad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from eo_pipeline._lazy import library
from eo_pipeline.batch import protobuf_worker
from eo_pipeline.batch.decoder import PARSED, UNKNOWN, SchemaDecoder
from eo_pipeline.batch.protobuf_worker import Columns, Message, WriterPlan
from eo_pipeline.formats import wire_format
from eo_pipeline.formats.protobuf import (
    Protobuf,
    is_map,
    is_value,
    only,
    plain_files,
    prefixes,
    without,
)
from eo_pipeline.formats.schema_diff import (
    ARRAY,
    MAP,
    ChangeKind,
    Policy,
    Shape,
    unreadable,
)
from eo_pipeline.formats.wire_format import (
    UNKNOWN_COLUMN,
    WriterSchemas,
    are_scalars,
    as_json,
    exact_cast,
    has_new_symbol,
)
from eo_pipeline.ledger.schemas import is_made

_BODY = "_eo_message"

cloudpickle.register_pickle_by_value(protobuf_worker)  # type: ignore[no-untyped-call]


class ProtobufDecoder(SchemaDecoder):
    """Decodes Protobuf."""

    def _decoded(self, records: DataFrame) -> DataFrame:
        library("ptars")
        schemas, branches = self.schemas, self._branches()
        reader = _message_of(self._kind, schemas.reader_text)
        plans = [branch.plan(self._column_of(i)) for i, branch in enumerate(branches)]
        columns = Columns(_BODY, schemas.part.column_name("writer"), PARSED, UNKNOWN)
        decode = protobuf_worker.batches_decoder(reader, plans, columns)
        extra = [plan.extra for plan in plans if plan.extra]
        added = [
            StructField(PARSED, _spark_type(reader)),
            StructField(UNKNOWN, ArrayType(StringType())),
            *(StructField(name, _spark_type(message)) for name, message in extra),
        ]
        schema = StructType([*records.schema.fields, *added])
        df = records.withColumn(_BODY, self._message()).mapInArrow(decode, schema)
        if not extra and not schemas.keeps:
            return df
        return df.withColumn(PARSED, self._value(branches)).drop(*(name for name, _ in extra))

    def _errors(self) -> Iterator[tuple[Column, Column]]:
        """Yield errors of the writer's schema, then those of the record."""
        schemas, kind, part = self.schemas, self._kind, self.schemas.part.name
        struct, unknown, branches = F.col(PARSED), F.col(UNKNOWN), self._branches()
        for i, (key, branch) in enumerate(zip(schemas.writers, branches, strict=True)):
            if clash := kind.clash(schemas.texts[key], branch.text):
                text = f"schema {key} cannot be read as schema {schemas.reader}: {clash}"
                yield wire_format.writer_index(schemas) == i, F.lit(text)
        message = kind.descriptor(schemas.reader_text).full_name
        if schemas.has_keys:
            another = F.lit(f"the {part} is not the message {message}, but another one of schema ")
            yield self._message().isNull(), F.concat(another, wire_format.key_text(schemas))
        field = F.concat(F.lit("field '"), F.get(unknown, F.lit(0)))
        reason = F.lit(
            "' is a time outside the years 1 to 9999, or a duration of more than 10,000 years"
        )
        yield struct.isNull() & unknown.isNotNull(), F.concat(field, reason)
        yield struct.isNull(), F.lit(f"the {part} is cut off, or is no message {message}")
        shapes = kind.shape_of(schemas.reader_text).fields
        for i, branch in enumerate(branches):
            for name in branch.enums:
                is_new = F.coalesce(
                    has_new_symbol(struct.getField(name), shapes[name]), F.lit(False)
                )
                text = f"the {part} has a new value of an enum within {name}, which is quarantined"
                yield (wire_format.writer_index(schemas) == i) & is_new, F.lit(text)

    @property
    def _kind(self) -> Protobuf:
        kind = self.schemas.kind
        assert isinstance(kind, Protobuf)
        return kind

    def _branches(self) -> list[_Branch]:
        return [_Branch.of(self._kind, self.schemas, key) for key in self.schemas.writers]

    def _column_of(self, i: int) -> str:
        """Return the name of the column of fields in the form of that writer."""
        return self.schemas.part.column_name(f"as_{i}")

    def _value(self, branches: list[_Branch]) -> Column:
        """Return the structs of all writers; null where a record could not be decoded."""
        schemas, struct, unknown = self.schemas, F.col(PARSED), F.col(UNKNOWN)
        names = schemas.kind.field_names(schemas.reader_text)
        kept = [F.lit(None).cast("string").alias(UNKNOWN_COLUMN)] if schemas.keeps else []
        as_read = F.struct(*(struct.getField(name).alias(name) for name in names), *kept)
        chain: Column | None = None
        for i, branch in enumerate(branches):
            if branch.in_writer_form:
                written = F.col(self._column_of(i))
                value = F.when(written.isNotNull(), branch.value(struct, written, unknown))
                is_writer = wire_format.writer_index(schemas) == i
                chain = F.when(is_writer, value) if chain is None else chain.when(is_writer, value)
        value = as_read if chain is None else chain.otherwise(as_read)
        return F.when(struct.isNotNull(), value)

    def _message(self) -> Column:
        """Return the serialized message without its indexes; null if it is another message."""
        schemas, body = self.schemas, wire_format.body(self.schemas)
        if not schemas.has_keys:
            return body
        return wire_format.first_match(
            (
                (wire_format.writer_index(schemas) == i)
                & (F.substring(body, 1, len(prefix)) == F.lit(bytearray(prefix))),
                F.substring(body, len(prefix) + 1, F.length(body)),
            )
            for i, key in enumerate(schemas.writers)
            for prefix in prefixes(self._kind.indexes(schemas.texts[key]))
        ).cast("binary")


def ordinary_writers(schemas: WriterSchemas) -> list[dict[str, Any]]:
    """Return the plans of ``OrdinaryWritten.java`` for the records of each writer; without those
    whose messages do not become columns by their fields' numbers and types alone.
    """
    kind = schemas.kind
    assert isinstance(kind, Protobuf)
    reader, writers = kind.descriptor(schemas.reader_text), []
    for i, key in enumerate(schemas.writers):
        branch = _Branch.of(kind, schemas, key)
        is_more = branch.keeps or branch.in_writer_form or branch.enums
        clashes = kind.clash(branch.writer, branch.reader)
        if is_more or clashes or is_made(key) or wire_format.quarantined_changes(schemas, key):
            continue
        left = kind.names_left_out(branch.writer, branch.reader)
        with suppress(_NotOrdinaryError):
            message = _numbered(reader, left, ())
            indexes = kind.indexes(branch.writer)
            for prefix in prefixes(indexes) if schemas.has_keys else [b""]:
                begins = (wire_format.bytes_of(key) + prefix).hex()
                writers.append({"index": i, "key": begins, "message": message})
    return writers


class _NotOrdinaryError(Exception):
    """A message has a field that Java does not read."""


#: Kinds of messages that are one value, for ``ProtobufPlan.java``, beside the types of fields.
_TIMESTAMP, _DURATION, _WRAPPER = 19, 20, 21


def _numbered(
    message: Any, left: Mapping[tuple[int, ...], str], path: tuple[int, ...]
) -> dict[str, Any]:
    """Return ``message``, below the fields ``path``, for ``ProtobufPlan.java``."""
    names = {at[-1]: name for at, name in left.items() if at[:-1] == path}
    fields = [_of_field(field, left, (*path, field.number)) for field in message.fields]
    return {"fields": fields, "left": names}


def _of_field(
    field: Any, left: Mapping[tuple[int, ...], str], path: tuple[int, ...]
) -> dict[str, Any]:
    message, enum, oneof = field.message_type, field.enum_type, field.containing_oneof
    if is_map(field) or field.is_required:
        raise _NotOrdinaryError
    if enum and len(enum.values) != len(enum.values_by_number):
        raise _NotOrdinaryError
    plan: dict[str, Any] = {
        "number": field.number,
        "kind": field.type,
        "of": 0,
        "many": field.is_repeated,
        "absence": field.has_presence,
        "oneof": -1 if oneof is None else oneof.index,
        "symbols": {value.number: value.name for value in enum.values} if enum else {},
    }
    if message is None:
        return plan
    if not is_value(message):
        return plan | {"message": _numbered(message, left, path)}
    kinds = {"Timestamp": _TIMESTAMP, "Duration": _DURATION}
    wraps = message.fields_by_name.get("value")
    return plan | {"kind": kinds.get(message.name, _WRAPPER), "of": wraps.type if wraps else 0}


@dataclass(frozen=True)
class _Branch:
    """The records of one writer.

    ``rescued``: the reader's columns that cannot hold all values of the writer; ``cast``: those
    that hold them in another form; ``unread``: the writer's fields that the reader lacks at least
    in part; ``enums``: columns whose new values are quarantined; ``keeps``: values outside of the
    columns are kept as JSON.
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
    def of(cls, kind: Protobuf, schemas: WriterSchemas, key: str) -> _Branch:
        writer, reader = schemas.texts[key], schemas.reader_text
        if writer == reader or kind.descriptor(writer) is None:
            return cls(kind, writer, reader, schemas.keeps)
        decisions = schemas.policy.decide(unreadable(kind.shape_of(writer), kind.shape_of(reader)))
        rescued = decisions.rescued
        enums = tuple(
            column
            for column, decided in decisions.by_column.items()
            if decisions.policy(column) is Policy.QUARANTINE
            and any(d.change.kind is ChangeKind.NEW_ENUM_VALUE for d in decided)
        )
        cast = tuple(c for c in kind.castable(writer, reader) if c not in rescued)
        unread: tuple[str, ...] = ()
        if schemas.keeps:
            fields = {path.partition(".")[0] for path in kind.left_out(writer, reader)}
            unread = tuple(name for name in kind.presentable(writer) if name in fields)
        return cls(kind, writer, reader, schemas.keeps, rescued, cast, unread, enums)

    @property
    def in_writer_form(self) -> tuple[str, ...]:
        """Fields that are read in the writer's form."""
        return tuple(dict.fromkeys((*self.rescued, *self.cast, *self.unread)))

    @property
    def text(self) -> str:
        """The reader's schema without the columns that are read in the writer's form."""
        names = {*self.rescued, *self.cast}
        return without(self.kind.descriptor(self.reader), names) if names else self.reader

    def plan(self, column: str) -> WriterPlan:
        """Return the task of the workers; ``column`` gets the fields in the writer's form."""
        names: dict[tuple[int, ...], str | None] = {}
        names |= self.kind.names_left_out(self.writer, self.reader)
        message = _message_of(self.kind, self.text)
        if not self.in_writer_form:
            return WriterPlan(message, names)
        writer = self.kind.descriptor(self.writer)
        numbers = {field.name: field.number for field in writer.fields}
        columns = {*self.rescued, *self.cast}
        names |= {(number,): None for name, number in numbers.items() if name in columns}
        written = _message_of(self.kind, only(writer, self.in_writer_form))
        return WriterPlan(message, names, (column, written))

    def value(self, struct: Column, written: Column, unknown: Column) -> Column:
        """Return a struct of the reader's fields, of one type in all branches.

        Args:
            struct: the fields in the reader's form.
            written: those of :attr:`in_writer_form`.
            unknown: the paths of the unknown fields.
        """
        columns, shapes = (self.kind.shape_of(text).fields for text in (self.reader, self.writer))
        fits = {
            name: exact_cast(written.getField(name), shapes[name], columns[name])
            for name in (*self.rescued, *self.cast)
            if are_scalars(columns[name], shapes[name])
        }
        values = {name: struct.getField(name) for name in columns}
        for name, fit in fits.items():
            default = F.lit(self.kind.when_absent(self.reader, name)).cast(str(columns[name]))
            values[name] = F.when(written.getField(name).isNull(), default).otherwise(fit)
        fields = [column.alias(name) for name, column in values.items()]
        if self.keeps:
            fields.append(self._kept(written, unknown, shapes, fits).alias(UNKNOWN_COLUMN))
        return F.struct(*fields)

    def _kept(
        self,
        written: Column,
        unknown: Column,
        shapes: Mapping[str, Shape],
        fits: Mapping[str, Column],
    ) -> Column:
        """Return JSON of fields that columns lack or hold changed; null if there are none."""
        fields = []
        for name in dict.fromkeys((*self.unread, *self.rescued)):
            value = written.getField(name)
            if name in fits:
                is_lost = fits[name].isNull()
            elif name in self.rescued:
                is_lost = F.size(value) > 0 if shapes[name].type in (ARRAY, MAP) else F.lit(True)
            else:
                is_lost = F.exists(unknown, _is_within(name))
            fields.append(F.when(is_lost, value).alias(name))
        return as_json(fields)


def _is_within(name: str) -> Callable[[Column], Column]:
    return lambda path: (path == name) | path.startswith(f"{name}.")


def _message_of(kind: Protobuf, text: str) -> Message:
    return Message(plain_files(text), kind.descriptor(text).full_name)


@lru_cache(maxsize=64)
def _spark_type(message: Message) -> DataType:
    return from_arrow_type(protobuf_worker.arrow_type(message))

"""Protobuf to columns: one pass of Spark's Python workers over Arrow batches, no job of its own.

Protobuf resolves by itself: fields have numbers, and the latest version of a message reads what
older ones wrote. Where a number means something else in an older one, records of that are bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from eo_pipeline.source import protobuf_worker, wire
from eo_pipeline.source.optional import library
from eo_pipeline.source.protobuf_files import files_of
from eo_pipeline.source.protobuf_schema import Protobuf
from eo_pipeline.source.wire import WireSchemas

_BODY = "_eo_message"

#: Messages that ptars takes for one value and changes on the way: a date without a day has one.
_PLAIN = "google.type"

cloudpickle.register_pickle_by_value(protobuf_worker)  # type: ignore[no-untyped-call]


def parsed(keyed: DataFrame, schemas: WireSchemas, name: str, unknown: str) -> DataFrame:
    """See :class:`eo_pipeline.source.decoders.Decoder`."""
    library("ptars")
    kind, files = _kind(schemas), _plain(files_of(schemas.reader_text))
    message = kind.descriptor(schemas.reader_text).full_name
    names = [kind.names_left_out(schemas.texts[k], schemas.reader_text) for k in schemas.writers]
    # the place of the writer is null where there is no body either
    columns = (_BODY, schemas.part.own("writer"), name, unknown)
    decode = protobuf_worker.batches_decoder(files, message, names, columns)
    made = [
        StructField(name, _spark_type(files, message)),
        StructField(unknown, ArrayType(StringType())),
    ]
    shape = StructType([*keyed.schema.fields, *made])
    return keyed.withColumn(_BODY, _message(schemas)).mapInArrow(decode, shape)


def columns(schemas: WireSchemas, struct: Column) -> list[Column]:
    """The reader's fields of what :func:`parsed` made."""
    names = schemas.kind.field_names(schemas.reader_text)
    return [struct.getField(name).alias(name) for name in names]


def errors(schemas: WireSchemas, struct: Column) -> Iterator[tuple[Column, Column]]:
    """By the writer's schema, then by the record."""
    kind, part = _kind(schemas), schemas.part.name
    for i, key in enumerate(schemas.writers):
        if clash := kind.clash(schemas.texts[key], schemas.reader_text):
            said = f"schema {key} cannot be read as schema {schemas.reader}: {clash}"
            yield wire.writer(schemas) == i, F.lit(said)
    message = kind.descriptor(schemas.reader_text).full_name
    if schemas.have_keys:
        another = F.lit(f"the {part} is not the message {message}, but another one of schema ")
        yield _message(schemas).isNull(), F.concat(another, wire.key_text(schemas))
    yield struct.isNull(), F.lit(f"the {part} is cut off, or is no message {message}")


def _kind(schemas: WireSchemas) -> Protobuf:
    kind = schemas.kind
    assert isinstance(kind, Protobuf)
    return kind


def _message(schemas: WireSchemas) -> Column:
    """The serialized message, without what says which of its file's it is; null if another."""
    body = wire.body(schemas)
    if not schemas.have_keys:
        return body
    kind = _kind(schemas)
    return wire.first_that(
        (
            (wire.writer(schemas) == i)
            & (F.substring(body, 1, len(prefix)) == F.lit(bytearray(prefix))),
            F.substring(body, len(prefix) + 1, F.length(body)),
        )
        for i, key in enumerate(schemas.writers)
        for prefix in _prefixes(kind.indexes(schemas.texts[key]))
    ).cast("binary")


def _prefixes(indexes: Sequence[int] | None) -> list[bytes]:
    """How many indexes there are, and the indexes; the first message alone may be one zero."""
    if indexes is None:
        return []
    written = b"".join(_varint(each) for each in (len(indexes), *indexes))
    return [b"\x00", written] if tuple(indexes) == (0,) else [written]


def _varint(number: int) -> bytes:
    """Zigzag, of a number that is not negative."""
    rest, made = number << 1, bytearray()
    while rest > 0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*made, rest])


@lru_cache(maxsize=16)
def _spark_type(files: tuple[bytes, ...], message: str) -> DataType:
    return from_arrow_type(protobuf_worker.arrow_type(files, message))


@lru_cache(maxsize=16)
def _plain(files: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """With other names for the messages of :data:`_PLAIN`, so that they are messages as any."""
    return tuple(map(_renamed, files))


def _renamed(file: bytes) -> bytes:
    found = library("google.protobuf.descriptor_pb2").FileDescriptorProto.FromString(file)
    if found.package == _PLAIN:
        found.package = f"eo.{_PLAIN}"
    messages: list[Any] = [*found.message_type]
    while messages:
        message = messages.pop()
        messages.extend(message.nested_type)
        for field in message.field:
            if field.type_name.startswith(f".{_PLAIN}."):
                field.type_name = f".eo{field.type_name}"
    return bytes(found.SerializeToString())

"""Protobuf to columns: one pass of Spark's Python workers over Arrow batches, no job of its own.

Protobuf resolves by itself: fields have numbers, and the latest version of a message reads what
older ones wrote. Where a number means something else in an older one, records of that are bad.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from eo_pipeline.source import protobuf_worker, wire
from eo_pipeline.source.optional import library
from eo_pipeline.source.protobuf_files import plain_files
from eo_pipeline.source.protobuf_schema import Protobuf, prefixes
from eo_pipeline.source.wire import WireSchemas

_BODY = "_eo_message"

cloudpickle.register_pickle_by_value(protobuf_worker)  # type: ignore[no-untyped-call]


def parsed(keyed: DataFrame, schemas: WireSchemas, name: str, unknown: str) -> DataFrame:
    """See :class:`eo_pipeline.source.decoders.Decoder`."""
    library("ptars")
    kind, files = _kind(schemas), plain_files(schemas.reader_text)
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
        for prefix in prefixes(kind.indexes(schemas.texts[key]))
    ).cast("binary")


@lru_cache(maxsize=16)
def _spark_type(files: tuple[bytes, ...], message: str) -> DataType:
    return from_arrow_type(protobuf_worker.arrow_type(files, message))

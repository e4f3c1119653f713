"""Which types Delta holds, and the one form of each in which rows are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from eo_pipeline.errors import RefusedError, SchemaChangeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

#: Characters that Delta without column mapping, and Parquet readers, do not take in a name.
NAME_CHARACTERS_REFUSED = frozenset(" ,;{}()\n\t=")

#: Prefix of the copies of partition columns by which Spark lays out the staged files. The columns
#: themselves stay in the files, so that their type and value need not be guessed from folder names.
LAYOUT_PREFIX = "_eo_part_"

_SPARK_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
_SPARK_TEXTS = frozenset({"string", "char", "varchar", "binary"})
_SPARK_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_SPARK_SCALARS = {"boolean"} | _SPARK_NUMBERS | _SPARK_TEXTS | _SPARK_TIMES
_PLAIN = (
    pt.is_boolean,
    pt.is_int8,
    pt.is_int16,
    pt.is_int32,
    pt.is_int64,
    pt.is_float32,
    pt.is_float64,
    pt.is_date32,
)


def refuse_names(names: list[str]) -> None:
    """Raise RefusedError naming every column whose name Delta does not take."""
    bad = [name for name in names if not name or NAME_CHARACTERS_REFUSED & set(name)]
    if bad:
        raise RefusedError(
            f"Delta tables cannot have columns named {', '.join(map(repr, bad))}: no name may hold "
            "a space, a line break, a tab or one of ,;{}()=. Rename them in the transform."
        )


def refuse_spark_types(df: DataFrame) -> None:
    """Before anything is read.

    Raises:
        SchemaChangeError: names every column of a type that Delta has nothing for.
        RefusedError: a column's name cannot be used.
    """
    refuse_names(df.columns)
    bad = [f"{f.name!r} ({f.dataType.simpleString()})" for f in df.schema if not _held(f.dataType)]
    if bad:
        raise SchemaChangeError(
            f"Delta has no type for {', '.join(bad)}. Nothing was read; cast or drop these columns "
            "in the transform (a void column needs a type: lit(None).cast('string'))."
        )


def _held(data_type: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return _held(data_type.elementType)
    if isinstance(data_type, MapType):
        return _held(data_type.keyType) and _held(data_type.valueType)
    if isinstance(data_type, StructType):
        refuse_names(data_type.names)
        return all(_held(field.dataType) for field in data_type)
    return data_type.simpleString().partition("(")[0].partition(" ")[0] in _SPARK_SCALARS


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """``schema`` in the types Delta's files have, every column nullable.

    Timestamps are in microseconds, with time zone UTC or none; text and bytes have no large or
    dictionary form.

    Raises:
        SchemaChangeError: a column has a type Delta has nothing for.
        RefusedError: a column's name cannot be used.
    """
    names = [name for name in schema.names if not name.startswith(LAYOUT_PREFIX)]
    refuse_names(names)
    fields = []
    for name in names:
        stored = _stored(schema.field(name).type)
        if stored is None:
            raise SchemaChangeError(
                f"column {name!r}: Delta has no type for {schema.field(name).type}. "
                "Nothing was written; cast or drop it in the transform."
            )
        fields.append(pa.field(name, stored))
    return pa.schema(fields)


def _stored(kind: pa.DataType) -> pa.DataType | None:
    if any(is_it(kind) for is_it in _PLAIN) or (pt.is_decimal128(kind) and kind.scale >= 0):
        return kind
    if pt.is_dictionary(kind):
        return _stored(kind.value_type)
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return _nested(kind)


def _nested(kind: pa.DataType) -> pa.DataType | None:
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        item = _stored(kind.value_type)
        return item and pa.list_(pa.field("element", item))
    if pt.is_map(kind):
        key, value = _stored(kind.key_type), _stored(kind.item_type)
        return key and value and pa.map_(key, value)
    if pt.is_struct(kind):
        refuse_names([field.name for field in kind])
        inner = [(field.name, _stored(field.type)) for field in kind]
        return pa.struct(inner) if all(t for _, t in inner) else None
    return None


def stored_table(table: pa.Table) -> pa.Table:
    """``table`` in :func:`stored_schema`, without the copies of partition columns.

    Raises:
        RefusedError: a value does not fit (nanoseconds that are not whole microseconds).
    """
    schema = stored_schema(table.schema)
    try:
        return table.select(schema.names).cast(schema)
    except pa.ArrowInvalid as error:
        raise RefusedError(
            f"a column holds values that Delta cannot: {error}. Correct them in the transform."
        ) from error

"""What a sink makes of a DataFrame's columns before anything is read: types refused, JSON made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.arrow import JSON_FIELD
from eo_pipeline.sinks.unfit import column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
_TEXTS = frozenset({"string", "char", "varchar", "binary"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_SCALARS = {"boolean"} | _NUMBERS | _TEXTS | _TIMES

#: Spark's own default cuts times to milliseconds and leaves nulls out.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

#: What Spark writes as a JSON object's keys in a form that can be read back.
_MAP_KEYS = _SCALARS - _TIMES - {"float", "double", "binary"}


def project(df: DataFrame, store: str, *, has_arrays: bool = False) -> DataFrame:
    """``df`` with nested columns as JSON text that publishing will recognize. Lazy.

    Args:
        df: what the transform made.
        store: its name, for the message.
        has_arrays: arrays of scalars stay what they are.

    Raises:
        SchemaChangeError: a column has a type that ``store`` has nothing for.
    """
    refuse_unknown_types(df.schema, store)
    nested = nested_columns(df.schema, has_arrays=has_arrays)
    return as_json_columns(df, nested) if nested else df


def refuse_unknown_types(schema: StructType, store: str) -> None:
    """Raise SchemaChangeError naming every column whose type ``store`` has nothing for."""
    bad = [f"{f.name!r} ({f.dataType.simpleString()})" for f in schema if not _storable(f.dataType)]
    if bad:
        raise SchemaChangeError(
            f"{store} has no type for {', '.join(bad)}. Nothing was read; cast or drop these "
            "columns in the transform (a void column needs a type: lit(None).cast('string'))."
        )


def nested_columns(schema: StructType, *, has_arrays: bool) -> list[str]:
    """Columns that become JSON: structs, maps and arrays; not arrays of scalars if the store
    ``has_arrays``.
    """
    return [field.name for field in schema if _is_nested(field.dataType, has_arrays)]


def _is_nested(data_type: DataType, has_arrays: bool) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return not (has_arrays and is_scalar(data_type.elementType))
    return isinstance(data_type, StructType | MapType)


def _storable(data_type: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return _storable(data_type.elementType)
    if isinstance(data_type, MapType):
        return _kind(data_type.keyType) in _MAP_KEYS and _storable(data_type.valueType)
    if isinstance(data_type, StructType):
        return all(_storable(field.dataType) for field in data_type)
    return is_scalar(data_type)


def is_scalar(data_type: DataType) -> bool:
    """True for numbers, texts, bytes, times and booleans."""
    return _kind(data_type) in _SCALARS


def is_made_of_scalars(data_type: DataType) -> bool:
    """True for scalars, and for what holds nothing else at its bottom."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return is_made_of_scalars(data_type.elementType)
    if isinstance(data_type, MapType):
        return is_made_of_scalars(data_type.keyType) and is_made_of_scalars(data_type.valueType)
    if isinstance(data_type, StructType):
        return all(is_made_of_scalars(field.dataType) for field in data_type)
    return is_scalar(data_type)


def _kind(data_type: DataType) -> str:
    """``decimal`` of ``decimal(10,2)``, ``string`` of ``string collate UNICODE``."""
    return data_type.simpleString().partition("(")[0].partition(" ")[0]


def as_json_columns(df: DataFrame, names: Iterable[str]) -> DataFrame:
    """``df`` with the columns ``names`` as JSON, marked so that
    :func:`~eo_pipeline.sinks.arrow.json_array` knows it.
    """
    nested = set(names)
    return df.select(*(_as_json(name) if name in nested else column(name) for name in df.columns))


def _as_json(name: str) -> Column:
    from pyspark.sql import functions as F

    text = F.to_json(column(name), JSON_OPTIONS)
    return F.struct(text.alias(JSON_FIELD)).alias(name)

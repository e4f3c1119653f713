"""A DataFrame's types before anything is read: what PostgreSQL can take; nested ones as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.postgres.tables import check_names
from eo_pipeline.sinks.sql.json_text import as_json_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
_TEXTS = frozenset({"string", "char", "varchar", "binary"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_SCALARS = {"boolean"} | _NUMBERS | _TEXTS | _TIMES

#: What Spark writes as a JSON object's keys in a form that can be read back.
_MAP_KEYS = _SCALARS - _TIMES - {"float", "double", "binary"}


def project(df: DataFrame) -> DataFrame:
    """``df`` with nested columns as JSON text that publishing will recognize. Lazy.

    Raises:
        SchemaChangeError: a column has a type PostgreSQL has nothing for.
        RefusedError: a column's name cannot be used.
    """
    check_names(df.columns)
    refuse_unknown_types(df.schema)
    nested = nested_columns(df.schema)
    return as_json_columns(df, nested) if nested else df


def refuse_unknown_types(schema: StructType) -> None:
    """Raise SchemaChangeError naming every column whose type cannot be stored."""
    bad = [f"{f.name!r} ({f.dataType.simpleString()})" for f in schema if not _storable(f.dataType)]
    if bad:
        raise SchemaChangeError(
            f"PostgreSQL has no type for {', '.join(bad)}. Nothing was read; cast or drop these "
            "columns in the transform (a void column needs a type: lit(None).cast('string'))."
        )


def nested_columns(schema: StructType) -> list[str]:
    """Columns that become JSON: structs, maps, and arrays of anything but scalars."""
    return [field.name for field in schema if _is_nested(field.dataType)]


def _is_nested(data_type: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return not _is_scalar(data_type.elementType)
    return isinstance(data_type, StructType | MapType)


def _storable(data_type: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return _storable(data_type.elementType)
    if isinstance(data_type, MapType):
        return _kind(data_type.keyType) in _MAP_KEYS and _storable(data_type.valueType)
    if isinstance(data_type, StructType):
        return all(_storable(field.dataType) for field in data_type)
    return _is_scalar(data_type)


def _is_scalar(data_type: DataType) -> bool:
    return _kind(data_type) in _SCALARS


def _kind(data_type: DataType) -> str:
    """``decimal`` of ``decimal(10,2)``, ``string`` of ``string collate UNICODE``."""
    return data_type.simpleString().partition("(")[0].partition(" ")[0]

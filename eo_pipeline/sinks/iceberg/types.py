"""Types that Iceberg supports, and those that PyIceberg reads unchanged from the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eo_pipeline._lazy import pa, pt
from eo_pipeline.sinks.columns import is_scalar
from eo_pipeline.sinks.lake.types import StoredTypes

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

TYPES = StoredTypes(
    "Iceberg", short_integers=False, adds_fields=True, widens=True, takes_narrower=True
)


def is_read_as_it_stands(data_type: DataType) -> bool:
    """True for scalars, arrays and maps of scalars, and structs of scalars and structs."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return is_scalar(data_type.elementType)
    if isinstance(data_type, MapType):
        return is_scalar(data_type.keyType) and is_scalar(data_type.valueType)
    return _is_of_structs(data_type) if isinstance(data_type, StructType) else True


def _is_of_structs(data_type: DataType) -> bool:
    from pyspark.sql.types import StructType

    if isinstance(data_type, StructType):
        return all(_is_of_structs(field.dataType) for field in data_type)
    return is_scalar(data_type)


def reads_as_it_stands(kind: pa.DataType) -> bool:
    """:func:`is_read_as_it_stands` of an Arrow type."""
    if pt.is_list(kind) or pt.is_large_list(kind):
        return not pt.is_nested(kind.value_type)
    if pt.is_map(kind):
        return not (pt.is_nested(kind.key_type) or pt.is_nested(kind.item_type))
    if pt.is_struct(kind):
        return all(pt.is_struct(f.type) or not pt.is_nested(f.type) for f in kind) and all(
            reads_as_it_stands(f.type) for f in kind
        )
    return True

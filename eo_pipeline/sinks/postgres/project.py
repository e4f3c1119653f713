"""A DataFrame's types before anything is read: what PostgreSQL can take; nested ones as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eo_pipeline.sinks.postgres.tables import check_names
from eo_pipeline.sinks.sql import project as shared
from eo_pipeline.sinks.sql.json_text import as_json_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


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
    shared.refuse_unknown_types(schema, "PostgreSQL")


def nested_columns(schema: StructType) -> list[str]:
    """Columns that become JSON: structs, maps, and arrays of anything but scalars."""
    return shared.nested_columns(schema, has_arrays=True)

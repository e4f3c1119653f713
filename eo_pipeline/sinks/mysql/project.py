"""A DataFrame's types before anything is read: what MySQL can take; nested ones as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eo_pipeline.sinks.mysql.names import check_columns
from eo_pipeline.sinks.sql.json_text import as_json_columns
from eo_pipeline.sinks.sql.project import nested_columns, refuse_unknown_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def project(df: DataFrame) -> DataFrame:
    """``df`` with nested columns, arrays too, as JSON text that publishing recognizes. Lazy.

    Raises:
        SchemaChangeError: a column has a type MySQL has nothing for.
        RefusedError: a column's name cannot be used.
    """
    check_columns(df.columns)
    refuse_unknown_types(df.schema, "MySQL")
    nested = nested_columns(df.schema, has_arrays=False)
    return as_json_columns(df, nested) if nested else df

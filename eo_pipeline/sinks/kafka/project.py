"""Key, value and headers made by Spark, inside the one job, so that publishing only sends bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.arrow import JSON_FIELD
from eo_pipeline.sinks.kafka.layout import HEADERS, KEY, LINEAGE, TIMESTAMP, VALUE, Layout
from eo_pipeline.sinks.projection import as_json_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BYTES = frozenset({"string", "binary", "tinyint", "smallint", "int", "bigint"})


def project(df: DataFrame, layout: Layout) -> DataFrame:
    """``df`` as the parts of Kafka records, and the lineage. Lazy.

    Raises:
        ConfigError: a column the configuration names is absent.
        SchemaChangeError: ... or has a type a record has no place for.
    """
    layout.check_columns(df.columns)
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    _check_types(types, layout)
    kept = [name for name in df.columns if name in LINEAGE]
    parts = [*_parts(layout, types), *(_column(name) for name in kept)]
    if layout.value is not None:
        return df.select(_as_bytes(layout.value, types).alias(VALUE), *parts)
    from pyspark.sql import functions as F

    body = F.struct(*map(_column, layout.payload(df.columns)))
    wrapped = as_json_columns(df.select(body.alias(VALUE), *parts), [VALUE])
    return wrapped.withColumn(VALUE, F.col(VALUE)[JSON_FIELD])


def _parts(layout: Layout, types: Mapping[str, str]) -> list[Column]:
    parts = []
    if layout.key is not None:
        parts.append(_as_bytes(layout.key, types).alias(KEY))
    if layout.timestamp is not None:
        parts.append(_column(layout.timestamp).alias(TIMESTAMP))
    if isinstance(layout.headers, str):
        parts.append(_column(layout.headers).alias(HEADERS))
    elif layout.headers:
        parts.append(_headers(layout.headers, types).alias(HEADERS))
    return parts


def _headers(names: Mapping[str, str], types: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F

    return F.array(
        *(
            F.struct(F.lit(header).alias("key"), _as_bytes(column, types).alias("value"))
            for header, column in names.items()
        )
    )


def _as_bytes(name: str, types: Mapping[str, str]) -> Column:
    column = _column(name)
    # an integer's own cast to binary is its memory, not its digits
    return column if types[name] == "binary" else column.cast("string").cast("binary")


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def _check_types(types: Mapping[str, str], layout: Layout) -> None:
    mapped = layout.header_columns if not isinstance(layout.headers, str) else ()
    for name in filter(None, (layout.key, layout.value, *mapped)):
        if types[name].partition(" ")[0] not in _BYTES:
            raise SchemaChangeError(
                f"column {name!r} is {types[name]}; a key, a header or a whole value must be text, "
                "binary or an integer. Nothing was read; cast it in the transform."
            )
    if layout.timestamp is not None and not types[layout.timestamp].startswith("timestamp"):
        raise SchemaChangeError(
            f"sink.timestamp: column {layout.timestamp!r} is {types[layout.timestamp]}, not a "
            "timestamp. Nothing was read; cast it in the transform."
        )

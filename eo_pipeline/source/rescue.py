"""What of a record does not fit into the columns: what fits, and the rest as JSON, whatever the
schema's kind. Lazy Spark expressions only.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from eo_pipeline.source.shapes import Shape

#: Spark's own default cuts times to milliseconds.
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def is_scalar(*shapes: Shape) -> bool:
    """One that can be compared with what it becomes."""
    return not any(shape.parts for shape in shapes)


def fitting(value: Column, written: Shape, column: Shape) -> Column:
    """``value`` in the type of its column if it is one of that exactly, otherwise null."""
    if column.symbols:
        return F.when(value.isin(*column.symbols), value)
    if written.type == "string" or column.type == "string":
        return F.lit(None).cast(column.type)  # a text is no number, whatever it looks like
    made = value.try_cast(str(column))
    return F.when(made.try_cast(str(written)).eqNullSafe(value), made)


def as_json(fields: Sequence[Column]) -> Column:
    """One object of the named ``fields`` that are not null, as text; null if all are."""
    if not fields:
        return F.lit(None).cast("string")
    text = F.to_json(F.struct(*fields), _JSON_OPTIONS)
    return F.when(text != "{}", text)

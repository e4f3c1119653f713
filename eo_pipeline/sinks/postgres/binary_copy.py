"""Rows as PostgreSQL's binary COPY has them, made by Spark's tasks; see ``CopyRow.java``.

A commit then sends the bytes that it finds. Without it, or for rows with a type that it does not
know (arrays), the commit encodes what it reads from Parquet columns, by :mod:`pgpq`; PostgreSQL
reads the same of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eo_pipeline._lazy import pa
from eo_pipeline.sinks.arrow import JSON_FIELD
from eo_pipeline.sinks.columns import RowEncoding, is_scalar

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

FORM = "postgres-copy-1"

#: Around the rows (PostgreSQL's manual, "COPY", "File Header" and "File Trailer"): no flags.
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"


def row_encoding(schema: StructType) -> RowEncoding | None:
    """Return the encoding of projected rows with these columns; None if it lacks a type."""
    from pyspark.sql.types import DecimalType

    if not all(_is_known(field.dataType) for field in schema):
        return None
    # whether a table's column is long enough for numbers is seen by their digits
    numbers = [field.name for field in schema if isinstance(field.dataType, DecimalType)]
    return RowEncoding(FORM, "postgres.copy_row", numbers)


def bytes_of(rows: pa.BinaryArray) -> memoryview:
    """All of ``rows`` one behind the other; none of them is null."""
    _, offsets, values = rows.buffers()
    if not len(rows) or values is None:
        return memoryview(b"")
    places = memoryview(offsets).cast("i")[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(values)[places[0] : places[-1]]


def _is_known(data_type: DataType) -> bool:
    return is_scalar(data_type) or getattr(data_type, "names", None) == [JSON_FIELD]

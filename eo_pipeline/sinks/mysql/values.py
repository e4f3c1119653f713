"""Arrow values in the form in which MySQL reads them exactly, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.arrow import Kind, json_array
from eo_pipeline.sinks.mysql.tables import Column

_MICROSECOND_DIGITS = 6


def readable(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    """``batch`` with booleans as numbers, times in UTC without saying so, nested values as JSON.

    Raises:
        RefusedError: a value that MySQL would bend: NaN, infinity, a part of a second that the
            column does not keep, a null where the column has none.
    """
    arrays = [_readable(batch.column(column.name), column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _readable(values: pa.Array, column: Column) -> pa.Array:
    if not column.type.nullable and values.null_count:
        # LOAD DATA would put in zero, the present time or the next number
        raise _refused(column, f"{values.null_count} null(s), and the column is NOT NULL")
    try:
        return _converted(values, column)
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise _refused(column, str(error)) from error


def _converted(values: pa.Array, column: Column) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = column.wire.kind
    if kind is Kind.NESTED:
        return json_array(values)
    if kind is Kind.BOOLEAN:
        return values.cast(pa.int8())
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return _finite(values, column)
    return _in_utc(values, column) if kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ) else values


def _finite(values: pa.Array, column: Column) -> pa.Array:
    if not pc.all(pc.is_finite(values), min_count=0).as_py():
        raise _refused(column, "NaN or infinity, which MySQL has not")
    # a float's shortest text names another double than the float is
    return values.cast(pa.float64()) if column.type.data_type == "double" else values


def _in_utc(values: pa.Array, column: Column) -> pa.Array:
    instants = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.timestamp("us"))
    digits = column.type.digits or 0
    if digits < _MICROSECOND_DIGITS:
        step = 10 ** (_MICROSECOND_DIGITS - digits)
        ticks = instants.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(ticks, step), step), ticks)).as_py():
            raise _refused(
                column, f"parts of a second that {column.type.spelled} does not keep; "
                "round them in the transform, or make the column datetime(6)",
            )  # fmt: skip
    return instants


def _refused(column: Column, what: str) -> RefusedError:
    return RefusedError(
        f"column {column.name!r} holds values that MySQL cannot take: {what}. "
        "Nothing was written; correct them in the transform."
    )


def literal(value: Any, quote: Any) -> str:
    """``value`` of a :func:`readable` column in a statement; ``quote`` encloses a text."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, int | float):
        return repr(value)
    return str(quote(str(value)))

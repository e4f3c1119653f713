"""Arrow's types as stores see them: what kind of values a column holds, and nested ones as JSON.

Spark turns nested columns into JSON inside the one job (:mod:`eo_pipeline.sinks.columns`), which
is fast and runs on the executors. Nested columns that reach a sink all the same (a dead letter's
headers, rows that no Spark made) are turned here, row by row (:func:`json_array`). Both write times
as ISO 8601 in UTC with microseconds, binary as base64, NaN and infinities as strings, and keep
nulls.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from eo_pipeline._lazy import pa, pc
from eo_pipeline.errors import RefusedError
from eo_pipeline.staging.rows import StagedTable


class Kind(StrEnum):
    """Kind of a column's values, as far apart as any store tells them."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    #: lists, maps and structs that :func:`json_array` can write
    NESTED = "nested"


@functools.cache
def _scalars() -> tuple[tuple[Callable[[pa.DataType], bool], Kind], ...]:
    return (
        (pa.types.is_boolean, Kind.BOOLEAN),
        (pa.types.is_int8, Kind.INT8),
        (pa.types.is_int16, Kind.INT16),
        (pa.types.is_int32, Kind.INT32),
        (pa.types.is_int64, Kind.INT64),
        (pa.types.is_float32, Kind.FLOAT),
        (pa.types.is_float64, Kind.DOUBLE),
        (pa.types.is_decimal128, Kind.DECIMAL),
        (pa.types.is_string, Kind.TEXT),
        (pa.types.is_large_string, Kind.TEXT),
        (pa.types.is_binary, Kind.BINARY),
        (pa.types.is_large_binary, Kind.BINARY),
        (pa.types.is_date32, Kind.DATE),
    )


#: The most digits of integers, in decimal.
WHOLE_DIGITS = {Kind.INT8: 3, Kind.INT16: 5, Kind.INT32: 10, Kind.INT64: 19}


def kind_of(data_type: pa.DataType) -> Kind | None:
    """The kind of the values, ``None`` for what Spark does not make and stores do not take."""
    if pa.types.is_nested(data_type):
        return Kind.NESTED if _has_json(data_type) else None
    if pa.types.is_timestamp(data_type):
        return Kind.TIMESTAMP if data_type.tz else Kind.TIMESTAMP_NTZ
    return next((kind for holds, kind in _scalars() if holds(data_type)), None)


def is_list(data_type: pa.DataType) -> bool:
    """True for lists of any length."""
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _has_json(data_type: pa.DataType) -> bool:
    """True if values of ``data_type`` can be written as JSON and be told apart there."""
    if pa.types.is_struct(data_type):
        return all(_has_json(field.type) for field in data_type)
    if pa.types.is_map(data_type):
        key = data_type.key_type
        is_name = pa.types.is_string(key) or pa.types.is_integer(key)
        return is_name and _has_json(data_type.item_type)
    if is_list(data_type):
        return _has_json(data_type.value_type)
    return not pa.types.is_nested(data_type) and kind_of(data_type) is not None


#: The one field of a struct that stands for "this is JSON already". A struct says so in Arrow and
#: in Parquet alike; Spark's column metadata reaches Parquet only.
JSON_FIELD = "_eo_json"


def is_marked(data_type: pa.DataType) -> bool:
    """True for what Spark has made JSON of."""
    return pa.types.is_struct(data_type) and [f.name for f in data_type] == [JSON_FIELD]


@contextmanager
def refusing(name: str, store: str) -> Iterator[None]:
    """Around what makes texts or Python's values of a column.

    Raises:
        RefusedError: a value has none: text that is not UTF-8, a year after 9999.
    """
    try:
        yield
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise RefusedError(
            f"column {name!r} holds values that {store} cannot take: {error}. Nothing was written; "
            "correct them in the transform."
        ) from error


#: The days and microseconds since 1970 in which the years 1 to 9999 begin and end.
_DAYS = (-719_162, 2_932_896)
_MICROS_A_DAY = 24 * 60 * 60 * 1_000_000
_MICROS = (_DAYS[0] * _MICROS_A_DAY, (_DAYS[1] + 1) * _MICROS_A_DAY - 1)


def has_common_years(values: pa.Array) -> bool:
    """Return whether all dates and times of ``values`` are in the years 1 to 9999, which Python
    and the stores have in common; true for any other values.
    """
    if pa.types.is_date32(values.type):
        numbers, (first, last) = values.cast(pa.int32()), _DAYS
    elif pa.types.is_timestamp(values.type):
        micros = values.cast(pa.timestamp("us", values.type.tz), safe=False)
        numbers, (first, last) = micros.cast(pa.int64()), _MICROS
    else:
        return True
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is None or (first <= ends["min"] and ends["max"] <= last)


def json_array(values: pa.Array) -> pa.Array:
    """Nested Arrow values as an array of JSON strings; null stays null.

    Raises:
        UnicodeDecodeError, OverflowError: a value has no text; see :func:`refusing`.
    """
    if is_marked(values.type):
        return pc.struct_field(values, 0)
    convert = _converter(values.type)
    texts = (None if v is None else _dumps(convert(v)) for v in values.to_pylist())
    return pa.array(texts, pa.string())


def _converter(data_type: pa.DataType) -> Any:
    """Return a function from a Python value of ``data_type`` to one that ``json`` can write."""
    if pa.types.is_map(data_type):
        item = _converter(data_type.item_type)
        return lambda pairs: {str(key): _or_none(item, value) for key, value in pairs}
    if pa.types.is_struct(data_type):
        fields = {field.name: _converter(field.type) for field in data_type}
        return lambda value: {name: _or_none(fields[name], v) for name, v in value.items()}
    if is_list(data_type):
        item = _converter(data_type.value_type)
        return lambda values: [_or_none(item, value) for value in values]
    return _scalar


def _or_none(convert: Any, value: Any) -> Any:
    return None if value is None else convert(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return _time(value)
    return value.isoformat() if isinstance(value, date) else value


def _time(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    text = value.astimezone(UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def _dumps(value: Any) -> str:
    """``json.dumps``, with decimals as numbers in all their digits."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_dumps(k)}:{_dumps(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dumps, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


#: Rows are sent about this many bytes at a time, so that wide ones do not pile up in memory.
BATCH_BYTES = 8 * 1024 * 1024


def bounded_batches(staged: StagedTable) -> Iterator[pa.RecordBatch]:
    """The staged rows, at most about :data:`BATCH_BYTES` at a time.

    Raises:
        RefusedError: a staged file cannot be read.
    """
    try:
        for batch in staged.batches():
            step = max(1, batch.num_rows * BATCH_BYTES // max(batch.nbytes, BATCH_BYTES))
            for start in range(0, batch.num_rows, step):
                yield batch.slice(start, step)
    except (OSError, pa.ArrowException) as error:
        raise RefusedError(
            f"a staged file cannot be read: {error}. "
            "Nothing was published; the next run reads the ranges again."
        ) from error


def check_all_sent(target: object, sent: int, staged: StagedTable) -> None:
    """Raise :class:`RefusedError` unless as many rows were read as were staged."""
    if sent != staged.rows:
        raise RefusedError(
            f"staged rows for {target}: {sent} read, {staged.rows} by the manifest. "
            "Nothing was published; the next run reads the ranges again."
        )


def whole_digits(staged: StagedTable, name: str) -> int:
    """The most digits that a value of the column ``name``, exact numbers, has before the point.

    Raises:
        RefusedError: a staged file cannot be read.
    """
    most = 0
    for values in staged.column(name):
        ends = pc.min_max(values).as_py().values()
        most = max(most, *(len(str(abs(int(end or 0)))) for end in ends))
    return most

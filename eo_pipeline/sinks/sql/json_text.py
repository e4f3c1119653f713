"""Nested values as JSON text: one form, whichever side of the staging makes it.

Spark turns nested columns into JSON inside the one job (:func:`as_json_columns`), which is fast and
runs on the executors. Nested columns that reach a sink all the same (a dead letter's headers,
rows that no Spark made) are turned here, row by row (:func:`json_array`). Both write times as
ISO 8601 in UTC with microseconds, binary as base64, NaN and infinities as strings, and keep nulls.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The one field of a struct that stands for "this is JSON already". A struct says so in Arrow and
#: in Parquet alike; Spark's column metadata reaches Parquet only.
JSON_FIELD = "_eo_json"

#: Spark's own default cuts times to milliseconds and leaves nulls out.
_SPARK_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def as_json_columns(df: DataFrame, names: Iterable[str]) -> DataFrame:
    """``df`` with the columns ``names`` as JSON, marked so that :func:`json_array` knows it."""
    nested = set(names)
    return df.select(*(_as_json(name) if name in nested else _column(name) for name in df.columns))


def _as_json(name: str) -> Column:
    from pyspark.sql import functions as F

    text = F.to_json(_column(name), _SPARK_OPTIONS)
    return F.struct(text.alias(JSON_FIELD)).alias(name)


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def is_marked(data_type: pa.DataType) -> bool:
    """True for what :func:`as_json_columns` made of a column."""
    return pa.types.is_struct(data_type) and [f.name for f in data_type] == [JSON_FIELD]


def json_array(values: pa.Array) -> pa.Array:
    """Nested Arrow values as an array of JSON strings; null stays null.

    Raises:
        UnicodeDecodeError: a string is not UTF-8.
    """
    if is_marked(values.type):
        return pc.struct_field(values, 0)
    convert = _converter(values.type)
    texts = (None if v is None else _dumps(convert(v)) for v in values.to_pylist())
    return pa.array(texts, pa.string())


def _converter(data_type: pa.DataType) -> Any:
    """How a Python value of ``data_type`` becomes one that ``json`` writes."""
    if pa.types.is_map(data_type):
        item = _converter(data_type.item_type)
        return lambda pairs: {str(key): _or_none(item, value) for key, value in pairs}
    if pa.types.is_struct(data_type):
        fields = {field.name: _converter(field.type) for field in data_type}
        return lambda value: {name: _or_none(fields[name], v) for name, v in value.items()}
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
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

"""Odd results of transforms over which stores are known to stumble: names, values, types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

_DAY = 24 * 60 * 60 * 1_000_000
_EPOCH = date(1970, 1, 1).toordinal()
#: The first moment of the year 10000, in microseconds since 1970, and the last before the year 1.
_YEAR_10000 = (date.max.toordinal() + 1 - _EPOCH) * _DAY
_YEAR_0 = (date.min.toordinal() - _EPOCH) * _DAY - 1
_FAR = [_YEAR_10000, 2**62, _YEAR_0, -(2**62)]
_FAR_DAYS = [micros // _DAY for micros in _FAR]

_POINT = pa.struct(
    [("x", pa.int64()), ("name", pa.string()), ("inner", pa.struct([("yes", pa.bool_())]))]
)
_POINTS = [{"x": 1, "name": "a", "inner": {"yes": True}}, {"x": None, "name": "", "inner": None}]
_COUNTS = pa.map_(pa.string(), pa.int64())


def _not_utf8(*values: bytes) -> pa.Array:
    """A text column as Arrow lets it pass: nobody has looked whether it is text."""
    raw = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(values), raw.buffers()[1], raw.buffers()[2])


def _list_of(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


#: Columns, by what is odd about them.
ODD_VALUES: Mapping[str, pa.Array] = {
    "negative zero": pa.array([-0.0, 0.0], pa.float64()),
    "negative zero in four bytes": pa.array([-0.0, 0.0], pa.float32()),
    "largest and smallest": pa.array([1.7976931348623157e308, 5e-324], pa.float64()),
    "largest and smallest in four bytes": pa.array([3.4028234663852886e38, 1e-45], pa.float32()),
    "eighteen decimals": pa.array(
        [Decimal("-99999999999999999999.999999999999999999"), Decimal("1E-18")],
        pa.decimal128(38, 18),
    ),
    "nothing but decimals": pa.array([Decimal("0." + "9" * 38), None], pa.decimal128(38, 38)),
    "structs": pa.array([*_POINTS, None], _POINT),
    "maps": pa.array([[("a b", 1), ("", None)], [], None], _COUNTS),
    "maps of numbers": pa.array([[(-1, "a")], [], None], pa.map_(pa.int64(), pa.string())),
    "structs in lists": pa.array([[*_POINTS, None], [], None], pa.list_(_POINT)),
    "lists in structs": pa.array(
        [{"all": [[1], []]}, None], pa.struct([("all", pa.list_(pa.list_(pa.int64())))])
    ),
    "instants of far years": pa.array(_FAR, pa.timestamp("us", "UTC")),
    "instants of far years in structs": pa.StructArray.from_arrays(
        [pa.array(_FAR, pa.timestamp("us", "UTC"))], ["at"]
    ),
    "walls of far years": pa.array(_FAR, pa.timestamp("us")),
    "days of far years": pa.array(_FAR_DAYS, pa.date32()),
    "no text": _not_utf8(b"\xff\xfe", b"fine", b"\xed\xa0\x80"),
    "no text in lists": _list_of(_not_utf8(b"\xff\xfe", b"fine")),
    "the character of no character": pa.array(["a\0b"], pa.string()),
    "beyond the basic plane": pa.array(["\U0001f6e9\u0301 e\u0301 \u2028 \ufeff"], pa.string()),
    "no type": pa.nulls(2),
    "durations": pa.array([1, None], pa.duration("us")),
}

#: What no sink has a place for.
NOWHERE = frozenset({"no type", "durations"})

#: What only plain files keep: times that few clients have a value for, and text that is none.
RARELY_KEPT = NOWHERE | {
    "instants of far years",
    "instants of far years in structs",
    "walls of far years",
    "days of far years",
    "no text",
    "no text in lists",
}

#: Names of columns, by what is odd about them.
ODD_NAMES: Mapping[str, str] = {
    "a space": "tail number",
    "a double quote": 'the "tail"',
    "a single quote": "o'hare",
    "a backtick": "back`tick",
    "a percent sign": "100%s %(x)s",
    "a dot": "a.b",
    "a comma": "a,b",
    "a colon": "a:b",
    "a semicolon": "a;b",
    "a question mark": "a?b",
    "a hash": "a#b",
    "a slash": "a/b",
    "a backslash": "a\\b",
    "a dollar": "$1",
    "braces": "{a}[b](c)",
    "an equals sign": "a=b",
    "a line break": "a\nb",
    "a tab": "a\tb",
    "capitals": "TailNum",
    "letters beyond ASCII": "naïve✈",
    "a reserved word": "select",
    "a word of the ledger": "version",
    "a digit at the beginning": "2nd",
    "only spaces": " ",
    "sixty-three bytes": "x" * 63,
    "more than sixty-three bytes": "y" * 64,
    "more bytes than characters": "ü" * 40,
    "two hundred characters": "z" * 200,
    "no character": "",
    "the character of no character": "a\0b",
}


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the column's values, equal to themselves and nothing else: times that Python has
    not are microseconds or days since 1970, text that is none is bytes, a map is a dictionary.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [_value(scalar) for chunk in chunks for scalar in chunk]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """``table.to_pylist()`` with :func:`values_of`."""
    columns = [values_of(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def comparable(value: Any, *, signed_zero: bool = True) -> Any:
    """``value`` so that it equals itself, and zero does not equal negative zero."""
    if isinstance(value, float):
        negative = signed_zero and value == 0 and math.copysign(1, value) < 0
        return "nan" if math.isnan(value) else "-0.0" if negative else value
    if isinstance(value, list):
        return [comparable(item, signed_zero=signed_zero) for item in value]
    if isinstance(value, dict):
        return {key: comparable(v, signed_zero=signed_zero) for key, v in value.items()}
    return value


def _value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.MapScalar):
        return {str(_value(pair[0])): _value(pair[1]) for pair in scalar.values}
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(scalar[name]) for name in scalar}
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar):
        return [_value(scalar_item) for scalar_item in scalar.values]
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes()
    except (OverflowError, ValueError):
        return scalar.value

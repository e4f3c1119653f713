"""Rows that a store would refuse for their own sake, told by Spark before they are staged.

A store refuses a whole transaction for one value that it has no form for, and names no record. So
every sink says by its :class:`ColumnLimits` what it cannot hold, and staging looks at each row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.arrow import JSON_FIELD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

#: Of a second.
_DIGITS = 6

#: Of a column, in its metadata: its text is UTF-8, by how it was read (true); or the name of a
#: function of Spark that tells.
_UTF8 = "eo_pipeline.utf8"

_MICROS_OF_A_DAY = 86_400_000_000
#: Spark's first and last time, in microseconds since 1970.
_EVERY_TIME = (-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class ColumnLimits:
    """Limits of the values that a store can hold.

    ``years``: the first and the last of a date or a time. ``nul``: text may hold U+0000.
    ``not_finite``: floating point may be NaN or infinite. ``needed``: columns that must
    have a value, because rows are told apart by them; ``numbers``: ... and may not be NaN.
    ``never_null``: columns of the table that take no null. ``utf8``: text is known to be UTF-8, or
    the name of a function of Spark that tells; by default Spark's own.
    """

    years: tuple[int, int] = (1, 9999)
    nul: bool = True
    not_finite: bool = True
    needed: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    never_null: Collection[str] = ()
    utf8: bool | str = "is_valid_utf8"


class Bound(NamedTuple):
    """Limit beyond which the type of a column cuts in silence: of a text all behind so many
    characters, if that is blank; of a time all behind so many digits of a second.
    """

    of_text: bool
    most: int


class Unfit(NamedTuple):
    """A row does not fit where ``condition`` holds; ``reason`` says what it holds."""

    condition: Column
    reason: str


def reason(schema: StructType, limits: ColumnLimits, *more: tuple[str, Unfit]) -> Column | None:
    """Return the reason why a row of ``schema`` does not fit, null if it does; None if every row
    fits.

    ``more`` are a store's own rules, each with the column it is about.
    """
    from pyspark.sql import functions as F

    rules = [(field.name, unfit) for field in schema for unfit in _of_column(field, limits)]
    texts = [
        F.when(unfit.condition, f"column {name!r} holds {unfit.reason}")
        for name, unfit in [*rules, *more]
    ]
    return F.coalesce(*texts) if texts else None


def beyond(schema: StructType, bounds: Mapping[str, Bound]) -> Column | None:
    """As :func:`reason`, of columns of a table that have ``bounds``, by their folded names."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, TimestampNTZType, TimestampType

    texts = []
    for field in schema:
        bound, value = bounds.get(field.name.lower()), column(field.name)
        if bound is None:
            continue
        if bound.of_text and isinstance(field.dataType, StringType):
            exceeds = F.length(value) > bound.most
            excess = f"text of more characters than the table's column takes, {bound.most}"
        elif not bound.of_text and isinstance(field.dataType, TimestampType | TimestampNTZType):
            digits = F.substring(F.date_format(value, "SSSSSS"), bound.most + 1, _DIGITS)
            exceeds = digits.cast("int") != 0
            excess = (
                f"a finer fraction of a second than the table's column takes, {bound.most} digits"
            )
        else:
            continue
        texts.append(F.when(exceeds, f"column {field.name!r} holds {excess}"))
    return F.coalesce(*texts) if texts else None


def with_utf8(schema: StructType, utf8: bool | str) -> StructType:
    """Return ``schema`` for rows of which no text need be looked at, as a look goes through all its
    bytes (true); or whose texts the function ``utf8`` looks at.
    """
    from pyspark.sql.types import StructField, StructType

    metadata = {_UTF8: utf8}
    return StructType([StructField(f.name, f.dataType, f.nullable, metadata) for f in schema])


def column(name: str) -> Column:
    """The column of exactly this name."""
    from pyspark.sql import functions as F

    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def _of_column(field: StructField, limits: ColumnLimits) -> Iterator[Unfit]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType

    name, data_type = field.name, field.dataType
    value = column(name)
    if name in limits.needed:
        yield Unfit(value.isNull(), "null, but the column identifies rows")
    elif name.lower() in {column.lower() for column in limits.never_null}:
        yield Unfit(value.isNull(), "null, which the table does not take")
    if name in limits.numbers and isinstance(data_type, DoubleType | FloatType):
        yield Unfit(F.isnan(value), "NaN, but the column identifies rows")
    utf8 = field.metadata.get(_UTF8, limits.utf8)
    yield from _of_value(value, data_type, replace(limits, utf8=utf8))


def _of_value(value: Column, data_type: DataType, limits: ColumnLimits) -> Iterator[Unfit]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType):
        for field in data_type:
            yield from _of_value(value.getField(field.name), field.dataType, limits)
    elif isinstance(data_type, ArrayType):
        yield from _of_elements(value, data_type.elementType, limits)
    elif isinstance(data_type, MapType):
        yield from _of_elements(F.map_keys(value), data_type.keyType, limits)
        yield from _of_elements(F.map_values(value), data_type.valueType, limits)
    else:
        yield from _of_scalar(value, data_type, limits)


def _of_elements(values: Column, data_type: DataType, limits: ColumnLimits) -> Iterator[Unfit]:
    from pyspark.sql import functions as F

    reasons = [unfit.reason for unfit in _of_value(F.lit(None), data_type, limits)]
    if reasons:

        def is_unfit(element: Column) -> Column:
            rules = (unfit.condition for unfit in _of_value(element, data_type, limits))
            return reduce(
                lambda one, other: one | other, (F.coalesce(r, F.lit(False)) for r in rules)
            )

        yield Unfit(F.exists(values, is_unfit), " or ".join(reasons))


def _of_scalar(value: Column, data_type: DataType, limits: ColumnLimits) -> Iterator[Unfit]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, DoubleType, FloatType, TimestampNTZType, TimestampType

    if data_type.typeName() in ("string", "char", "varchar"):
        if isinstance(limits.utf8, str):
            yield Unfit(~F.call_function(limits.utf8, value), "text that is not UTF-8")
        if not limits.nul:
            yield Unfit(value.contains("\0"), "text with the character U+0000")
    elif isinstance(data_type, FloatType | DoubleType) and not limits.not_finite:
        is_infinite = F.abs(value) == float("inf")
        yield Unfit(F.isnan(value) | is_infinite, "NaN or infinity")
    elif isinstance(data_type, DateType | TimestampType | TimestampNTZType):
        first, last = limits.years
        yield from (
            Unfit(outside, f"a time outside the years {first} to {last}")
            for outside in _outside(value, data_type, first, last)
        )


def _outside(value: Column, data_type: DataType, first: int, last: int) -> Iterator[Column]:
    """Yield the condition on which a time (by UTC) is not in the years ``first`` to ``last``;
    nothing if every time is. By numbers, as a calendar for each row takes longer than its hash.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, TimestampNTZType

    if isinstance(data_type, TimestampNTZType):
        yield ~F.year(value).between(first, last)
    elif isinstance(data_type, DateType):
        yield ~F.unix_date(value).between(_first_day(first), _first_day(last + 1) - 1)
    else:
        low = max(_first_day(first) * _MICROS_OF_A_DAY, _EVERY_TIME[0])
        high = min(_first_day(last + 1) * _MICROS_OF_A_DAY - 1, _EVERY_TIME[1])
        if (low, high) != _EVERY_TIME:
            yield ~F.unix_micros(value).between(low, high)


def _first_day(year: int) -> int:
    """Return the number of days from 1970-01-01 to the first one of ``year``, without a calendar's
    limits.
    """
    before = year - 1
    return 365 * before + before // 4 - before // 100 + before // 400 - 719_162


_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
_TEXTS = frozenset({"string", "char", "varchar", "binary"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_SCALARS = {"boolean"} | _NUMBERS | _TEXTS | _TIMES

#: Spark's own default cuts times to milliseconds and leaves nulls out.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

#: What Spark writes as a JSON object's keys in a form that can be read back.
_MAP_KEYS = _SCALARS - _TIMES - {"float", "double", "binary"}


def project(df: DataFrame, store: str, *, has_arrays: bool = False) -> DataFrame:
    """``df`` with nested columns as JSON text that publishing will recognize. Lazy.

    Args:
        df: what the transform made.
        store: its name, for the message.
        has_arrays: arrays of scalars stay what they are.

    Raises:
        SchemaChangeError: a column has a type that ``store`` has nothing for.
    """
    refuse_unknown_types(df.schema, store)
    nested = nested_columns(df.schema, has_arrays=has_arrays)
    return as_json_columns(df, nested) if nested else df


def refuse_unknown_types(schema: StructType, store: str) -> None:
    """Raise SchemaChangeError naming every column whose type ``store`` has nothing for."""
    bad = [f"{f.name!r} ({f.dataType.simpleString()})" for f in schema if not _storable(f.dataType)]
    if bad:
        raise SchemaChangeError(
            f"{store} has no type for {', '.join(bad)}. Nothing was read; cast or drop these "
            "columns in the transform (a void column needs a type: lit(None).cast('string'))."
        )


def nested_columns(schema: StructType, *, has_arrays: bool) -> list[str]:
    """Columns that become JSON: structs, maps and arrays; not arrays of scalars if the store
    ``has_arrays``.
    """
    return [field.name for field in schema if _is_nested(field.dataType, has_arrays)]


def _is_nested(data_type: DataType, has_arrays: bool) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return not (has_arrays and is_scalar(data_type.elementType))
    return isinstance(data_type, StructType | MapType)


def _storable(data_type: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return _storable(data_type.elementType)
    if isinstance(data_type, MapType):
        return _kind(data_type.keyType) in _MAP_KEYS and _storable(data_type.valueType)
    if isinstance(data_type, StructType):
        return all(_storable(field.dataType) for field in data_type)
    return is_scalar(data_type)


def is_scalar(data_type: DataType) -> bool:
    """True for numbers, texts, bytes, times and booleans."""
    return _kind(data_type) in _SCALARS


def is_made_of_scalars(data_type: DataType) -> bool:
    """True for scalars, and for what holds nothing else at its bottom."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, ArrayType):
        return is_made_of_scalars(data_type.elementType)
    if isinstance(data_type, MapType):
        return is_made_of_scalars(data_type.keyType) and is_made_of_scalars(data_type.valueType)
    if isinstance(data_type, StructType):
        return all(is_made_of_scalars(field.dataType) for field in data_type)
    return is_scalar(data_type)


def _kind(data_type: DataType) -> str:
    """``decimal`` of ``decimal(10,2)``, ``string`` of ``string collate UNICODE``."""
    return data_type.simpleString().partition("(")[0].partition(" ")[0]


def as_json_columns(df: DataFrame, names: Iterable[str]) -> DataFrame:
    """``df`` with the columns ``names`` as JSON, marked so that
    :func:`~eo_pipeline.sinks.arrow.json_array` knows it.
    """
    nested = set(names)
    return df.select(*(_as_json(name) if name in nested else column(name) for name in df.columns))


def _as_json(name: str) -> Column:
    from pyspark.sql import functions as F

    text = F.to_json(column(name), JSON_OPTIONS)
    return F.struct(text.alias(JSON_FIELD)).alias(name)


class JsonRows(NamedTuple):
    """Rows staged as one JSON object each, and columns beside it.

    Args:
        column: the staged column with the object.
        fields: the row's columns that the object is made of, in order.
        beside: the other staged columns by name, each with the row's column that it is.
        as_bytes: the one of these that has the bytes of that column's text, or of its digits.
    """

    column: str
    fields: Sequence[str]
    beside: Mapping[str, str]
    as_bytes: str | None

"""Rows that a store would refuse for their own sake, told by Spark before they are staged.

A store refuses a whole transaction for one value that it has no form for, and names no record. So
every sink says by its :class:`Limits` what it cannot hold, and staging looks at each row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

#: Of a second.
_DIGITS = 6

#: Of a column, in its metadata: its text is UTF-8, by how it was read.
_UTF8 = "eo_pipeline.utf8"


@dataclass(frozen=True)
class Limits:
    """What a store can hold.

    ``years``: the first and the last of a date or a time. ``nul``: text may hold U+0000.
    ``not_finite``: floating point may be NaN or infinite. ``needed``: columns that must
    have a value, because rows are told apart by them; ``numbers``: ... and may not be NaN.
    ``never_null``: columns of the table that take no null. ``utf8``: text is known to be UTF-8.
    """

    years: tuple[int, int] = (1, 9999)
    nul: bool = True
    not_finite: bool = True
    needed: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    never_null: Collection[str] = ()
    utf8: bool = False


class Bound(NamedTuple):
    """What the type of a table's column would cut in silence: of a text all behind so many
    characters, if that is blank; of a time all behind so many digits of a second.
    """

    of_text: bool
    most: int


class Unfit(NamedTuple):
    """A row does not fit where ``found`` holds; ``reason`` says what it holds."""

    found: Column
    reason: str


def reason(schema: StructType, limits: Limits, *more: tuple[str, Unfit]) -> Column | None:
    """Why a row of ``schema`` does not fit, null if it does; None if every row fits.

    ``more`` are a store's own rules, each with the column it is about.
    """
    from pyspark.sql import functions as F

    rules = [(field.name, unfit) for field in schema for unfit in _of_column(field, limits)]
    texts = [
        F.when(unfit.found, f"column {name!r} holds {unfit.reason}")
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
            found = F.length(value) > bound.most
            said = f"text of more characters than the table's column takes, {bound.most}"
        elif not bound.of_text and isinstance(field.dataType, TimestampType | TimestampNTZType):
            digits = F.substring(F.date_format(value, "SSSSSS"), bound.most + 1, _DIGITS)
            found = digits.cast("int") != 0
            said = (
                f"a finer fraction of a second than the table's column takes, {bound.most} digits"
            )
        else:
            continue
        texts.append(F.when(found, f"column {field.name!r} holds {said}"))
    return F.coalesce(*texts) if texts else None


def known_utf8(schema: StructType) -> StructType:
    """``schema`` of rows of which no text need be looked at: a look goes through all its bytes."""
    from pyspark.sql.types import StructField, StructType

    known = {_UTF8: True}
    return StructType([StructField(f.name, f.dataType, f.nullable, known) for f in schema])


def column(name: str) -> Column:
    """The column of exactly this name."""
    from pyspark.sql import functions as F

    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def _of_column(field: StructField, limits: Limits) -> Iterator[Unfit]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType

    name, data_type = field.name, field.dataType
    value = column(name)
    if name in limits.needed:
        yield Unfit(value.isNull(), "null, and rows are told apart by it")
    elif name.lower() in {each.lower() for each in limits.never_null}:
        yield Unfit(value.isNull(), "null, which the table does not take")
    if name in limits.numbers and isinstance(data_type, DoubleType | FloatType):
        yield Unfit(F.isnan(value), "NaN, and rows are told apart by it")
    yield from _of_value(value, data_type, replace(limits, utf8=_UTF8 in field.metadata))


def _of_value(value: Column, data_type: DataType, limits: Limits) -> Iterator[Unfit]:
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


def _of_elements(values: Column, data_type: DataType, limits: Limits) -> Iterator[Unfit]:
    from pyspark.sql import functions as F

    reasons = [unfit.reason for unfit in _of_value(F.lit(None), data_type, limits)]
    if reasons:

        def is_unfit(each: Column) -> Column:
            found = (unfit.found for unfit in _of_value(each, data_type, limits))
            return reduce(
                lambda one, other: one | other, (F.coalesce(f, F.lit(False)) for f in found)
            )

        yield Unfit(F.exists(values, is_unfit), " or ".join(reasons))


def _of_scalar(value: Column, data_type: DataType, limits: Limits) -> Iterator[Unfit]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, DoubleType, FloatType, TimestampNTZType, TimestampType

    if data_type.typeName() in ("string", "char", "varchar"):
        if not limits.utf8:
            yield Unfit(~F.is_valid_utf8(value), "text that is not UTF-8")
        if not limits.nul:
            yield Unfit(value.contains("\0"), "text with the character U+0000")
    elif isinstance(data_type, FloatType | DoubleType) and not limits.not_finite:
        is_infinite = F.abs(value) == float("inf")
        yield Unfit(F.isnan(value) | is_infinite, "NaN or infinity")
    elif isinstance(data_type, DateType | TimestampType | TimestampNTZType):
        first, last = limits.years
        outside = ~F.year(value).between(first, last)
        yield Unfit(outside, f"a time outside the years {first} to {last}")

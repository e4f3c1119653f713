"""JSON values that Spark's reader would change on their way, and how they are told.

The reader takes what does not quite fit: it rounds decimals, wraps numbers, lets nested NOT NULL
fields be absent. So a value is read into a type with room to spare where that is the way to see it
(:func:`read_type`), judged (:func:`faults`), and only then made what the schema says
(:func:`exact`). A schema without such types costs nothing: its columns are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

#: Microseconds since 1970 of the first moment of year 1, and of the last of year 9999.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999


class Fault(NamedTuple):
    """A record is bad where ``found`` holds; ``reason`` says why."""

    found: Column
    reason: str


def read_type(wanted: DataType) -> DataType:
    """What Spark's reader is asked for, nullable throughout, in place of ``wanted``."""
    if isinstance(wanted, DecimalType):
        # as many digits before the point, and all that Spark has behind it
        return DecimalType(38, 38 - wanted.precision + wanted.scale)
    if isinstance(wanted, ByteType):  # Jackson takes 200 for one and makes it -56
        return ShortType()
    if isinstance(wanted, ArrayType):
        return ArrayType(read_type(wanted.elementType))
    if isinstance(wanted, MapType):
        return MapType(wanted.keyType, read_type(wanted.valueType))
    if isinstance(wanted, StructType):
        return StructType([StructField(f.name, read_type(f.dataType)) for f in wanted])
    return wanted


def exact(value: Column, wanted: DataType) -> Column:
    """``value``, read as :func:`read_type`, as what the schema says."""
    if not _is_read_otherwise(wanted):
        return value
    if isinstance(wanted, ArrayType):
        element = wanted.elementType
        return F.transform(value, lambda each: exact(each, element))
    if isinstance(wanted, MapType):
        held = wanted.valueType
        return F.transform_values(value, lambda _, each: exact(each, held))
    if isinstance(wanted, StructType):
        fields = (exact(value.getField(f.name), f.dataType).alias(f.name) for f in wanted)
        return F.when(value.isNotNull(), F.struct(*fields))
    return value.try_cast(wanted)


def faults(value: Column, wanted: DataType, path: str, text: Column) -> Iterator[Fault]:
    """What can be wrong with ``value``, which stands at ``path`` of the record ``text``."""
    if isinstance(wanted, StructType):
        for field in wanted:
            within, inner = value.getField(field.name), f"{path}.{field.name}"
            if not field.nullable:
                absent = value.isNotNull() & within.isNull()
                yield Fault(absent, f"required field {inner!r} is missing or null")
            yield from faults(within, field.dataType, inner, text)
    elif isinstance(wanted, ArrayType):
        yield from _faults_within(value, wanted.elementType, wanted.containsNull, path, text)
    elif isinstance(wanted, MapType):
        held = F.map_values(value)
        yield from _faults_within(held, wanted.valueType, wanted.valueContainsNull, path, text)
    else:
        yield from _faults_of_one(value, wanted, path, text)


def _faults_within(
    values: Column, wanted: DataType, nullable: bool, path: str, text: Column
) -> Iterator[Fault]:
    """The same of the elements of an array, in one: which of them it is does not matter."""
    reasons = [fault.reason for fault in faults(F.lit(None), wanted, path, text)]
    if not nullable:
        yield Fault(F.exists(values, lambda each: each.isNull()), f"null in field {path!r}")
    if reasons:

        def is_wrong(each: Column) -> Column:
            found = (F.coalesce(f.found, F.lit(False)) for f in faults(each, wanted, path, text))
            return reduce(Column.__or__, found)

        yield Fault(F.exists(values, is_wrong), f"in field {path!r}: {' or '.join(reasons)}")


def _faults_of_one(value: Column, wanted: DataType, path: str, text: Column) -> Iterator[Fault]:
    if isinstance(wanted, DecimalType):
        kind = f"DECIMAL({wanted.precision},{wanted.scale})"
        rounded = ~value.eqNullSafe(value.try_cast(wanted))
        yield Fault(rounded, f"field {path!r} has more decimal places than {kind}")
    elif isinstance(wanted, ByteType):
        yield Fault(~value.between(-128, 127), f"field {path!r} is out of range for TINYINT")
    elif isinstance(wanted, TimestampType):
        outside = ~F.unix_micros(value).between(_FIRST, _LAST)
        yield Fault(outside | _is_run_over(value, path, text), _years(path))
    elif isinstance(wanted, DateType | TimestampNTZType):
        yield Fault(~F.year(value).between(1, 9999), _years(path))


def _years(path: str) -> str:
    return (
        f"field {path!r} is outside the years 1 to 9999 (a number is seconds since 1970; of "
        "milliseconds declare a BIGINT, and use timestamp_millis in the transform)"
    )


def _is_run_over(value: Column, path: str, text: Column) -> Column:
    """Spark multiplies a number by a million without a look whether it fits; from 13 digits on
    the product may be any time at all. The path of an array's element is none and finds nothing.
    """
    names = path.split(".")
    steps = "".join(f"['{name}']" for name in names)
    number = F.get_json_object(text, f"${steps}").rlike("^-?[0-9]{13,}$")
    # a regular expression over the text costs as much as a third of parsing it, and nearly all
    # times are strings: not one of the field's names in the text has anything else behind it
    key = json.dumps(names[-1], ensure_ascii=False)
    others = _without(text, f'{key}:"', f'{key}: "')
    may_be_number = others.contains(key) | text.contains("'") | text.contains("\\")
    suspect = F.when(may_be_number, text.rlike("[0-9]{13}")).otherwise(F.lit(False))
    found = F.when(suspect, F.coalesce(number, F.lit(False))).otherwise(F.lit(False))
    return F.when(value.isNotNull(), found).otherwise(F.lit(False))


def _is_read_otherwise(wanted: DataType) -> bool:
    if isinstance(wanted, ArrayType):
        return _is_read_otherwise(wanted.elementType)
    if isinstance(wanted, MapType):
        return _is_read_otherwise(wanted.valueType)
    if isinstance(wanted, StructType):
        return any(_is_read_otherwise(field.dataType) for field in wanted)
    return isinstance(wanted, DecimalType | ByteType)


def braced(text: Column) -> Column:
    """Whether ``text`` begins with ``{`` and ends with ``}``, JSON's white space around it aside.

    Trimming looks at every character, a quarter of the executors' time; most values have nothing
    to trim and are told by two bytes. A ``when``, because only its branches are sure to wait: both
    sides of an "or" may be computed first, for what they have in common.
    """
    bare = F.btrim(text, F.lit(" \t\r\n"))
    return F.when(_in_braces(text), F.lit(True)).otherwise(_in_braces(bare))


def _in_braces(text: Column) -> Column:
    return text.startswith("{") & text.endswith("}")


def text_faults(text: Column) -> Iterator[Fault]:
    """What is wrong with the text of a record itself, cheap where nothing is."""
    yield Fault(~F.is_valid_utf8(text), "the value is not valid UTF-8")
    yield Fault(_has_half_a_character(text), "the value has half a character (a lone surrogate)")
    yield Fault(_is_followed(text), "the value is more than one JSON object")


def _has_half_a_character(text: Column) -> Column:
    r"""An escaped half of a pair (``\ud83d``) without the other, which Spark makes a ``?``."""
    escaped = F.when(text.contains("\\u"), text.contains("\\ud") | text.contains("\\uD")).otherwise(
        F.lit(False)
    )
    high, low = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    alone = rf"{high}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{{2}}){low}"
    return F.when(escaped, _without(text, "\\\\").rlike(alone)).otherwise(F.lit(False))


def _is_followed(text: Column) -> Column:
    """Spark reads the first object and leaves what follows it. Between strings, only then does
    one brace close and the next one open.
    """
    first = F.octet_length(F.substring_index(text, "}", 1))
    is_last = first == F.octet_length(text) - 1  # in nearly all: one brace, at the end
    after = [text.contains("}" + character) for character in "{ \t\r\n"]
    bare = F.regexp_replace(_without(text, "\\\\", '\\"'), '"[^"]*"', "")
    between = bare.rlike(r"\}[ \t\r\n]*\{")
    return (
        F.when(is_last, F.lit(False))
        .when(reduce(Column.__or__, after), between)
        .otherwise(F.lit(False))
    )


def _without(text: Column, *parts: str) -> Column:
    for part in parts:
        text = F.replace(text, F.lit(part), F.lit(""))
    return text

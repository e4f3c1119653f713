"""Values of JSON records: conversion to the types of columns, and their faults. Spark expressions.

Each scalar of a record is first read as a text, a *leaf*, which tells numbers and words from texts
by a mark; :func:`converted` makes the column of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

#: First character of a leaf that is no text; a text that begins with it has it twice.
_MARK = "\x01"
_LITERALS = (f"{_MARK}true", f"{_MARK}false")

#: Replacements of :func:`marked`, in order: Java's regular expressions, each of which passes over a
#: record once. The first two double the mark at the beginning of a text, also in a text that holds
#: JSON. The last makes texts of all values outside of texts that are words or JSON numbers of at
#: most a thousand digits.
_NUMBER = r"(?!(?:[-+.eE]*+[0-9]){1001}+)-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_NO_NUMBER = r"NaN|[+-]?(?:Infinity|INF)"
_BETWEEN = r'(?:[^"0-9+\-NItf]++|"(?:[^"\\]++|\\.)*+")*+'
_END = r"(?=[ \t\r\n]*+[,\]}])"
MARKS = (
    (r'(?<!\\)"\\u0001', r'"\\u0001\\u0001'),
    (r'(?<!\\)\\"\\\\u0001', r'\\"\\\\u0001\\\\u0001'),
    (rf"\G({_BETWEEN})({_NUMBER}|{_NO_NUMBER}|true|false){_END}", r'$1"\\u0001$2"'),
)

#: Inverse of :data:`MARKS` for JSON that Spark wrote: numbers and words, then texts.
_UNMARKS = (
    (r'(?<!\\)"\\u0001(-?[0-9][-+.0-9eE]*+|true|false)"', "$1"),
    (rf'(?<!\\)"\\u0001({_NO_NUMBER})"', '"$1"'),
    (r'(?<!\\)"\\u0001\\u0001', r'"\\u0001'),
    (r'(?<!\\)\\"\\\\u0001\\\\u0001', r'\\"\\\\u0001'),
)

#: First microsecond of year 1 and last of year 9999, since 1970.
FIRST_MICROS, LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999

#: ISO 8601, in regular expressions that end with the text.
_DAY = r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0{0,3})?)?"
_ZONE = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)"

#: Completion by midnight, seconds and UTC: Spark then reads one time in every session time zone.
_IN_FULL = (
    (r"^(.{10})\z", "$1T00:00:00Z"),
    (r"^(.{16})(?![:])(?=.|\z)", "$1:00"),
    (r"^(.{16}[0-9:.]+)\z", "$1Z"),
)

_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?+\z"

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_REALS = (FloatType, DoubleType)
_LEAVES = (
    *_INTEGERS,
    *_REALS,
    *(BooleanType, DecimalType, DateType, TimestampType, TimestampNTZType, BinaryType),
)


class Fault(NamedTuple):
    """A record is bad for this ``reason`` where ``holds``."""

    holds: Column
    reason: str


def marked(text: Column) -> Column:
    """Return ``text``, one record, with numbers and words as texts that begin with the mark."""
    for (pattern, by), needle in zip(MARKS, (r'"\u0001', r"\"\\u0001", None), strict=True):
        replaced = F.regexp_replace(text, pattern, by)
        # nearly no record has the mark, and a search for it is cheaper than the replacement
        text = (
            replaced if needle is None else F.when(text.contains(needle), replaced).otherwise(text)
        )
    return text


def unmarked(text: Column) -> Column:
    """Undo :func:`marked` in JSON that Spark wrote of it."""
    plain = text
    for pattern, by in _UNMARKS:
        plain = F.regexp_replace(plain, pattern, by)
    return F.when(text.contains(r"\u0001"), plain).otherwise(text)


def is_marked(leaf: Column) -> Column:
    """Return whether ``leaf`` is a number or a word."""
    return leaf.startswith(_MARK) & ~leaf.startswith(_MARK * 2)


def leaf_type(wanted: DataType) -> DataType:
    """Return the type that Spark's reader reads for ``wanted``: nullable, scalars as leaves."""
    if isinstance(wanted, ArrayType):
        return ArrayType(leaf_type(wanted.elementType))
    if isinstance(wanted, MapType):
        return MapType(wanted.keyType, leaf_type(wanted.valueType))
    if isinstance(wanted, StructType):
        return StructType([StructField(f.name, leaf_type(f.dataType)) for f in wanted])
    # a text of another collation is a StringType, too
    return StringType() if isinstance(wanted, (*_LEAVES, StringType)) else wanted


def converted(leaf: Column, wanted: DataType) -> Column:
    """Convert ``leaf``, read as :func:`leaf_type`, to ``wanted``; null where it is no such value.
    :func:`faults` finds values out of range.
    """
    if isinstance(wanted, ArrayType):
        element = wanted.elementType
        return F.transform(leaf, lambda item: converted(item, element))
    if isinstance(wanted, MapType):
        value = wanted.valueType
        return F.transform_values(leaf, lambda _, item: converted(item, value))
    if isinstance(wanted, StructType):
        fields = (converted(leaf.getField(f.name), f.dataType).alias(f.name) for f in wanted)
        return F.when(leaf.isNotNull(), F.struct(*fields))
    return _scalar(leaf, wanted)


def _scalar(leaf: Column, wanted: DataType) -> Column:
    bare = F.replace(leaf, F.lit(_MARK), F.lit(""))
    if isinstance(wanted, StringType):
        text = _text(leaf)
        return text if wanted == StringType() else text.cast(wanted)
    if isinstance(wanted, BooleanType):
        yes, no = (leaf == F.lit(literal) for literal in _LITERALS)
        return F.when(yes, F.lit(True)).when(no, F.lit(False))
    if isinstance(wanted, _INTEGERS):
        return F.when(leaf.rlike(r"^\x01-?[0-9]{1,19}\z"), bare.try_cast(wanted))
    if isinstance(wanted, _REALS):
        is_real = leaf.rlike(rf"^(?:\x01-?[0-9][-+.0-9eE]*+|\x01?+(?:{_NO_NUMBER}))\z")
        return F.when(is_real, bare.try_cast(wanted))
    if isinstance(wanted, DecimalType):
        return F.when(_is_exact(leaf, wanted), bare.try_cast(wanted))
    if isinstance(wanted, DateType):
        return F.when(leaf.rlike(rf"{_DAY}\z"), leaf.try_cast(wanted))
    if isinstance(wanted, TimestampType):
        return _moment(leaf)
    if isinstance(wanted, TimestampNTZType):
        return F.when(leaf.rlike(rf"{_DAY}(?:{_CLOCK})?\z"), leaf.try_cast(wanted))
    if isinstance(wanted, BinaryType):
        return F.when(leaf.rlike(_BASE64), F.unbase64(leaf))
    return F.parse_json(unmarked(F.to_json(leaf))) if isinstance(wanted, VariantType) else leaf


def _text(leaf: Column) -> Column:
    """Return the text; a number or a word as the record spells it; objects and arrays as JSON
    without white space, with that spelling too.
    """
    bare = F.when(leaf.startswith(_MARK), F.substring(leaf, 2, 1_000_000_000)).otherwise(
        unmarked(leaf)
    )
    has_mark = leaf.contains(_MARK) | leaf.contains(r"\u0001")
    return F.when(has_mark, bare).otherwise(leaf)


def _is_exact(leaf: Column, wanted: DecimalType) -> Column:
    """Return whether ``leaf`` is a decimal, as a number or a text, of no more places than
    ``wanted``, trailing zeros aside. Only a number may have an exponent, of at most three digits.
    """
    plain = rf"^\x01?+-?[0-9]{{1,1000}}(?:\.(?=[0-9])[0-9]{{0,{wanted.scale}}}0{{0,1000}})?\z"
    places = F.length(F.regexp_extract(leaf, r"\.([0-9]*[1-9])0*[eE]", 1))
    tens = F.length(F.regexp_extract(leaf, r"^\x01-?[0-9]*?(0*)(?:\.0*)?[eE]", 1))
    exponent = F.regexp_extract(leaf, r"[eE](.*)\z", 1).try_cast("int")
    has_exponent = leaf.rlike(r"^\x01-?[.0-9]{1,1001}[eE][+-]?[0-9]{1,3}\z")
    fits = F.when(has_exponent, places - tens - exponent <= wanted.scale).otherwise(F.lit(False))
    return F.when(leaf.rlike(plain), F.lit(True)).otherwise(fits)


def _moment(leaf: Column) -> Column:
    """Use each intermediate column once: Spark would compute it again for each use."""
    text = F.regexp_extract(leaf, rf"{_DAY}(?:{_CLOCK}{_ZONE}?)?\z", 0)
    for pattern, by in _IN_FULL:
        text = F.regexp_replace(text, pattern, by)
    seconds = F.regexp_extract(leaf, r"^\x01(-?[0-9]{1,12})\z", 1).try_cast("bigint")
    return F.coalesce(text.try_cast("timestamp"), F.timestamp_seconds(seconds))


def faults(leaf: Column, value: Column, wanted: DataType, path: str) -> Iterator[Fault]:
    """Yield the possible faults of ``leaf`` at ``path``, whose converted form is ``value``."""
    if isinstance(wanted, StructType):
        for field in wanted:
            inner_leaf, inner = leaf.getField(field.name), f"{path}.{field.name}"
            if not field.nullable:
                absent = leaf.isNotNull() & inner_leaf.isNull()
                yield Fault(absent, f"required field {inner!r} is missing or null")
            yield from faults(inner_leaf, value.getField(field.name), field.dataType, inner)
    elif isinstance(wanted, ArrayType):
        yield from _faults_within(leaf, wanted.elementType, wanted.containsNull, path)
    elif isinstance(wanted, MapType):
        names = F.map_keys(leaf)
        is_twice = F.size(F.array_distinct(names)) < F.size(names)
        yield Fault(is_twice, f"field {path!r} has a key twice")
        yield from _faults_within(
            F.map_values(leaf), wanted.valueType, wanted.valueContainsNull, path
        )
    elif isinstance(wanted, _LEAVES):
        is_invalid = leaf.isNotNull() & value.isNull()
        if isinstance(wanted, TimestampType):
            is_invalid = is_invalid | ~F.unix_micros(value).between(FIRST_MICROS, LAST_MICROS)
        elif isinstance(wanted, _REALS):  # larger than the largest
            is_infinite = F.abs(value) == F.lit(float("inf"))
            is_invalid = is_invalid | (is_infinite & ~leaf.contains("I"))
        yield Fault(is_invalid, f"field {path!r} {_reason(wanted)}")


def _faults_within(leaves: Column, wanted: DataType, nullable: bool, path: str) -> Iterator[Fault]:
    """Yield the faults of the elements of an array as one, without the index. Their path is
    ``path[]``, as in jq.
    """
    null, inner = F.lit(None), f"{path}[]"
    reasons = [fault.reason for fault in faults(null, null, wanted, inner)]
    if not nullable:
        yield Fault(F.exists(leaves, lambda item: item.isNull()), f"null in field {path!r}")
    if reasons:

        def is_wrong(item: Column) -> Column:
            value = converted(item, wanted)
            conditions = (fault.holds for fault in faults(item, value, wanted, inner))
            return reduce(Column.__or__, (F.coalesce(c, F.lit(False)) for c in conditions))

        yield Fault(F.exists(leaves, is_wrong), " or ".join(reasons))


def shape_fault(text: Column, schema: StructType) -> Column:
    """Return the reason why Spark's reader refuses ``text``, one record: the first field of another
    shape, or a general one for faults in nested values.
    """
    reasons = []
    for field in schema:
        if isinstance(field.dataType, ArrayType | MapType | StructType):
            is_array = isinstance(field.dataType, ArrayType)
            value = F.get_json_object(text, f"$['{field.name}']")
            opening, shape = ("[", "array") if is_array else ("{", "object")
            reasons.append(
                F.when(~value.startswith(opening), f"field {field.name!r} is no {shape}")
            )
    return F.coalesce(*reasons, F.lit("the value does not fit the schema"))


def _reason(wanted: DataType) -> str:
    if isinstance(wanted, DecimalType):
        kind = f"DECIMAL({wanted.precision},{wanted.scale})"
        return f"is no decimal number, or has more decimal places or digits than {kind}"
    if isinstance(wanted, _INTEGERS):
        return f"is no whole number, or is out of range for {_name(wanted)}"
    if isinstance(wanted, _REALS):
        return f"is no number, or is out of range for {_name(wanted)}"
    if isinstance(wanted, DateType):
        return "is no date as 2026-01-31, or is outside the years 1 to 9999"
    if isinstance(wanted, TimestampType):
        return (
            "is no time as 2026-01-31T08:30:00.125Z to the microsecond, or is outside the years 1 "
            "to 9999 (a number is seconds since 1970; of milliseconds declare a BIGINT, and use "
            "timestamp_millis in the transform)"
        )
    if isinstance(wanted, TimestampNTZType):
        return "is no time without a zone, as 2026-01-31T08:30:00.125 to the microsecond"
    return "is neither true nor false" if isinstance(wanted, BooleanType) else "is no Base64"


def _name(wanted: DataType) -> str:
    return wanted.simpleString().upper()


def braced(text: Column) -> Column:
    """Return whether ``text`` begins with ``{`` and ends with ``}``, white space around it aside.

    Trimming reads every character, a quarter of the executors' time, and most values have nothing
    to trim. A ``when``, because only its branches are lazy: Spark may compute both sides of an "or"
    for their common expressions.
    """
    bare = F.btrim(text, F.lit(" \t\r\n"))
    return F.when(_in_braces(text), F.lit(True)).otherwise(_in_braces(bare))


def _in_braces(text: Column) -> Column:
    return text.startswith("{") & text.endswith("}")


def text_faults(text: Column, marks: Column) -> Iterator[Fault]:
    """Yield the possible faults of the text of a record, cheap to test for good ones. ``marks`` is
    the :func:`marked` text.
    """
    yield Fault(~F.is_valid_utf8(text), "the value is not valid UTF-8")
    yield Fault(_has_lone_surrogate(text), "the value has half a character (a lone surrogate)")
    yield Fault(_has_trailing_text(text, marks), "the value is more than one JSON object")


def _has_lone_surrogate(text: Column) -> Column:
    r"""Return whether an escaped surrogate (``\ud83d``) is alone; Spark makes it a ``?``."""
    escaped = F.when(text.contains("\\u"), text.contains("\\ud") | text.contains("\\uD")).otherwise(
        F.lit(False)
    )
    high, low = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    alone = rf"{high}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{{2}}){low}"
    plain = F.replace(text, F.lit("\\\\"), F.lit(""))
    return F.when(escaped, plain.rlike(alone)).otherwise(F.lit(False))


def _has_trailing_text(text: Column, marks: Column) -> Column:
    """Return whether text follows the first object, which Spark's reader ignores. Such text makes
    an array or an object around the whole invalid, or gives it a second element.
    """
    first = F.octet_length(F.substring_index(text, "}", 1))
    is_last = first == F.octet_length(text) - 1  # nearly all flat records: one brace, at the end
    elements = F.json_array_length(F.concat(F.lit("["), marks, F.lit("]")))
    names = F.json_object_keys(F.concat(F.lit('{"":'), marks, F.lit("}")))
    is_alone = (elements == 1) & (F.size(names) == 1)
    return F.when(is_last, F.lit(False)).otherwise(~F.coalesce(is_alone, F.lit(False)))


#: Options of Spark's reader: JSON has no single quotes.
READING = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}

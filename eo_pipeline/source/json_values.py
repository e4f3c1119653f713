"""JSON values as they were written: which texts and numbers each type takes, and no other. The
table is docs/formats.md, "What each type takes of JSON". Lazy Spark expressions only.

Spark's reader makes values of what does not quite fit: it rounds, wraps, guesses. So it is asked
for the structure alone, with a text for each scalar (:func:`leaf_type`), and what such a leaf is
follows from the rules here (:func:`converted`): a leaf that is there and has no value makes the
record a bad one (:func:`faults`). A number, ``true``, ``false`` and what is no number (NaN,
Infinity) get a mark first (:func:`marked`), which tells them from texts; the reader then never
makes a number of digits, whose cost would be its exponent's.
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

#: What a leaf begins with that is no text; a text that begins with it has it twice.
_MARK = "\x01"
_LITERALS = (f"{_MARK}true", f"{_MARK}false")

#: By which :func:`marked` replaces what, in Java's regular expressions, one after the other; each
#: passes over a record once. First a text that begins with the mark, also in a text that holds
#: JSON, gets it twice. Then whatever stands between texts and is a number, as JSON writes it, of at
#: most a thousand digits, or one of the words, and has a value's end behind it, becomes a text.
_NUMBER = r"(?!(?:[-+.eE]*+[0-9]){1001}+)-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_NO_NUMBER = r"NaN|[+-]?(?:Infinity|INF)"
_BETWEEN = r'(?:[^"0-9+\-NItf]++|"(?:[^"\\]++|\\.)*+")*+'
_END = r"(?=[ \t\r\n]*+[,\]}])"
MARKS = (
    (r'(?<!\\)"\\u0001', r'"\\u0001\\u0001'),
    (r'(?<!\\)\\"\\\\u0001', r'\\"\\\\u0001\\\\u0001'),
    (rf"\G({_BETWEEN})({_NUMBER}|{_NO_NUMBER}|true|false){_END}", r'$1"\\u0001$2"'),
)

#: The same the other way round, in JSON that Spark wrote: of numbers and words, then of texts.
_UNMARKS = (
    (r'(?<!\\)"\\u0001(-?[0-9][-+.0-9eE]*+|true|false)"', "$1"),
    (rf'(?<!\\)"\\u0001({_NO_NUMBER})"', '"$1"'),
    (r'(?<!\\)"\\u0001\\u0001', r'"\\u0001'),
    (r'(?<!\\)\\"\\\\u0001\\\\u0001', r'\\"\\\\u0001'),
)

#: Microseconds since 1970 of the first moment of year 1, and of the last of year 9999.
FIRST_MICROS, LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999

#: ISO 8601, in regular expressions that end where the text does.
_DAY = r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0{0,3})?)?"
_ZONE = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)"

#: What Spark makes a time of whatever zone its session has: midnight, seconds and UTC said.
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
    """A record is bad where ``found`` holds; ``reason`` says why."""

    found: Column
    reason: str


def marked(text: Column) -> Column:
    """``text``, one record, in which whatever is a value and no text begins with the mark."""
    for (pattern, by), wanted in zip(MARKS, (r'"\u0001', r"\"\\u0001", None), strict=True):
        replaced = F.regexp_replace(text, pattern, by)
        # nearly none has the mark, which a look for it tells sooner
        text = (
            replaced if wanted is None else F.when(text.contains(wanted), replaced).otherwise(text)
        )
    return text


def unmarked(text: Column) -> Column:
    """JSON that Spark wrote of what was :func:`marked`: numbers as they stand in the record."""
    plain = text
    for pattern, by in _UNMARKS:
        plain = F.regexp_replace(plain, pattern, by)
    return F.when(text.contains(r"\u0001"), plain).otherwise(text)


def is_marked(leaf: Column) -> Column:
    """Whether ``leaf`` is a number or a word, and no text that begins with the mark."""
    return leaf.startswith(_MARK) & ~leaf.startswith(_MARK * 2)


def leaf_type(wanted: DataType) -> DataType:
    """What Spark's reader is asked for, nullable throughout, in place of ``wanted``."""
    if isinstance(wanted, ArrayType):
        return ArrayType(leaf_type(wanted.elementType))
    if isinstance(wanted, MapType):
        return MapType(wanted.keyType, leaf_type(wanted.valueType))
    if isinstance(wanted, StructType):
        return StructType([StructField(f.name, leaf_type(f.dataType)) for f in wanted])
    # a text of another collation is a StringType, too
    return StringType() if isinstance(wanted, (*_LEAVES, StringType)) else wanted


def converted(leaf: Column, wanted: DataType) -> Column:
    """``leaf``, read as :func:`leaf_type`, as what the schema says; null where it is not that. Of
    what is too large or too far :func:`faults` tells.
    """
    if isinstance(wanted, ArrayType):
        element = wanted.elementType
        return F.transform(leaf, lambda each: converted(each, element))
    if isinstance(wanted, MapType):
        held = wanted.valueType
        return F.transform_values(leaf, lambda _, each: converted(each, held))
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
        yes, no = (leaf == F.lit(each) for each in _LITERALS)
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
    """A text as it is; a number and a word as they stand in the record; of an object or an array
    its JSON without white space, in which both stand so, too.
    """
    bare = F.when(leaf.startswith(_MARK), F.substring(leaf, 2, 1_000_000_000)).otherwise(
        unmarked(leaf)
    )
    has_mark = leaf.contains(_MARK) | leaf.contains(r"\u0001")
    return F.when(has_mark, bare).otherwise(leaf)


def _is_exact(leaf: Column, wanted: DecimalType) -> Column:
    """Whether ``leaf`` is a decimal number, as a number or a text, of no more places than
    ``wanted``, zeros at the end aside. Only a number has an exponent, of at most three digits.
    """
    plain = rf"^\x01?+-?[0-9]{{1,1000}}(?:\.(?=[0-9])[0-9]{{0,{wanted.scale}}}0{{0,1000}})?\z"
    places = F.length(F.regexp_extract(leaf, r"\.([0-9]*[1-9])0*[eE]", 1))
    tens = F.length(F.regexp_extract(leaf, r"^\x01-?[0-9]*?(0*)(?:\.0*)?[eE]", 1))
    exponent = F.regexp_extract(leaf, r"[eE](.*)\z", 1).try_cast("int")
    has_exponent = leaf.rlike(r"^\x01-?[.0-9]{1,1001}[eE][+-]?[0-9]{1,3}\z")
    fits = F.when(has_exponent, places - tens - exponent <= wanted.scale).otherwise(F.lit(False))
    return F.when(leaf.rlike(plain), F.lit(True)).otherwise(fits)


def _moment(leaf: Column) -> Column:
    """Each step takes what it is of once: nothing else keeps Spark from doing it again."""
    text = F.regexp_extract(leaf, rf"{_DAY}(?:{_CLOCK}{_ZONE}?)?\z", 0)
    for pattern, by in _IN_FULL:
        text = F.regexp_replace(text, pattern, by)
    seconds = F.regexp_extract(leaf, r"^\x01(-?[0-9]{1,12})\z", 1).try_cast("bigint")
    return F.coalesce(text.try_cast("timestamp"), F.timestamp_seconds(seconds))


def faults(leaf: Column, value: Column, wanted: DataType, path: str) -> Iterator[Fault]:
    """What can be wrong with ``leaf``, which stands at ``path`` and of which ``value`` was made."""
    if isinstance(wanted, StructType):
        for field in wanted:
            within, inner = leaf.getField(field.name), f"{path}.{field.name}"
            if not field.nullable:
                absent = leaf.isNotNull() & within.isNull()
                yield Fault(absent, f"required field {inner!r} is missing or null")
            yield from faults(within, value.getField(field.name), field.dataType, inner)
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
        is_none = leaf.isNotNull() & value.isNull()
        if isinstance(wanted, TimestampType):
            is_none = is_none | ~F.unix_micros(value).between(FIRST_MICROS, LAST_MICROS)
        elif isinstance(wanted, _REALS):  # larger than any
            is_none = is_none | ((F.abs(value) == F.lit(float("inf"))) & ~leaf.contains("I"))
        yield Fault(is_none, f"field {path!r} {_what_it_is_not(wanted)}")


def _faults_within(leaves: Column, wanted: DataType, nullable: bool, path: str) -> Iterator[Fault]:
    """The same of the elements of an array, in one: which of them it is does not matter. They
    stand at ``path[]``, as jq has it.
    """
    nothing, inner = F.lit(None), f"{path}[]"
    reasons = [fault.reason for fault in faults(nothing, nothing, wanted, inner)]
    if not nullable:
        yield Fault(F.exists(leaves, lambda each: each.isNull()), f"null in field {path!r}")
    if reasons:

        def is_wrong(each: Column) -> Column:
            value = converted(each, wanted)
            found = (F.coalesce(f.found, F.lit(False)) for f in faults(each, value, wanted, inner))
            return reduce(Column.__or__, found)

        yield Fault(F.exists(leaves, is_wrong), " or ".join(reasons))


def misfit(text: Column, schema: StructType) -> Column:
    """Why Spark's reader does not take ``text``, one record: the first field of another shape, or
    one sentence for whatever lies deeper.
    """
    reason = F.when(F.lit(False), "")
    for field in schema:
        if isinstance(field.dataType, ArrayType | MapType | StructType):
            is_array = isinstance(field.dataType, ArrayType)
            found = F.get_json_object(text, f"$['{field.name}']")
            what = "array" if is_array else "object"
            reason = reason.when(
                ~found.startswith("[" if is_array else "{"), f"field {field.name!r} is no {what}"
            )
    return reason.otherwise("the value does not fit the schema")


def _what_it_is_not(wanted: DataType) -> str:
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
    """Whether ``text`` begins with ``{`` and ends with ``}``, JSON's white space around it aside.

    Trimming looks at every character, a quarter of the executors' time; most values have nothing
    to trim and are told by two bytes. A ``when``, because only its branches are sure to wait: both
    sides of an "or" may be computed first, for what they have in common.
    """
    bare = F.btrim(text, F.lit(" \t\r\n"))
    return F.when(_in_braces(text), F.lit(True)).otherwise(_in_braces(bare))


def _in_braces(text: Column) -> Column:
    return text.startswith("{") & text.endswith("}")


def text_faults(text: Column, marks: Column) -> Iterator[Fault]:
    """What is wrong with the text of a record itself, cheap where nothing is; ``marks`` is what
    :func:`marked` makes of it.
    """
    yield Fault(~F.is_valid_utf8(text), "the value is not valid UTF-8")
    yield Fault(_has_half_a_character(text), "the value has half a character (a lone surrogate)")
    yield Fault(_is_followed(text, marks), "the value is more than one JSON object")


def _has_half_a_character(text: Column) -> Column:
    r"""An escaped half of a pair (``\ud83d``) without the other, which Spark makes a ``?``."""
    escaped = F.when(text.contains("\\u"), text.contains("\\ud") | text.contains("\\uD")).otherwise(
        F.lit(False)
    )
    high, low = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    alone = rf"{high}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{{2}}){low}"
    plain = F.replace(text, F.lit("\\\\"), F.lit(""))
    return F.when(escaped, plain.rlike(alone)).otherwise(F.lit(False))


def _is_followed(text: Column, marks: Column) -> Column:
    """Spark reads the first object and leaves what follows it. Whatever that is, it cannot end both
    an array around the text and an object around it where the text ends.
    """
    first = F.octet_length(F.substring_index(text, "}", 1))
    is_last = first == F.octet_length(text) - 1  # in nearly all flat ones: one brace, at the end
    elements = F.json_array_length(F.concat(F.lit("["), marks, F.lit("]")))
    names = F.json_object_keys(F.concat(F.lit('{"":'), marks, F.lit("}")))
    is_alone = (elements == 1) & (F.size(names) == 1)
    return F.when(is_last, F.lit(False)).otherwise(~F.coalesce(is_alone, F.lit(False)))

"""Fields of a JSON record that the schema does not name: found, shown, kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

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

from eo_pipeline.formats import wire_format
from eo_pipeline.formats.schema_diff import (
    MAP,
    STRUCT,
    Change,
    ChangeKind,
    Policy,
    Shape,
    unreadable,
)
from eo_pipeline.formats.wire_format import WireSchemas, first_that

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


#: How Spark's reader reads a record: as JSON, which has no single quotes.
READING = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}

#: Names that a checkpoint shows, and characters of each: keys may be data, and the ledger is kept.
NAMES_MAX = 20
NAME_CHARACTERS_MAX = 100


def _no_names() -> Column:
    return F.array().cast("array<string>")


#: In place of a name, where an object has one twice: no field's name ends so.
_TWICE = "\x00 twice"


def keys_if_more(schema: StructType, text: Column, marks: Column, parsed: Column) -> Column:
    """The keys of the record's object; null where it has as many as values were read of it, which
    leaves none for an unknown field or for one that is there twice. ``marks`` is the record's
    ``text``, :func:`~eo_pipeline.batch.decode_json.marked`.

    Listing them is a second reading of the whole text. Nearly all records are told by less: each
    key has a colon of its own behind it, so there are at most as many keys as there are ``":`` if
    no other colon follows white space. Where they are more than the values, in a text or because a
    value is null, the keys are listed.
    """
    rest = F.replace(text, F.lit('":'), F.lit(""))
    colons_bytes = F.octet_length(text) - F.octet_length(rest)
    apart = [rest.contains(f"{before}:") for before in (" ", "\t", "\r", "\n")]
    # nearly all have no other colon at all, which one look tells
    hidden = F.when(rest.contains(":"), reduce(Column.__or__, apart)).otherwise(F.lit(False))
    unsure = (colons_bytes > _values_read(schema, parsed) * 2) | hidden
    return F.when(F.coalesce(unsure, F.lit(True)), F.json_object_keys(marks))


def _values_read(schema: StructType, parsed: Column) -> Column:
    """How many values are there, in structs of structs too; each has a key of its own."""
    counts = [F.lit(0)]
    for field in schema:
        value = parsed.getField(field.name)
        counts.append(value.isNotNull().cast("int"))
        if isinstance(field.dataType, StructType):
            within = _values_read(field.dataType, value)
            counts.append(F.when(value.isNotNull(), within).otherwise(0))
    return _sum(counts)


def _sum(terms: Sequence[Column]) -> Column:
    """Halves of halves: one after the other they would be as deep as they are many, and Spark
    Connect's client copies no plan of more than a hundred levels into a query.
    """
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _sum(terms[:half]) + _sum(terms[half:])


def nested_names(schema: StructType, marks: Column, keys: Column) -> Column | None:
    """The paths of the fields in structs that ``schema`` does not have, an array, with what
    :func:`is_twice` finds. It takes a reading of the text for each level of structs; None: there
    are none. ``keys``: see :func:`keys_if_more`.
    """
    nested = [each for shape in _shapes(schema) for each in _nested_names(shape, schema, marks)]
    return F.when(keys.isNotNull(), F.concat(*nested)) if nested else None


def unknown_fields(schema: StructType, keys: Column, nested: Column | None) -> Column:
    """The names of the fields that ``schema`` does not have, an array; null if there are none. A
    nested field is ``outer.inner``. ``keys``: see :func:`keys_if_more`.
    """
    names = [field.name for field in schema]
    # not a filter by a function of each: Spark generates no code for a step that has one
    found = F.array_except(keys, F.array(*map(F.lit, names)))
    if nested is not None:
        own = F.filter(nested, lambda path: ~path.endswith(_TWICE))
        found = F.array_distinct(F.concat(found, own))
    return F.when(keys.isNotNull(), F.when(F.size(found) > 0, found))


def is_twice(keys: Column, nested: Column | None) -> Column:
    """Whether a field is there twice; Spark takes the last one. ``keys``: see
    :func:`keys_if_more`; ``nested``: :func:`nested_names`.
    """
    found = F.size(F.array_distinct(keys)) < F.size(keys)
    if nested is not None:
        found = found | F.exists(nested, lambda path: path.endswith(_TWICE))
    return F.coalesce(found, F.lit(False))


def kept(marks: Column, schema: StructType, unknown: Column, lost: Column) -> Column:
    """The unknown fields as the text of one JSON object; a field of the schema in which there is a
    nested one is kept whole, and so are those whose names are ``lost``, an array. Null also where
    one of them has a field twice, or Spark cannot hold it.
    """
    names = [field.name for field in schema]
    tops = F.transform(unknown, lambda name: F.substring_index(name, ".", 1))
    tops = F.concat(F.coalesce(tops, _no_names()), lost)
    any_ = unknown.isNotNull() | (F.size(lost) > 0)
    fields = F.from_json(marks, "map<string, variant>", READING)
    chosen = F.map_filter(fields, lambda key, _: ~key.isin(names) | F.array_contains(tops, key))
    return F.when(any_, unmarked(F.to_json(chosen)))


def rescued(kept: Column, unknown: Column) -> Column:
    """The names of the fields in the JSON text ``kept`` that lead to none of the ``unknown`` ones:
    their values do not fit their columns. An array, never null.
    """
    tops = F.transform(unknown, lambda path: F.substring_index(path, ".", 1))
    others = F.array_except(F.json_object_keys(kept), F.coalesce(tops, _no_names()))
    return F.coalesce(others, _no_names())


def metrics(unknown: Column, counts: Column) -> list[Column]:
    """Aggregates over records where ``counts``: how many have unknown fields, and the names of a
    few of them: the one with the most, the first, the last, and one by chance.
    """
    few = F.transform(
        F.slice(unknown, 1, NAMES_MAX), lambda n: F.left(n, F.lit(NAME_CHARACTERS_MAX))
    )
    names = F.when(counts & unknown.isNotNull(), F.to_json(few))
    longest = F.concat(F.lpad(F.size(unknown).cast("string"), 9, "0"), names)
    chance = F.concat(F.hex(F.xxhash64(names)), names)
    return [
        F.count(names).alias("unknown"),
        F.max(longest).alias("unknown_longest"),
        F.min(names).alias("unknown_first"),
        F.max(names).alias("unknown_last"),
        F.min(F.when(names.isNotNull(), chance)).alias("unknown_chance"),
    ]


def shown(seen: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in what :func:`metrics` found."""
    found = [seen[f"unknown_{which}"] for which in ("longest", "first", "last", "chance")]
    names = {name for each in found if each for name in json.loads(each[each.index("[") :])}
    return tuple(sorted(names)[:NAMES_MAX])


def _shapes(schema: StructType) -> Iterator[StructType]:
    """For each level of structs below the first the schema down to it, where each is a map."""
    depth = 1
    while (shape := _cut(schema, depth)) is not None:
        yield StructType([StructField(f.name, f.dataType) for f in shape])
        depth += 1


def _cut(data_type: DataType, depth: int) -> Any:
    """``data_type`` with maps in place of the structs at ``depth``, and nothing that leads to none;
    None if it has none there.
    """
    if isinstance(data_type, ArrayType):
        within = _cut(data_type.elementType, depth)
        return within and ArrayType(within)
    if isinstance(data_type, MapType):
        within = _cut(data_type.valueType, depth)
        return within and MapType(StringType(), within)
    if not isinstance(data_type, StructType):
        return None
    if depth == 0:
        return MapType(StringType(), StringType())
    cut = [(field.name, _cut(field.dataType, depth - 1)) for field in data_type]
    fields = [StructField(name, within) for name, within in cut if within]
    return StructType(fields) if fields else None


def _nested_names(shape: StructType, schema: StructType, text: Column) -> Iterator[Column]:
    """Arrays with the paths of unknown fields that ``shape`` leads to, and of :data:`_TWICE`;
    empty, never null.
    """
    parsed = F.from_json(text, shape, READING)
    for field in shape:
        wanted = schema[field.name].dataType
        names = _names_in(parsed.getField(field.name), field.dataType, wanted)
        paths = F.transform(names, _prefixed(field.name))
        yield F.coalesce(paths, _no_names())


def _prefixed(outer: str) -> Callable[[Column], Column]:
    return lambda name: F.concat(F.lit(f"{outer}."), name)


def _names_in(value: Column, shape: DataType, wanted: DataType) -> Column:
    """Unknown names in ``value``; null where there is nothing to look into."""
    if isinstance(wanted, ArrayType) and isinstance(shape, ArrayType):
        return _names_in_each(value, shape.elementType, wanted.elementType)
    if isinstance(wanted, MapType) and isinstance(shape, MapType):
        return _names_in_each(F.map_values(value), shape.valueType, wanted.valueType)
    assert isinstance(wanted, StructType)
    if isinstance(shape, MapType):
        known, keys = [field.name for field in wanted], F.map_keys(value)
        others = F.filter(keys, lambda key: ~key.isin(known))
        twice = F.size(F.array_distinct(keys)) < F.size(keys)
        return F.when(twice, F.array_append(others, F.lit(_TWICE))).otherwise(others)
    assert isinstance(shape, StructType)
    found = []
    for field in shape:
        names = _names_in(value.getField(field.name), field.dataType, wanted[field.name].dataType)
        paths = F.transform(names, _prefixed(field.name))
        found.append(F.coalesce(paths, _no_names()))
    return F.concat(*found)


def _names_in_each(values: Column, shape: DataType, wanted: DataType) -> Column:
    def names_in(each: Column) -> Column:
        found = _names_in(each, shape, wanted)
        return F.coalesce(found, _no_names())

    return F.flatten(F.transform(values, names_in))


#: What is not a record has its text there, of what :func:`leaves_of` makes.
CORRUPT = "_eo_corrupt"
_OPTIONS = {**READING, "columnNameOfCorruptRecord": CORRUPT}

#: What JSON writes as a text.
_TEXTS = frozenset({"string", "timestamp", "date"})


def read_as(schema: StructType) -> StructType:
    """What Spark's reader makes of records of ``schema``: see
    :func:`~eo_pipeline.batch.decode_json.leaf_type`, and a column for what is none.
    """
    leaves = leaf_type(schema)
    assert isinstance(leaves, StructType)
    return StructType([*leaves, StructField(CORRUPT, StringType())])


def leaves_of(schemas: WireSchemas | None, marks: Column, schema: StructType) -> Column:
    """The record ``marks`` as :func:`read_as` of ``schema``; but of a writer that has other types
    in columns that are rescued, those are null where they do not fit.
    """
    whole, branches = F.from_json(marks, read_as(schema), _OPTIONS), _rescued(schemas)
    if schemas is None or not branches:
        return whole
    held = _reader_shapes(schemas)
    chain = (
        (_is_of(schemas, places), _read(marks, schema, held, names))
        for names, places in branches.items()
    )
    return first_that([*chain, (F.lit(True), whole)])


def rescues(schemas: WireSchemas | None) -> bool:
    """Whether there may be such columns."""
    return bool(_rescued(schemas))


def lost(schemas: WireSchemas | None, marks: Column, schema: StructType) -> Column | None:
    """The names of columns that are null because what is there does not fit, an array; None if
    there are never any.
    """
    branches = _rescued(schemas)
    if schemas is None or not branches:
        return None
    held = _reader_shapes(schemas)
    chain = []
    for names, places in branches.items():
        found = [
            F.when(_is_lost(marks, schema[name], held[name]), F.lit(name)) for name in sorted(names)
        ]
        chain.append((_is_of(schemas, places), F.array_compact(F.array(*found))))
    return F.coalesce(first_that(chain), F.array().cast("array<string>"))


def errors(schemas: WireSchemas | None, struct: Column) -> Iterator[tuple[Column, Column]]:
    """Values of an enum that only its writer has, where such are quarantined."""
    if schemas is None or schemas.policy.new_enum_value is not Policy.QUARANTINE:
        return
    held = _reader_shapes(schemas)
    for place, key in enumerate(schemas.writers):
        for name in dict.fromkeys(each.column for each in _of_values(schemas, key)):
            outside = _outside(struct.getField(name), held[name])
            said = f"field {name!r} has a value that schema {schemas.reader} does not list, and "
            reason = F.lit(said + f"source.schema_changes quarantines those of schema {key}")
            yield (wire_format.writer(schemas) == place) & F.coalesce(outside, F.lit(False)), reason


def _of_values(schemas: WireSchemas, key: str) -> Iterator[Change]:
    shapes = schemas.kind.shape_of(schemas.texts[key]), schemas.kind.shape_of(schemas.reader_text)
    return (e for e in unreadable(*shapes) if e.kind is ChangeKind.NEW_ENUM_VALUE)


def _rescued(schemas: WireSchemas | None) -> Mapping[frozenset[str], list[int]]:
    """Columns that cannot hold all that a writer has, with the places of the writers."""
    found: dict[frozenset[str], list[int]] = {}
    if schemas is None or not schemas.policy.rescues_values:
        return found
    shape_of, reader = schemas.kind.shape_of, schemas.kind.shape_of(schemas.reader_text)
    for place, key in enumerate(schemas.writers):
        decided = schemas.policy.decide(unreadable(shape_of(schemas.texts[key]), reader))
        names = frozenset(decided.rescued)
        if names:
            found.setdefault(names, []).append(place)
    return found


def _reader_shapes(schemas: WireSchemas) -> dict[str, Shape]:
    return schemas.kind.shape_of(schemas.reader_text).fields


def _is_of(schemas: WireSchemas, places: list[int]) -> Column:
    return F.coalesce(wire_format.writer(schemas).isin(places), F.lit(False))


def _read(
    marks: Column, schema: StructType, held: Mapping[str, Shape], names: frozenset[str]
) -> Column:
    """The same without what the columns ``names`` cannot hold."""
    others = StructType([f for f in schema if f.name not in names or not held[f.name].parts])
    rest = F.from_json(marks, read_as(others), _OPTIONS)
    fields = []
    for field in schema:
        if field.name not in names:
            value = rest.getField(field.name)
        elif held[field.name].parts:
            value = F.lit(None).cast(leaf_type(field.dataType))
        else:
            is_lost = _is_lost(marks, field, held[field.name])
            value = F.when(~is_lost, rest.getField(field.name))
        fields.append(value.alias(field.name))
    corrupt = rest.getField(CORRUPT).alias(CORRUPT)
    return F.when(rest.isNotNull(), F.struct(*fields, corrupt))


def _alone(marks: Column, name: str, kind: DataType) -> Column:
    """The one field, as ``kind``."""
    return F.from_json(marks, StructType([StructField(name, kind)]), READING).getField(name)


def _is_lost(marks: Column, field: StructField, held: Shape) -> Column:
    """Whether there is something that the column cannot hold. A text is no number, whatever it
    looks like, and no number is a text. What has parts is not looked into.
    """
    leaf = _alone(marks, field.name, StringType())
    is_there = leaf.isNotNull()
    if held.parts:
        return is_there
    fits = converted(leaf, field.dataType).isNotNull()
    if held.type in _TEXTS:
        fits = fits & _is_text(marks, field.name, leaf)
    if held.symbols:
        fits = fits & leaf.isin(*held.symbols)
    return is_there & ~fits


def _is_text(marks: Column, name: str, leaf: Column) -> Column:
    """An object and an array begin as a text may."""
    kind = F.schema_of_variant(_alone(marks, name, VariantType()))
    return ~is_marked(leaf) & F.coalesce(kind == "STRING", F.lit(False))


def _outside(value: Column, held: Shape) -> Column:
    """Whether there is a text in ``value`` that an enum does not have."""
    if held.symbols:
        return ~value.isin(*held.symbols)
    if held.type == STRUCT:
        inner = [_outside(value.getField(name), part) for name, part in held.parts]
        sure = (F.coalesce(each, F.lit(False)) for each in inner)
        return reduce(Column.__or__, sure, F.lit(False))
    if not held.parts:
        return F.lit(False)
    part = held.parts[0][1]
    values = F.map_values(value) if held.type == MAP else value
    return F.exists(values, lambda each: F.coalesce(_outside(each, part), F.lit(False)))

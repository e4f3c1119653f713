"""Which texts and numbers each type takes of JSON: the table in docs/formats.md, type by form, with
the same verdict by our own function and by Spark's plan, plain and within arrays, maps and structs.
"""

from __future__ import annotations

import json
import struct
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.decode import ERROR, decode
from eo_pipeline.batch.decode_json import KEPT
from eo_pipeline.batch.decoder import PARSED, UNKNOWN
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import SparkSettings
from tests.batch.frames import kafka_frame
from tests.batch.test_fast_json import a_source

INF, NAN = float("inf"), float("nan")
DIGITS = "12345678901234567890123456789012345678"


def utc(
    year: int,
    month: int,
    day: int,
    hour: int = 0,
    minute: int = 0,
    second: int = 0,
    micros: int = 0,
) -> datetime:
    return datetime(year, month, day, hour, minute, second, micros, UTC)


#: Numbers as they may stand in a record.
NUMBERS = [
    *("0", "-0", "1", "-7", "127", "128", "-129", "32768", "2147483648", "9223372036854775807"),
    *("9223372036854775808", "1e99", "1.0", "1.5", "1.50", "-0.0", "1e2", "100e-2", "1.005"),
    *("12345678.25", "99999999.990", "123456789", "3.5e38", "1e39", "-1e39", "1e308", "1e400"),
    *("-1e400", "1e-400", "1e10000000", "1e999999999", "1e-999999999", "1e99999999999", "0e-99999"),
    *("1e0000000002", DIGITS, f"{DIGITS}.5", "1.0000000000000000001e0", "1700000000"),
    *("1700000000000", "18446745773", "18446744073709", "1745089571123456", "-62135596801"),
    *("NaN", "Infinity", "-Infinity"),
]

OBJECT = '{"a": 1.10, "b": [1,  2e400, NaN]}'

#: What is no value of any scalar type, and what is no JSON.
PARTS = ["[]", "{}", "[1]", '{"a": 1}', OBJECT]
NOTHING = [
    *("01", "+1", "1.", ".5", "1.2.3", "1e", "0x1F", "tRue", "nope"),
    *("'a'", "--1", "1 2", "1_000"),
]

TEXTS = [
    *("", " ", "a", "1", "-7", "1.5", "12.50", "12,50", "1,5", "1 000", "1e2", "007.5", "+1.5"),
    *(".5", "5.", "\u0663", "\uff11", "1.50\\n", " 1.5", "true", "True", "null", "NaN", "Infinity"),
    *("-Infinity", "1e400", "2024-02-29", "2024-02-29 junk", "2023-02-29", "2024", "2024-02"),
    *("2024-2-9", "20240229", " 2024-02-29", "2024-02-29\\n", "2026-01-31Txyz", "0000-01-01"),
    *("0001-01-01", "9999-12-31", "12024-01-01", "-2024-01-01", "08:30:00", "T08:30:00"),
    *("2026-01-31T08:30:00Z", "2026-01-31T08:30:00.123456Z", "2026-01-31T08:30:00.1234567Z"),
    *(
        "2026-01-31T08:30:00.123456000Z",
        "2026-01-31 08:30:00",
        "2026-01-31T08:30",
        "2026-01-31T08:30Z",
        "2026-01-31T08:30+02:00",
    ),
    *("2026-01-31T08:30:00+02:00", "2026-01-31T08:30:00-0530", "2026-01-31T08:30:00+02"),
    *("2026-01-31T08:30:00 Europe/Vienna", "2026-01-31T24:00:00Z", "2026-01-31T08:30:61Z"),
    *("2026-01-31T8:30:00Z", "2026-01-31T08:30:00z", "0001-01-01T00:00:00+01:00", "now", "epoch"),
    *("1700000000", "QUJD", "QUI=", "QUI", "QU I=", "\\u00017", "\\u0001\\u00017", "\\u0001true"),
    *('{\\"a\\": \\"\\\\u00015\\"}', '[\\"\\\\u0001\\\\u00015\\"]', "\u00e9\U0001f600"),
]

FORMS = [*NUMBERS, "true", "false", *PARTS, *NOTHING, *(f'"{text}"' for text in TEXTS)]


def day(text: str) -> dict[str, Any]:
    return {f'"{text}"': date.fromisoformat(text)}


YEARS = ['"2024"', '"20240229"']
DAYS = {**day("2024-02-29"), **day("0001-01-01"), **day("9999-12-31")}
TIMES = {
    '"2026-01-31T08:30:00.123456000Z"': utc(2026, 1, 31, 8, 30, 0, 123456),
    '"2026-01-31T08:30:00.123456Z"': utc(2026, 1, 31, 8, 30, 0, 123456),
    '"2026-01-31T08:30:00Z"': utc(2026, 1, 31, 8, 30),
    '"2026-01-31T08:30:00+02:00"': utc(2026, 1, 31, 6, 30),
    '"2026-01-31T08:30:00+02"': utc(2026, 1, 31, 6, 30),
    '"2026-01-31T08:30:00-0530"': utc(2026, 1, 31, 14, 0),
    '"2026-01-31T08:30+02:00"': utc(2026, 1, 31, 6, 30),
    '"2026-01-31T08:30Z"': utc(2026, 1, 31, 8, 30),
}
LOCAL_TIMES = {
    '"2026-01-31 08:30:00"': utc(2026, 1, 31, 8, 30),
    '"2026-01-31T08:30"': utc(2026, 1, 31, 8, 30),
    **{form: utc(d.year, d.month, d.day) for form, d in DAYS.items()},
}
SECONDS = {
    "0": utc(1970, 1, 1),
    "-0": utc(1970, 1, 1),
    "1": utc(1970, 1, 1, 0, 0, 1),
    "-7": utc(1969, 12, 31, 23, 59, 53),
    "127": utc(1970, 1, 1, 0, 2, 7),
    "128": utc(1970, 1, 1, 0, 2, 8),
    "-129": utc(1969, 12, 31, 23, 57, 51),
    "32768": utc(1970, 1, 1, 9, 6, 8),
    "2147483648": utc(2038, 1, 19, 3, 14, 8),
    "123456789": utc(1973, 11, 29, 21, 33, 9),
    "1700000000": utc(2023, 11, 14, 22, 13, 20),
    "18446745773": utc(2554, 7, 22, 0, 2, 53),
}


def whole(*forms: str) -> dict[str, Any]:
    return {form: int(form) for form in forms}


TINY = whole("0", "-0", "1", "-7", "127")
SMALL = TINY | whole("128", "-129")
MIDDLE = SMALL | whole("32768", "123456789", "1700000000")
LONG = MIDDLE | whole(
    *("2147483648", "9223372036854775807", "1700000000000", "18446745773", "18446744073709"),
    *("1745089571123456", "-62135596801"),
)
REALS = {form: float(form) for form in NUMBERS if abs(float(form)) != INF or "I" in form}
NO_NUMBERS = {'"NaN"': NAN, '"Infinity"': INF, '"-Infinity"': -INF}
TOO_LARGE_FOR_FLOAT = ("3.5e38", "1e39", "-1e39", "1e308", "1e99")
SINGLES = {
    form: struct.unpack("f", struct.pack("f", value))[0]
    for form, value in REALS.items()
    if form not in TOO_LARGE_FOR_FLOAT
}


def exact(precision: int, scale: int) -> dict[str, Any]:
    """Return the values that fit without loss of a digit: numbers with exponents of at most three
    digits, and texts without an exponent.
    """
    forms = {}
    for form in [
        *NUMBERS[:-3],
        '"1"',
        '"-7"',
        '"1.5"',
        '"12.50"',
        '"007.5"',
        '"1700000000"',
        *YEARS,
    ]:
        if len(form.strip('"-').replace("-", "").partition("e")[2]) > 3:
            continue
        value = Decimal(form.strip('"'))
        reduced = value.normalize(Context(prec=99))
        places = max(0, -int(reduced.as_tuple().exponent))
        if places <= scale and (not value or reduced.adjusted() < precision - scale):
            forms[form] = value
    return forms


def of_base64() -> dict[str, Any]:
    forms = {}
    for text in TEXTS:
        with suppress(ValueError):
            forms[f'"{text}"'] = b64decode(text, validate=True)
    return forms


def as_written() -> dict[str, Any]:
    """Under STRING: whatever is JSON."""
    texts: dict[str, Any] = {form: form for form in [*NUMBERS, "true", "false", "[]", "{}", "[1]"]}
    texts |= {'{"a": 1}': '{"a":1}', OBJECT: '{"a":1.10,"b":[1,2e400,"NaN"]}'}
    for text in TEXTS:
        texts[f'"{text}"'] = json.loads(f'"{text}"')
    return texts


#: What each type takes of :data:`FORMS`, and nothing else.
TAKEN: Mapping[str, Mapping[str, Any]] = {
    "BOOLEAN": {"true": True, "false": False},
    "TINYINT": TINY,
    "SMALLINT": SMALL,
    "INT": MIDDLE,
    "BIGINT": LONG,
    "DOUBLE": REALS | NO_NUMBERS,
    "FLOAT": SINGLES | NO_NUMBERS,
    "DECIMAL(10,2)": exact(10, 2),
    "DECIMAL(38,0)": exact(38, 0),
    "DECIMAL(38,18)": exact(38, 18),
    "DATE": DAYS,
    "TIMESTAMP": TIMES | LOCAL_TIMES | SECONDS,
    "TIMESTAMP_NTZ": {form: at.replace(tzinfo=None) for form, at in LOCAL_TIMES.items()},
    "STRING": as_written(),
    "BINARY": of_base64(),
}

#: What a value may stand in: the type, the text, and the value again.
WITHIN: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("ARRAY<%s>", "[%s]", lambda value: value[0]),
    ("MAP<STRING, %s>", '{"k": %s}', lambda value: value[0][1]),
    ("STRUCT<f: %s>", '{"f": %s}', lambda value: value["f"]),
]

#: By type and form what became of the record.
Verdicts = dict[tuple[str, str], Any]
BAD = "a bad record"


@pytest.fixture
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


def verdicts(
    spark: SparkSession, kind: str, form: str, out: Callable[[Any], Any], *, ours: bool
) -> Verdicts:
    """Of each type and form, within what ``kind`` and ``form`` say."""
    types = list(TAKEN)
    schema = ", ".join(f"c{i} {kind % type_name}" for i, type_name in enumerate(types))
    cases = [(i, form) for i in range(len(types)) for form in FORMS]
    values = [f'{{"c{i}": {form % case}}}'.encode() for i, case in cases]
    decoded = decode(kafka_frame(spark, values), a_source(schema), native=ours)
    good = F.when(F.col(ERROR).isNull(), F.col(PARSED)).alias(PARSED)
    rows = decoded.all.select("offset", ERROR, good).toArrow().to_pylist()
    result: Verdicts = {}
    for row in rows:
        i, case = cases[row["offset"]]
        if row[ERROR] is None:
            result[types[i], case] = out(row[PARSED][f"c{i}"])
        else:
            result[types[i], case] = BAD
            is_json = case not in NOTHING
            assert not is_json or f"'c{i}" in row[ERROR], (types[i], case, row[ERROR])
    assert len(result) == len(cases)
    return result


def differing(verdicts: Verdicts) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Return actual and right value where they differ."""
    wanted = {(kind, form): TAKEN[kind].get(form, BAD) for kind, form in verdicts}
    return {c: (v, wanted[c]) for c, v in verdicts.items() if not is_same(v, wanted[c])}


def is_same(one: Any, other: Any) -> bool:
    """To the bit, of numbers; a time in whatever zone it is told."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.core
@pytest.mark.parametrize("ours", [True, False])
def test_each_type_takes_what_the_table_says(spark: SparkSession, ours: bool) -> None:
    assert differing(verdicts(spark, "%s", "%s", lambda value: value, ours=ours)) == {}


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(("kind", "form", "out"), WITHIN)
def test_a_value_within_others_is_taken_as_a_plain_one(
    spark: SparkSession, kind: str, form: str, out: Callable[[Any], Any], ours: bool
) -> None:
    assert differing(verdicts(spark, kind, form, out, ours=ours)) == {}


#: With something of everything that records below have.
SCHEMA = (
    "id INT, x DOUBLE, s STRUCT<a: INT, t: STRUCT<a: INT>>, l ARRAY<STRUCT<a: INT>>, v STRING, "
    "m MAP<STRING, INT>, n ARRAY<MAP<STRING, INT>>, `it's` TIMESTAMP, `event.time` TIMESTAMP"
)

#: What the source says of unknown fields, a record, and what it is: what is counted of it as
#: unknown fields, and what is kept of those; or what is said of a bad one.
RECORDS: list[tuple[str, bytes, tuple[str | None, str | None] | str]] = [
    ("fail", b'{"x": NaN, "new": "lost?"}', "does not name: new"),
    ("ignore", b'{"x": NaN, "new": 1}', ("new", None)),
    ("keep", b'{"x": -Infinity, "new": NaN}', ("new", '{"new":"NaN"}')),
    ("ignore", b'{"id": 3, "x": -Infinity, "id": 33}', "written twice"),
    ("ignore", b'{"id": 3, "new": [Infinity], "new": 1}', "written twice"),
    ("ignore", b'{"s": {"a": 1, "a": 2}}', "written twice"),
    ("keep", b'{"s": {"a": 1, "b": 2, "b": 3}}', "written twice"),
    ("ignore", b'{"l": [{}, {"a": 1, "a": null}]}', "written twice"),
    ("ignore", b'{"s": {"t": {"a": 1, "a": 1}}}', "written twice"),
    ("ignore", b'{"m": {"a": 1, "a": 2}}', "'m' has a key twice"),
    ("ignore", b'{"n": [{"a": 1, "a": 1}]}', "'n[]' has a key twice"),
    ("keep", b'{"id": 1, "new": {"a": 1, "a": 2}}', "cannot be kept"),
    ("ignore", b'{"id": 1, "new": {"a": 1, "a": 2}}', ("new", None)),
    ("keep", b'{"new": %b.50}' % (b"1" * 50), ("new", '{"new":%s.50}' % ("1" * 50))),
    (
        "keep",
        b'{"new": [1.50, 1e400, -0, true]}',
        ("new", '{"new":[1.50,1e400,-0,true]}'),
    ),
    ("keep", b'{"new": "\\u00015"}', ("new", '{"new":"\\u00015"}')),
    ("keep", b'{"new": "[\\"\\\\u00015\\"]"}', ("new", '{"new":"[\\"\\\\u00015\\"]"}')),
    ("keep", b'{"s": {"a": 1, "b": 1.0}}', ("s.b", '{"s":{"a":1,"b":1.0}}')),
    ("ignore", b'{"v": {"a": 1.10, "b": [1,  "\\u00012"]}}', (None, None)),
    ("ignore", b'{"id": 1}}', "more than one JSON object"),
    ("ignore", b'{"id": 1},"x":{}', "more than one JSON object"),
    ("ignore", b'{"id": 1}],"x":[{}', "more than one JSON object"),
    ("ignore", b'{"id": 1} {"id": 2}', "more than one JSON object"),
    ("ignore", b'{"id": 1, "new": 1.2.3}', "does not fit"),
    ("ignore", b'{"id": 1, 2: 3}', "does not fit"),
    ("ignore", b"{'id': 1}", "does not fit"),
    ("ignore", b'{"new": %b}' % (b"[" * 500 + b"]" * 500), ("new", None)),
    ("ignore", b'{"new": %b}' % (b"[" * 2000 + b"]" * 2000), "does not fit"),
    ("ignore", b'{"new": %b}' % (b"9" * 1000), ("new", None)),
    ("ignore", b'{"new": %b}' % (b"9" * 1001), "does not fit"),
    ("ignore", b'{"v": %b}' % (b"9" * 1001), "does not fit"),
    ("ignore", b'{"it\'s": 18446744073709}', "years 1 to 9999"),
    ("ignore", b'{"event.time": 18446744073709}', "years 1 to 9999"),
]


def told_of(spark: SparkSession, policy: str, values: list[bytes], *, ours: bool) -> list[Any]:
    """Of each record the reason against it, or its unknown fields and what is kept of them."""
    source = a_source(SCHEMA, unknown_fields=policy)
    decoded = decode(kafka_frame(spark, values), source, native=ours)
    kept = KEPT if policy == "keep" else F.lit(None).alias(KEPT)
    rows = decoded.all.select("offset", ERROR, UNKNOWN, kept).toArrow().to_pylist()
    return [
        row[ERROR] or (",".join(row[UNKNOWN] or ()) or None, row[KEPT])
        for row in sorted(rows, key=lambda row: row["offset"])
    ]


@pytest.mark.parametrize("policy", ["ignore", "keep", "fail"])
def test_no_check_is_switched_off_by_what_else_a_record_holds(
    spark: SparkSession, policy: str
) -> None:
    cases = [(record, right) for of, record, right in RECORDS if of == policy]
    for ours in (True, False):
        verdicts = told_of(spark, policy, [record for record, _ in cases], ours=ours)
        both = [(case, verdict) for case, verdict in zip(cases, verdicts, strict=True)]
        assert [outcome for outcome in both if not is_right(outcome[1], outcome[0][1])] == []


def is_right(verdict: Any, right: Any) -> bool:
    return bool(
        verdict == right
        or (isinstance(verdict, str) and isinstance(right, str) and right in verdict)
    )


@pytest.mark.parametrize("ours", [True, False])
def test_a_record_costs_no_more_than_its_size(spark: SparkSession, ours: bool) -> None:
    """Two megabytes each of what a reader could go through again and again."""
    size = 2_000_000
    values = [
        b'{"a": %b}' % (b"1" * size),
        b'{"a": "%b"}' % (b"1" * size),
        b'{"a": "1.%b"}' % (b"0" * size),
        b'{"a": 1e%b}' % (b"9" * size),
        b'{"b": "%b"}' % (b'\\"' * (size // 2)),
        b'{"b": "%b' % (b"\\" * size),
        b'{"b": %b}' % (b"-" * size),
        b'{"b": %b}' % (b"t" * size),
        b"{%b" % (b'"a":' * (size // 4)) + b"}",
        b"{%b}" % (b" " * size),
        b'{"b": 1%b}' % (b" " * size),
        b'{"b": [%b1]}' % (b"1, " * (size // 3)),
        b"{" * size + b"}" * size,
        b"{%b}" % b",".join(b'"%d":1' % n for n in range(size // 9)),
        b'{"c": "%b"}' % (b"QUJD" * (size // 4)),
        b'{"d": "2026-01-31T08:30:00.%bZ"}' % (b"0" * size),
    ]
    source = a_source("a DECIMAL(10,2), b STRING, c BINARY, d TIMESTAMP")
    if ours:
        source = a_source("a DECIMAL(10,2), b STRING, d TIMESTAMP")
    begun = time.monotonic()
    decoded = decode(kafka_frame(spark, values), source, native=ours)
    assert decoded.all.where(F.col(ERROR).isNotNull()).count() > 5
    assert time.monotonic() - begun < 60

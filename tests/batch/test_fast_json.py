"""What our own function reads of a record is what Spark's reader and all rules make of it; and of
whatever it is not sure it says nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.decode import Decoded, decode
from eo_pipeline.batch.decode_json import (
    WORKING,
    JsonDecoder,
    NativeResult,
    has_native_json,
    native_read,
    read_as,
)
from eo_pipeline.batch.decoded_source import IS_UTF8
from eo_pipeline.batch.spark_schema import parsed_schema
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.spark import SparkSettings
from tests.batch.frames import kafka_frame

#: One type each, and a value as JSON writes it that is read.
READ = [
    ("STRING", '"a \\"b\\" \\n / é \U0001f600"'),
    ("STRING", '""'),
    ("BIGINT", "-9223372036854775808"),
    ("INT", "2147483647"),
    ("SMALLINT", "-32768"),
    ("TINYINT", "-128"),
    ("DOUBLE", "-0.1e-7"),
    ("DOUBLE", "7"),
    ("FLOAT", "16777217.5"),
    ("BOOLEAN", "false"),
    ("DECIMAL(10,2)", "12345678.25"),
    ("DECIMAL(10,2)", "1e3"),
    ("DECIMAL(38,0)", "9" * 38),
    ("DATE", '"2024-02-29"'),
    ("TIMESTAMP", '"2026-01-31T08:30:00Z"'),
    ("TIMESTAMP", '"1970-01-01T00:00:00.000001Z"'),
    ("TIMESTAMP", '"1600-03-01T23:59:59.5Z"'),
    ("STRUCT<a: INT NOT NULL, b: STRING>", '{"a": 1, "b": null}'),
    ("ARRAY<STRUCT<a: INT>>", '[{"a": 1}, null, {}]'),
    ("MAP<STRING, BIGINT>", '{"x": 1, "y": null}'),
    ("BIGINT", "null"),
]

#: The same of what is left to Spark's reader, good or bad.
LEFT = [
    ("STRING", "1"),
    ("STRING", '{"a": 1}'),
    ("STRING", '"\\ud83d"'),
    ("STRING", '"\\u0041\\ude00"'),
    ("BIGINT", '"1"'),
    ("BIGINT", "1.0"),
    ("BIGINT", "9223372036854775808"),
    ("INT", "2147483648"),
    ("SMALLINT", "32768"),
    ("TINYINT", "128"),
    ("DOUBLE", '"NaN"'),
    ("DOUBLE", "NaN"),
    ("BOOLEAN", '"true"'),
    ("DECIMAL(10,2)", "1.005"),
    ("DECIMAL(10,2)", "123456789"),
    ("DECIMAL(10,2)", "1e2147483647"),
    ("DECIMAL(10,2)", "0e-2147483647"),
    ("DECIMAL(10,2)", '"1.5"'),
    ("DATE", '"2023-02-29"'),
    ("DATE", '"2024-2-9"'),
    ("DATE", '"1582-10-10"'),
    ("TIMESTAMP", "1700000000"),
    ("TIMESTAMP", '"2026-01-31 08:30:00"'),
    ("TIMESTAMP", '"2026-01-31T08:30:00+01:00"'),
    ("TIMESTAMP", '"2026-01-31T24:00:00Z"'),
    ("TIMESTAMP", '"2026-01-31T08:30:00.1234567Z"'),
    ("STRUCT<a: INT NOT NULL>", "{}"),
    ("STRUCT<a: INT>", '{"a": 1, "b": 2}'),
    ("STRUCT<a: INT>", '{"a": 1, "a": 1}'),
    ("ARRAY<INT>", "1"),
    ("ARRAY<INT>", '["1"]'),
    ("MAP<STRING, BIGINT>", '{"x": 1, "x": 2}'),
    ("BIGINT NOT NULL", "null"),
]

#: Whole values of the schema ``v BIGINT`` that are left to Spark's reader.
LEFT_WHOLE = [
    b"",
    b"{",
    b"null",
    b"[1]",
    b' {"v": 1}',
    b'{"v": 1} ',
    b'{"v": 1}{"v": 2}',
    b'{"v": 1}}',
    b'{"v": 1, "v": 1}',
    b'{"w": 1, "v": 1, "w": 1}',
    b'{"v": 1, "w": "\\u00e9"}',
    b'{"v": 1, "w": 01}',
    b"{'v': 1}",
    b"{v: 1}",
    b'{"v": 01}',
    b'{"v": +1}',
    b'{"v": 1,}',
    b'{"v": 1 /* one */}',
    b'{"v": 1, "\xff": 2}',
    '{"v": 1}'.encode("utf-16-le"),
    "{}".encode("utf-16-le"),
]

#: A schema with something of everything, for records that are made by chance.
WIDE = (
    "id BIGINT NOT NULL, name STRING, n INT, s SMALLINT, b TINYINT, x DOUBLE, f FLOAT, "
    "ok BOOLEAN, amount DECIMAL(12,3), day DATE, at TIMESTAMP, "
    "place STRUCT<city: STRING NOT NULL, lat: DOUBLE>, "
    "lines ARRAY<STRUCT<sku: STRING, price: DECIMAL(8,2)>>, tags MAP<STRING, INT>"
)

#: What a record that is made by chance may be changed by.
_SPLICED = [
    *(
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b" ",
        b"\n",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
    ),
    *(b"null", b"1e5", b"-", b".", b"0", b"9" * 19, b"true", b"NaN", b"'", b"\\u", b"\\ud83d"),
    *(b'"id":', b'"name":', b'"new":1,', b"/**/", b"2026-13-01", b"Z", "é".encode(), b"T24:00"),
]


@pytest.fixture
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


def is_read(spark: SparkSession, schema: str, *values: bytes) -> list[bool]:
    """Of each value whether it is read by our function."""
    wanted = parsed_schema(schema)
    column = native_read(F.col("value"), wanted, read_as(wanted))
    assert column is not None
    is_read = NativeResult(column).row.isNotNull().alias("is_read")
    frame = kafka_frame(spark, values).select("offset", is_read)
    return [row.is_read for row in sorted(frame.collect())]


def a_source(schema: str, **settings: Any) -> KafkaSource:
    settings = {"on_bad_record": "dead_letter", **settings}
    return KafkaSource(
        bootstrap_servers="nowhere:9092", topics=["t"], value_schema=schema, **settings
    )


def judged(decoded: Decoded) -> tuple[list[str], dict[int, str], list[Row]]:
    """The good records, the reasons against the bad ones by offset, and what was counted."""
    frame = decoded.all.persist()
    try:
        good = decoded.good(frame).collect()
        bad = {row.offset: row.error for row in decoded.dead_letters(1).collect()}
        # as text: a number that is none is equal to none
        shown = [repr(row) for row in sorted(good, key=lambda row: row._kafka.offset)]
        return shown, bad, counted(decoded)
    finally:
        frame.unpersist()


def counted(decoded: Decoded) -> list[Row]:
    return decoded.trimmed.agg(*decoded.metrics()).collect()


def test_ordinary_values_of_each_type_are_read(spark: SparkSession) -> None:
    assert has_native_json(spark)
    values = [f'{{"v": {value}}}'.encode() for _, value in READ]
    results = [is_read(spark, f"v {kind}", v)[0] for (kind, _), v in zip(READ, values, strict=True)]
    assert [case for case, done in zip(READ, results, strict=True) if not done] == []


def test_what_is_not_sure_is_left_to_sparks_reader(spark: SparkSession) -> None:
    values = [f'{{"v": {value}}}'.encode() for _, value in LEFT]
    results = [is_read(spark, f"v {kind}", v)[0] for (kind, _), v in zip(LEFT, values, strict=True)]
    assert [case for case, done in zip(LEFT, results, strict=True) if done] == []
    whole = is_read(spark, "v BIGINT", *LEFT_WHOLE)
    assert [case for case, done in zip(LEFT_WHOLE, whole, strict=True) if done] == []


def test_a_text_that_was_cut_is_not_parsed(spark: SparkSession) -> None:
    """An exception of a parser for each bad record would take longer than all the rest."""
    decoder = JsonDecoder(a_source("id BIGINT"), None)
    frame = decoder.decoded(kafka_frame(spark, [b'{"id": 1}', b'{"id": 1', b'"id": 1}', b" {} "]))
    given = [row[WORKING[1]] for row in frame.sort("offset").collect()]
    assert [text is not None for text in given] == [True, False, False, True]


def test_reading_and_judging_are_one_step_of_sparks_plan(spark: SparkSession) -> None:
    """from_json in the plan is three: Spark generates no code for a step that has it."""
    frame = kafka_frame(spark, [b"{}"]).coalesce(1)  # else the optimizer reads it by itself
    plans = [
        spark.sql("EXPLAIN SELECT * FROM {rows}", rows=decoded.trimmed).collect()[0][0]
        for has in (True, False)
        for decoded in [decode(frame, a_source("v BIGINT"), native=has)]
    ]
    assert ["from_json(" in plan for plan in plans] == [False, True]
    assert ["OrdinaryJson" in plan for plan in plans] == [True, False]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "schema",
    ["v CHAR(3)", "v BINARY", "v STRING COLLATE UTF8_LCASE", "v TIMESTAMP_NTZ", "v VARIANT"],
)
def test_there_is_no_function_for_other_types(schema: str) -> None:
    wanted = parsed_schema(schema)
    assert native_read(F.col("value"), wanted, wanted) is None


def test_fields_that_the_schema_does_not_name_are_passed_over_and_told(spark: SparkSession) -> None:
    values = [b'{"new": {"a": [1, "}"]}, "v": 1, "\xc3\xa9": null}', b'{"v": 1}', b'{"a": 1}']
    assert is_read(spark, "v BIGINT", *values) == [True, True, True]
    frame = kafka_frame(spark, values)
    for policy in ("ignore", "fail"):
        source = a_source("v BIGINT", unknown_fields=policy)
        with_it, without = (judged(decode(frame, source, native=has)) for has in (True, False))
        assert with_it == without
        assert sorted(with_it[1]) == ([0, 2] if policy == "fail" else [])
    row = counted(decode(frame, a_source("v BIGINT"), native=True))[0]
    assert (row.unknown, json.loads(row.unknown_last)) == (2, ["new", "é"])


def test_names_of_fields_may_hold_anything(spark: SparkSession) -> None:
    schema = '`a``b` BIGINT, `c"d.e` STRING, `fé\\n` INT'
    value = json.dumps({"a`b": 1, 'c"d.e': "x", "fé\\n": 2}).encode()
    assert is_read(spark, schema, value) == [True]


def test_an_ordinary_record_whose_rows_the_sink_refuses_is_shown_as_it_is(
    spark: SparkSession,
) -> None:
    decoded = decode(kafka_frame(spark, [b'{"v": 1}']), a_source("v BIGINT"), native=True)
    refused = {"topic": "t", "partition": 0, "offset": 0, "error": "too large"}
    [row] = counted(decoded.marked([refused]))
    assert json.loads(row.first_bad) == {**refused, "value": '{"v": 1}'}


def test_both_ways_judge_the_same_of_each_case(spark: SparkSession) -> None:
    cases = sorted([*READ, *LEFT])
    for kind, same in groupby(cases, key=lambda case: case[0]):
        values = [f'{{"v": {value}}}'.encode() for _, value in same]
        frame, source = kafka_frame(spark, values), a_source(f"v {kind}")
        with_it, without = (judged(decode(frame, source, native=has)) for has in (True, False))
        assert with_it == without, kind


@pytest.mark.parametrize("seed", [1, 2])
def test_records_by_chance_are_judged_the_same_both_ways(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    values = [*LEFT_WHOLE, None, *records(chance, 1500)]
    policy = "ignore" if seed == 1 else "fail"
    source = a_source(WIDE, tombstones="skip" if seed == 1 else "bad", unknown_fields=policy)
    frame = kafka_frame(spark, values).persist()
    with_it, without = (judged(decode(frame, source, native=has)) for has in (True, False))
    assert with_it[1] == without[1]
    assert with_it[0] == without[0]
    assert with_it[2] == without[2]
    read = is_read(spark, WIDE, *(value for value in values if value is not None))
    assert len(values) / 4 < sum(read) < len(values)


def records(chance: random.Random, many: int) -> Iterator[bytes]:
    """Most of them as they are, and some with something spliced in or cut out."""
    for n in range(many):
        value = json.dumps(a_record(chance, n), ensure_ascii=chance.random() < 0.5).encode()
        for _ in range(chance.choice([0, 0, 0, 1, 2])):
            at = chance.randrange(len(value))
            cut = chance.choice([0, 0, 1, 2, 5])
            value = value[:at] + chance.choice([b"", *_SPLICED]) + value[at + cut :]
        yield value


#: Of each field but one what is usual, and what is not.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "name": (["", "é\U0001f600", 'quoted "x"', "back\\slash", "{}", "\u0000", None], [5, True]),
    "n": ([0, -7, 2**31 - 1], [2**31, 1.5, "1"]),
    "s": ([0, 300, -32768], [40_000]),
    "b": ([0, 127, -128], [128]),
    "x": ([0, 0.1, -1e-300, 1e300, 12345678901234567890], ["NaN", 10**400]),
    "f": ([0.5, 16777217, 1e39, -1e-46], ["Infinity"]),
    "ok": ([True, False, None], ["true", 1]),
    "amount": ([0, 1.5, 12.345, -999999999.999], [1.0001, 1e12, "1.5"]),
    "day": (["2024-02-29", "1999-12-31"], ["2023-02-29", "0001-01-01", "2024-1-1", 19_000]),
    "at": (
        ["2026-01-31T08:30:00Z", "2026-01-31T08:30:00.25Z"],
        ["2026-01-31 08:30", "2026-01-31T08:30:00+02:00", 1_700_000_000, 10**15],
    ),
    "place": ([None, {"city": "x", "lat": 1}], [{"city": None}, {"lat": 1.5}, {"new": 1}]),
    "lines": ([None, [], [{"sku": "a", "price": 1.25}, None]], [[{"price": 1.255}], {}]),
    "tags": ([None, {}, {"a": 1, "b": None}], [{"a": "1"}, [1]]),
}


def a_record(chance: random.Random, n: int) -> dict[str, Any]:
    record: dict[str, Any] = {"id": n}
    for name, (usual, unusual) in VALUES.items():
        if chance.random() < 0.02:
            record[f"new {name}"] = chance.choice([1, "x", [{"a": 1}], None, {"id": 1}])
        if chance.random() < 0.8:
            record[name] = chance.choice(unusual if chance.random() < 0.04 else usual)
    return record


def test_texts_are_looked_at_as_by_spark(spark_server: EmbeddedSpark) -> None:
    good = [b"", b"a", b"eight so", b"nine  so ", "é".encode(), "ninth é \U0001f600".encode(), None]
    bad = [b"\xff", b"eight so\xff", b"nine so \xc3", b"\xc0\x80", b"\xed\xa0\x80", b"abc\x80defgh"]
    spark = SparkSettings(remote=spark_server.remote).session()
    frame = spark.createDataFrame([(text,) for text in good + bad], "bytes BINARY")
    text = F.expr("CAST(bytes AS STRING)")
    said = frame.select(F.call_function(IS_UTF8, text), F.is_valid_utf8(text)).collect()
    assert [row[0] for row in said] == [True] * len(good) + [False] * len(bad)
    assert [row[0] for row in said] == [row[1] is not False for row in said]

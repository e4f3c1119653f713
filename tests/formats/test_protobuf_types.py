"""What Protobuf becomes: the table in docs/formats.md, row by row, against Google's own decoder."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eo_pipeline.batch.decode import Decoded, decode
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, SetupError
from eo_pipeline.formats.protobuf import Protobuf
from eo_pipeline.formats.wire_format import ReadSchemas, WriterSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.spark import SparkSettings, job_error
from tests.batch.frames import kafka_frame
from tests.support.registry import messages

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
SECTION = PAGE.partition("## What each Protobuf type becomes")[2].partition("\n## ")[0]
TABLE = dict(re.findall(r"(?m)^\| `(.*? = \d+;(?: \})?)` \| `(.+?)` \|", SECTION))

#: Of each row two values as a producer sets them, None where it does not, and as Spark has them.
VALUES: list[list[tuple[Any, Any]]] = [
    [(True, True), (None, False)],
    [(-(2**31), -(2**31)), (None, 0)],
    [(2**32 - 1, 2**32 - 1), (None, 0)],
    [(-(2**63), -(2**63)), (None, 0)],
    [(2**64 - 1, Decimal(2**64 - 1)), (None, Decimal(0))],
    [(0.5, 0.5), (None, 0.0)],
    [(-1e300, -1e300), (None, 0.0)],
    [("naïve \U0001f600", "naïve \U0001f600"), (None, "")],
    [(b"\x00\xff", b"\x00\xff"), (None, b"")],
    [(1, "LARGE"), (42, "42")],
    [(0, 0), (None, None)],
    [({"lat": 0.5}, {"lat": 0.5}), (None, None)],
    [([1, 2], [1, 2]), (None, [])],
    [([{"lat": 1.5}, {}], [{"lat": 1.5}, {"lat": 0.0}]), (None, [])],
    [({"a": 1}, [("a", 1)]), (None, [])],
    [("", ""), (None, None)],
    [
        ({"seconds": -1, "nanos": 999999999}, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        (None, None),
    ],
    [({"seconds": -1, "nanos": -1999}, -1000001), (None, None)],
    [({"value": "x"}, "x"), ({}, "")],
    [({"value": 2**64 - 1}, Decimal(2**64 - 1)), (None, None)],
    [({"type_url": "t", "value": b"x"}, {"type_url": "t", "value": b"x"}), (None, None)],
    [({"year": 2026}, {"year": 2026, "month": 0, "day": 0}), (None, None)],
]

_FILES = (
    "protobuf/timestamp",
    "protobuf/duration",
    "protobuf/wrappers",
    "protobuf/any",
    "type/date",
)
IMPORTS = "".join(f'import "google/{name}.proto"; ' for name in _FILES)
BESIDE = "enum Size { SMALL = 0; LARGE = 1; } message Place { double lat = 1; }"


def proto(fields: str, more: str = "") -> str:
    return f'syntax = "proto3"; package shop; {IMPORTS} {BESIDE} message Row {{ {fields} }} {more}'


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


def decoded(
    spark: SparkSession,
    schema: str,
    values: Sequence[bytes | None],
    schemas: WriterSchemas | None,
    **settings: Any,
) -> Decoded:
    source = KafkaSource(
        bootstrap_servers="h:1",
        topics=("t",),
        value_format="protobuf",
        value_schema=schema,
        message="Row",
        **settings,
    )
    return decode(kafka_frame(spark, values), source, ReadSchemas(schemas))


def good_rows(both: Decoded) -> list[dict[str, Any]]:
    frame = both.good(both.all).orderBy("_kafka.offset").drop("_kafka")
    return list(frame.toArrow().to_pylist())


def bad_records(both: Decoded) -> dict[int, str]:
    letters = both.dead_letters(1).toArrow().to_pylist()
    return {letter["offset"]: letter["error"] for letter in letters}


def as_google_has_it(message: Any) -> dict[str, Any]:
    """The fields of a message, by the remarks of the page."""
    return {field.name: _held(message, field) for field in message.DESCRIPTOR.fields}


def _held(message: Any, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return list(value.items())
    return [_one(field, item) for item in value] if field.is_repeated else _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return str(value) if symbol is None else symbol.name
    if field.message_type is None:
        return Decimal(value) if field.type == field.TYPE_UINT64 else value
    name = field.message_type.full_name
    if name == "google.protobuf.Timestamp":
        return value.ToDatetime(UTC)
    if name == "google.protobuf.Duration":
        return value.ToMicroseconds()
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        return _one(field.message_type.fields_by_name["value"], value.value)
    return as_google_has_it(value)


@pytest.mark.core
def test_every_row_of_the_page_is_what_google_reads(spark: SparkSession) -> None:
    assert len(TABLE) == len(VALUES)
    fields = [
        re.sub(r"\bf = 1;", f"f{i} = {i + 1};", row).replace("g = 2;", f"g{i} = {i + 101};")
        for i, row in enumerate(TABLE)
    ]
    schema = proto(" ".join(fields))
    make = messages(schema)("shop.Row")
    both = [{f"f{i}": row[n][0] for i, row in enumerate(VALUES)} for n in (0, 1)]
    written = [make(**values).SerializeToString() for values in both]
    result = decoded(spark, schema, written, None)
    columns = result.good(result.all).schema
    types = {field.name: field.dataType.simpleString() for field in columns}
    assert [types[f"f{i}"] for i in range(len(TABLE))] == list(TABLE.values())
    for n, read in enumerate(good_rows(result)):
        assert [read[f"f{i}"] for i in range(len(VALUES))] == [row[n][1] for row in VALUES]
        other = make.FromString(written[n])
        assert as_google_has_it(other) == read


def test_what_google_refuses_is_bad_and_what_it_takes_is_what_it_takes(spark: SparkSession) -> None:
    schema = proto(
        "oneof one { string a = 1; int32 b = 2; } map<string, int32> m = 3; Place p = 4; "
        "google.protobuf.Timestamp at = 5; repeated int32 many = 6;"
    )
    row = messages(schema)("shop.Row")

    def written(**values: Any) -> bytes:
        return bytes(row(**values).SerializeToString())

    values = [
        None,
        b"",
        written(a="abc")[:-1],
        b"\x0a\x02\xff\xfe",  # no UTF-8
        b"\x00\x01",  # field 0
        written(at={"seconds": 2**62}),
        written(a="x") + written(b=5),
        written(m={"k": 1}) + written(m={"k": 2}),
        written(p={"lat": 1}) + b"\x22\x00",
        b"\x30\x01\x30\x02" + b"\x32\x01\x03",
        b"\x78\x01" + b"\x22\x02\x10\x01",  # field 15, and field 2 of the place
    ]
    both = decoded(spark, schema, values, None)
    reason = "is a time outside the years 1 to 9999, or a duration of more than 10,000 years"
    assert bad_records(both) == {
        0: "the value is null (a tombstone)",
        **dict.fromkeys((2, 3, 4), "the value is cut off, or is no message shop.Row"),
        5: f"field 'at' {reason}",
    }
    empty: dict[str, Any] = {"a": None, "b": None, "m": [], "p": None, "at": None, "many": []}
    assert good_rows(both) == [
        empty,
        {**empty, "b": 5},
        {**empty, "m": [("k", 2)]},
        {**empty, "p": {"lat": 1.0}},
        {**empty, "many": [1, 2, 3]},
        {**empty, "p": {"lat": 0.0}},
    ]
    seen = both.trimmed.agg(*both.metrics()).toArrow().to_pylist()[0]
    assert (seen["good"], seen["bad"], seen["unknown"]) == (6, 5, 1)
    strict = decoded(spark, schema, values, None, unknown_fields="fail")
    assert bad_records(strict)[10] == "it has fields that the schema does not name: #15, p.#2"


def test_workers_without_the_packages_are_told_with_the_remedy(spark: SparkSession) -> None:
    def lacking(batches: Any) -> Any:
        raise ModuleNotFoundError("No module named 'ptars'")

    with pytest.raises(PySparkException) as failed:
        spark.range(1).mapInArrow(lacking, "id bigint").collect()
    error = job_error(spark, failed.value, "the job")
    assert isinstance(error, SetupError)
    assert "Install pyarrow, ptars and protobuf into the Python that PYSPARK_PYTHON" in str(error)


OLD = proto("int32 id = 1; string name = 2; Place p = 3; int64 gone = 4; int64 other = 5;")
NEW = proto("int64 id = 1; string title = 2; Place p = 3; bool new = 6; string other = 5;").replace(
    "double lat = 1;", "int32 floor = 2;"
)
KIND = Protobuf("Row")


def test_what_two_versions_differ_in_is_told_by_numbers() -> None:
    old, new = (KIND.self_contained(text, {}) for text in (OLD, NEW))
    assert KIND.left_out(old, new) == ["gone", "p.lat"]
    assert KIND.left_out(new, old) == ["new", "p.floor"]
    assert KIND.clash(old, new) == "field other, number 5, is int64 in it, not string"
    assert "field id, number 1, is int64 in it, not int32" in str(KIND.clash(new, old))
    assert KIND.clash(old, old) is None


def test_each_writer_is_read_by_the_latest_message_or_not_at_all(spark: SparkSession) -> None:
    compatible = OLD.replace("int64 other = 5;", "")
    texts = {"1": OLD, "2": NEW, "3": compatible, "4": 'syntax = "proto3"; message Else {}'}
    held = {key: KIND.self_contained(text, {}) for key, text in texts.items()}
    schemas = WriterSchemas("2", ("2", "1", "3", "4"), held, (), "PROTOBUF", "Row")
    place = {"lat": 1.0}

    def written(key: str, **values: Any) -> bytes:
        message = messages(texts[key])("shop.Row")(**values).SerializeToString()
        return struct.pack(">bI", 0, int(key)) + b"\x02\x02" + bytes(message)

    values = [
        written("1", id=1),
        written("2", id=2**40, title="two", p={"floor": 2}, new=True, other="o"),
        written("3", id=3, name="three", p=place, gone=9),
        struct.pack(">bI", 0, 4) + b"\x00",
    ]
    both = decoded(spark, NEW, values, schemas)
    assert good_rows(both) == [
        {"id": 2**40, "title": "two", "p": {"floor": 2}, "new": True, "other": "o"},
        {"id": 3, "title": "three", "p": {"floor": 0}, "new": False, "other": ""},
    ]
    errors = bad_records(both)
    assert "schema 1 cannot be read as schema 2: field other, number 5" in errors[0]
    assert "is not the message shop.Row, but another one of schema 4" in errors[3]
    seen = both.trimmed.agg(*both.metrics()).toArrow().to_pylist()[0]
    assert seen["unknown"] == 1
    assert seen["unknown_first"] == '["gone","p.lat"]'


@pytest.mark.parametrize(
    ("fields", "more", "expected"),
    [
        ("int32 a = 1;", "", None),
        ("nonsense", "", "cannot be compiled: schema.proto:1:"),
        ("", "", "has the message shop.Row without fields"),
        ("Row next = 1;", "", "a field next that refers to the message shop.Row that it is in"),
        ("N n = 1;", "message N { repeated N more = 1; }", "a field n.more that refers to"),
        ("google.protobuf.Struct s = 1;", "", "that refers to the message google.protobuf.Struct"),
        ("Empty e = 1;", "message Empty {}", "a field e that is a message without fields"),
        ("string _kafka = 1;", "", "has a field _kafka, a name that is taken"),
        ("string a = 1; string A = 2;", "", "a field A that differs from a only in case"),
    ],
)
def test_what_cannot_become_columns_is_said(fields: str, more: str, expected: str | None) -> None:
    text = proto(fields, more).replace("message Place", "/**/ message Place")
    text = text.replace("package shop;", 'package shop; import "google/protobuf/struct.proto";')
    fault = KIND.fault_of(KIND.self_contained(text, {}))
    assert fault is None if expected is None else expected in str(fault)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"message": "Other"}, "a .proto file, has no message Other"),
        ({"value_schema": "message {"}, "a .proto file, cannot be compiled"),
        ({"value_format": "json", "value_schema": "a INT"}, "message belongs to value_format"),
    ],
)
def test_a_source_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    source = {"value_format": "protobuf", "value_schema": proto("int32 a = 1;"), "message": "Row"}
    with pytest.raises(ConfigError, match=message):
        KafkaSource(bootstrap_servers="h:1", topics=("t",), **{**source, **changes})


def test_a_schema_whose_imports_are_not_there_is_refused() -> None:
    text = 'syntax = "proto3"; import "../secret.proto"; message Row { int32 a = 1; }'
    assert "cannot be compiled" in str(KIND.fault_of(KIND.self_contained(text, {})))
    outside = KIND.self_contained(text, {"../secret.proto": 'syntax = "proto3";'})
    assert "no path below its own folder" in str(KIND.fault_of(outside))

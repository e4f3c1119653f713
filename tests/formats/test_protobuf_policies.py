"""Each kind of change of a Protobuf schema under each policy: as data, and through to the table."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pydantic import ValidationError
from pyspark.sql import SparkSession

from eo_pipeline.batch.decode import Decoded, decode
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.formats.protobuf import Protobuf
from eo_pipeline.formats.schema_diff import ChangeKind, Policy, changes
from eo_pipeline.formats.wire_format import ReadSchemas, WriterSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.schemas import made_key
from eo_pipeline.spark import SparkSettings
from tests.batch.frames import kafka_frame
from tests.formats.test_protobuf_types import bad_records, good_rows
from tests.formats.test_schema_changes import SETTING
from tests.support.engine import Bench, Topic
from tests.support.registry import ProtobufTopic, behind_registry, messages

KIND = Protobuf("Row")


def proto(fields: str, more: str = "") -> str:
    return f'syntax = "proto3"; package shop; message Row {{ int64 id = 1; {fields} }} {more}'


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


#: Of the two records, as the columns and what is rescued, or the reason why one is bad.
Told = dict[str, Any] | str

#: Of each kind: the fields before and now, a record of either, and what they become by policy.
CELLS: dict[ChangeKind, tuple[str, str, dict[str, Any], dict[str, Any], dict[Policy, list[Told]]]]
CELLS = {
    ChangeKind.NEW_FIELD: (
        proto("string a = 2;"),
        proto("string a = 2; int32 x = 3;"),
        {"a": "old"},
        {"a": "new", "x": 7},
        {
            Policy.EVOLVE: [{"a": "old", "x": 0}, {"a": "new", "x": 7}],
            Policy.RESCUE: [{"a": "old", "rest": None}, {"a": "new", "rest": {"x": 7}}],
            Policy.QUARANTINE: [{"a": "old"}, "quarantined, for what it has or lacks: x"],
        },
    ),
    ChangeKind.DROPPED_FIELD: (
        proto("string a = 2; int32 x = 3;"),
        proto("string a = 2;"),
        {"a": "old", "x": 7},
        {"a": "new"},
        {
            Policy.EVOLVE: [{"a": "old"}, {"a": "new"}],
            Policy.QUARANTINE: [{"a": "old", "x": 7}, "for what it has or lacks: x"],
        },
    ),
    ChangeKind.WIDENED_TYPE: (
        proto("int32 x = 2;"),
        proto("int64 x = 2;"),
        {"x": 7},
        {"x": 2**40},
        {
            Policy.EVOLVE: [{"x": 7}, {"x": 2**40}],
            Policy.RESCUE: [{"x": 7, "rest": None}, {"x": None, "rest": {"x": 2**40}}],
            Policy.QUARANTINE: [{"x": 7}, "widened type: x from int to bigint"],
        },
    ),
    ChangeKind.CHANGED_TYPE: (
        proto("int32 x = 2;"),
        proto("string x = 2;"),
        {"x": 7},
        {"x": "A7"},
        {
            Policy.EVOLVE: ["field x, number 2, is int32 in it, not string", {"x": "A7"}],
            Policy.RESCUE: [{"x": 7, "rest": None}, {"x": None, "rest": {"x": "A7"}}],
            Policy.QUARANTINE: [{"x": 7}, "changed type: x from int to string"],
        },
    ),
    ChangeKind.NEW_NESTED_FIELD: (
        proto("P p = 2;", "message P { int32 lat = 1; }"),
        proto("P p = 2;", "message P { int32 lat = 1; int32 lon = 2; }"),
        {"p": {"lat": 1}},
        {"p": {"lat": 2, "lon": 3}},
        {
            Policy.EVOLVE: [{"p": {"lat": 1, "lon": 0}}, {"p": {"lat": 2, "lon": 3}}],
            Policy.RESCUE: [
                {"p": {"lat": 1}, "rest": None},
                {"p": {"lat": 2}, "rest": {"p": {"lat": 2, "lon": 3}}},
            ],
            Policy.QUARANTINE: [{"p": {"lat": 1}}, "for what it has or lacks: p.lon"],
        },
    ),
    ChangeKind.NEW_ENUM_VALUE: (
        proto("Size x = 2;", "enum Size { S = 0; M = 1; }"),
        proto("Size x = 2;", "enum Size { S = 0; M = 1; L = 2; }"),
        {"x": 1},
        {"x": 2},
        {
            Policy.EVOLVE: [{"x": "M"}, {"x": "L"}],
            Policy.RESCUE: [{"x": "M", "rest": None}, {"x": None, "rest": {"x": "L"}}],
            Policy.QUARANTINE: [{"x": "M"}, "has a new value of an enum within x, which is qua"],
        },
    ),
}


def read_by_policy(
    spark: SparkSession, texts: dict[str, str], policy: dict[str, str], *values: bytes
) -> Decoded:
    """``values`` of the schemas 1 and 2, 2 being the registry's latest since 1 was read."""
    held = {key: KIND.self_contained(text, {}) for key, text in texts.items()}
    setting = SETTING.validate_python(policy)
    decided = setting.decide(changes(KIND.shape_of(held["1"]), KIND.shape_of(held["2"])))
    evolved = KIND.evolve_except(held["1"], held["2"], decided.unchanged)
    reader = made_key("2", evolved) if decided.unchanged else "2"
    schemas = WriterSchemas(
        *(reader, ("1", "2"), {reader: evolved, **held}, (), "PROTOBUF", "Row"),
        quarantined=decided.quarantined,
    )
    source = KafkaSource.model_validate(
        {
            "bootstrap_servers": "h:1",
            "topics": ["t"],
            "value_format": "protobuf",
            "message": "Row",
            "registry": {"url": "http://h:2"},
            "schema_changes": policy,
        }
    )
    return decode(kafka_frame(spark, values), source, ReadSchemas(schemas))


def written(texts: dict[str, str], key: str, **values: Any) -> bytes:
    kind = Protobuf("Row")
    indexes = kind.indexes(kind.self_contained(texts[key], {}))
    assert indexes == (0,)
    body = messages(texts[key])("shop.Row")(**values).SerializeToString()
    return struct.pack(">bI", 0, int(key)) + b"\x00" + bytes(body)


@pytest.mark.core(only=["new_nested_field-rescue"])
@pytest.mark.parametrize(
    ("kind", "policy"),
    [(kind, policy) for kind, cell in CELLS.items() for policy in cell[-1]],
    ids=str,
)
def test_each_kind_of_change_goes_by_its_policy(
    spark: SparkSession, kind: ChangeKind, policy: Policy
) -> None:
    before, now, old, new, outcomes = CELLS[kind]
    texts = {"1": before, "2": now}
    values = [written(texts, "1", id=1, **old), written(texts, "2", id=2, **new)]
    both = read_by_policy(spark, texts, {kind.value: policy.value}, *values)
    rows: dict[int, Any] = {}
    for row in good_rows(both):
        row = dict(row)
        if "_unknown_fields" in row:
            rest = row.pop("_unknown_fields")
            row["rest"] = None if rest is None else json.loads(rest)
        rows[row.pop("id") - 1] = row
    bad = bad_records(both)
    for n, expected in enumerate(outcomes[policy]):
        if isinstance(expected, str):
            assert expected in bad[n]
        else:
            assert rows[n] == expected
    assert len(rows) + len(bad) == len(values)


@pytest.mark.parametrize("kind", ChangeKind)
def test_what_is_frozen_is_named_and_what_is_gone_cannot_be_rescued(kind: ChangeKind) -> None:
    before, now, *_ = CELLS[kind]
    was, became = (KIND.shape_of(KIND.self_contained(text, {})) for text in (before, now))
    decided = SETTING.validate_python({kind.value: "freeze"}).decide(changes(was, became))
    assert [change.change.kind for change in decided.frozen] == [kind]
    if kind is ChangeKind.DROPPED_FIELD:
        with pytest.raises(ValidationError, match="dropped_field"):
            SETTING.validate_python({kind.value: "rescue"})


def test_of_one_change_within_many_each_value_goes_where_it_fits(spark: SparkSession) -> None:
    """Fields that are not set, of many values, in others; and two forms of one message."""
    texts = {
        "1": proto(
            "int32 x = 2; P p = 3; P q = 4; repeated int32 many = 5; optional uint32 u = 6; "
            "repeated Size sizes = 7; map<string, int32> m = 8; float f = 9;",
            "message P { int32 lat = 1; } enum Size { S = 0; }",
        ),
        "2": proto(
            "int64 x = 2; P p = 3; P q = 4; repeated int64 many = 5; optional uint64 u = 6; "
            "repeated Size sizes = 7; map<string, int64> m = 8; double f = 9; repeated P new = 10;",
            "message P { int64 lat = 1; } enum Size { S = 0; L = 1; }",
        ),
    }
    place = {"lat": 2**40}
    values = [
        written(texts, "2", id=1, x=5, u=2**31, f=0.5),
        written(texts, "2", id=2, p=place, many=[2**40], sizes=[1], m={"k": 1}, u=2**63, f=0.1),
        written(texts, "2", id=3, new=[place, {}], q={"lat": 1}),
        written(texts, "1", id=4, x=4, p={"lat": 4}, many=[4], sizes=[0], m={"k": 4}, f=0.5),
        written(texts, "2", id=5)[:-1],
    ]
    both = read_by_policy(spark, texts, dict.fromkeys(_RESCUED, "rescue"), *values)
    assert bad_records(both) == {4: "the value is cut off, or is no message shop.Row"}
    rows = good_rows(both)
    rest = [json.loads(row.pop("_unknown_fields") or "null") for row in rows]
    nothing = {"x": 0, "p": None, "q": None, "u": None, "f": 0.0}
    nothing |= dict.fromkeys(("many", "sizes", "m"))
    assert [{name: row[name] for name in nothing} for row in rows] == [
        {**nothing, "x": 5, "u": 2**31, "f": 0.5},
        {**nothing, "f": None},
        nothing,
        {
            "x": 4,
            "p": {"lat": 4},
            "q": None,
            "u": None,
            "f": 0.5,
            "many": [4],
            "sizes": ["S"],
            "m": [("k", 4)],
        },
    ]
    assert rest == [
        None,
        {"p": place, "many": [2**40], "sizes": ["L"], "m": {"k": 1}, "u": 2**63, "f": 0.1},
        {"new": [place, {"lat": 0}], "q": {"lat": 1}},
        None,
    ]
    seen = both.trimmed.agg(*both.metrics()).toArrow().to_pylist()[0]
    assert (seen["good"], seen["unknown"], seen["unknown_first"]) == (4, 2, '["new","q"]')


_RESCUED = (*("new_field", "widened_type", "changed_type", "new_nested_field", "new_enum_value"),)


def test_a_column_that_follows_reads_what_its_older_forms_wrote(spark: SparkSession) -> None:
    """Other bytes for the same values, or for values that all are ones of the wider type."""
    texts = {
        "1": proto("int32 a = 2; float b = 3; int32 c = 4; optional int32 d = 5; Size e = 6;"),
        "2": proto("sint32 a = 2; double b = 3; double c = 4; optional int64 d = 5; Size e = 6;"),
    }
    texts = {key: f"{text} enum Size {{ S = 0; }}" for key, text in texts.items()}
    values = [
        written(texts, "1", id=1, a=-5, b=0.5, c=7, d=2**31 - 1),
        written(texts, "1", id=2),
        written(texts, "2", id=3, a=-5, b=0.1, c=0.25, d=2**40),
    ]
    both = read_by_policy(spark, texts, {}, *values)
    assert bad_records(both) == {}
    assert good_rows(both) == [
        {"id": 1, "a": -5, "b": 0.5, "c": 7.0, "d": 2**31 - 1, "e": "S"},
        {"id": 2, "a": 0, "b": 0.0, "c": 0.0, "d": None, "e": "S"},
        {"id": 3, "a": -5, "b": 0.1, "c": 0.25, "d": 2**40, "e": "S"},
    ]


def test_a_number_that_two_columns_need_is_told() -> None:
    before, now = (
        KIND.self_contained(proto(fields), {}) for fields in ("string a = 2;", "int32 b = 2;")
    )
    with pytest.raises(ValueError, match="the number 2 of a and b"):
        KIND.evolve_except(before, now, {"a"})


BEFORE = proto("int32 q = 2; Size size = 3; P at = 4;", "message P { int32 lat = 1; }")
BEFORE += " enum Size { S = 0; M = 1; }"
NOW = proto("int64 q = 2; Size size = 3; P at = 4; string colour = 5;")
NOW += " message P { int32 lat = 1; int32 lon = 2; } enum Size { S = 0; M = 1; L = 2; }"
OLD = {"id": 1, "q": 1, "size": 1, "at": {"lat": 1}}
NEW = {"id": 2, "q": 2**40, "size": 2, "at": {"lat": 2, "lon": 3}, "colour": "red"}


def test_policies_go_through_to_the_table_and_back_without_the_registry(
    bench: Bench, events: Topic, registry: EmbeddedRegistry
) -> None:
    orders = ProtobufTopic(events, SchemaRegistryClient({"url": registry.url}))
    first, second = (messages(text)("shop.Row") for text in (BEFORE, NOW))
    behind = behind_registry(bench, registry, "protobuf")
    columns = "id, q, size, at::json, _unknown_fields::json"

    def pipeline(policy: Any) -> Any:
        source = {"schema_changes": policy, "message": "Row", "on_bad_record": "dead_letter"}
        return behind.pipeline(source=source)

    orders.write(first, OLD)
    pipeline("rescue").run()
    orders.write(second, NEW)
    orders.write(first, {**OLD, "id": 3})
    with pytest.raises(SchemaChangeError, match="new field: colour"):
        pipeline("freeze").run()
    head = pipeline("rescue").run().head
    assert head.counts.unknown_fields == ("at.lon", "colour", "q", "size")
    rest = {"colour": "red", "at": {"lat": 2, "lon": 3}, "q": 2**40, "size": "L"}
    rows = [
        (1, 1, "M", {"lat": 1}, None),
        (2, None, None, {"lat": 2}, rest),
        (3, 1, "M", {"lat": 1}, None),
    ]
    read = f"select {columns} from events order by id"
    assert behind.table.query(read) == rows
    assert pipeline("rescue").audit().findings == ()
    orders.write(second, {**NEW, "id": 4})
    last = pipeline("quarantine").run().head
    (error,) = behind.table.query("select error from events_dead_letters")[0]
    for change in ("at.lon", "colour", "widened type: q"):
        assert change in error
    registry.kill()
    pipeline("rescue").replay(head.version)
    assert behind.table.query(read) == rows
    assert last.counts.schemas is not None
    assert "~" in last.counts.schemas.reader

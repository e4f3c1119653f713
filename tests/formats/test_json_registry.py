"""JSON whose schemas a registry has, written by confluent-kafka, to PostgreSQL and back; and what
each type of a JSON Schema becomes: the table in docs/formats.md, row by row, against json.
"""

from __future__ import annotations

import json
import re
import struct
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from pyspark.sql import SparkSession

from eo_pipeline.batch.decode import decode
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.formats.json_schema import JsonSchema
from eo_pipeline.formats.registry import Registry
from eo_pipeline.formats.wire_format import ReadSchemas, WriterSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.spark import SparkSettings
from eo_pipeline.testing.transforms import _KAFKA_COLUMNS
from tests.support.engine import Bench, Topic
from tests.support.registry import JsonTopic, behind_registry

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
SECTION = PAGE.partition("## What each type of a JSON Schema becomes")[2].partition("\n## ")[0]
TABLE = dict(re.findall(r"(?m)^\| `(\{.*?\})` \| `(.+?)` \|", SECTION))


def schema(**fields: Any) -> str:
    return json.dumps({"title": "Order", "type": "object", "properties": fields})


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
FIRST = schema(id=INTEGER, name=STRING)
SECOND = schema(id=INTEGER, name=STRING, place={"$ref": "#/$defs/place"})
SECOND = json.dumps(
    {**json.loads(SECOND), "$defs": {"place": {"type": "object", "properties": {"lat": STRING}}}}
)
THIRD = schema(id=INTEGER, tags={"type": "array", "items": STRING})


def test_policies_for_changes_of_the_schema(
    bench: Bench, events: Topic, registry: EmbeddedRegistry
) -> None:
    orders = JsonTopic(events, SchemaRegistryClient({"url": registry.url}))
    json_bench = behind_registry(bench, registry, "json")
    place = {"type": "object", "properties": {"lat": INTEGER}}
    nested = {"type": "object", "properties": {"lat": INTEGER, "lon": INTEGER}}
    orders.write(schema(id=INTEGER, at=place), {"id": 1, "at": {"lat": 1}})
    rescuing = {"new_field": "rescue", "new_nested_field": "quarantine"}
    changes = {"schema_changes": rescuing, "on_bad_record": "dead_letter"}
    json_bench.pipeline(source=changes).run()
    orders.write(schema(id=INTEGER, at=place, x=STRING), {"id": 2, "x": "!"})
    json_bench.pipeline(source=changes).run()
    orders.write(schema(id=INTEGER, at=nested), {"id": 3, "at": {"lat": 1, "lon": 2}})
    orders.write(schema(id=INTEGER, at=place), {"id": 4, "at": {"lat": 4}})
    json_bench.pipeline(source=changes).run()
    rows = json_bench.table.query("select id, at, _unknown_fields from events order by id")
    assert rows == [
        (1, {"lat": 1}, None),
        (2, None, '{"x":"!"}'),
        (4, {"lat": 4}, None),
    ]
    (error,) = json_bench.table.query("select error from events_dead_letters")[0]
    assert "at.lon" in error
    orders.write(schema(id=STRING, at=place), {"id": "5"})
    changed = {**changes, "schema_changes": {**rescuing, "changed_type": "freeze"}}
    with pytest.raises(SchemaChangeError, match="changed type: id from bigint to string"):
        json_bench.pipeline(source=changed).run()
    pipeline = json_bench.pipeline(source={**changes, "schema_changes": "rescue"})
    head = pipeline.run().head
    last = "select id, _unknown_fields from events order by _eo_offset desc limit 1"
    assert json_bench.table.query(last) == [(None, '{"id":"5"}')]
    registry.kill()
    pipeline.replay(head.version)
    assert json_bench.table.query(last) == [(None, '{"id":"5"}')]
    assert pipeline.audit().findings == ()


def test_a_json_schema_in_the_document_gives_the_columns_of_values_and_keys(
    bench: Bench, tmp_path: Path
) -> None:
    at = {"type": "object", "properties": {"lat": {"type": "number"}}}
    text = schema(id=INTEGER, name=STRING, at={"$ref": "#/$defs/at"})
    whole = json.dumps({**json.loads(text), "$defs": {"at": at}})
    file = tmp_path / "order.schema.json"
    file.write_text(whole)
    producer = bench.topic.producer()
    value = b'{"id": 1, "name": "one", "at": {"lat": 0.5}, "more": 1}'
    for n, (key, body) in enumerate([(b'"k"', value), (b"7", b'{"id": "x"}'), (b'"k" 1', b"{}")]):
        producer.produce(bench.topic.name, body, key, partition=0)
        assert producer.flush(120) == 0, n
    source = {
        "value_schema": {"file": str(file)},
        "key_format": "json",
        "key_schema": '{"type": "string"}',
        "on_bad_record": "dead_letter",
    }
    head = bench.pipeline(source=source).run().head
    assert bench.table.query("select id, name, at, key from events") == [
        (1, "one", {"lat": 0.5}, "k")
    ]
    assert head.counts.unknown_fields == ("more",)
    letters = bench.table.query("select error from events_dead_letters order by 1")
    assert [error for (error,) in letters] == [
        "field 'id' is no whole number, or is out of range for BIGINT",
        "the key does not fit the schema",
    ]
    assert bench.pipeline(source=source).audit().passed
    written = {**source, "value_schema": whole}
    again = bench.pipeline(source=written, name="other", sink={"table": "other"})
    again.run()
    assert bench.table.query("select id, name, at, key from other") == [
        (1, "one", {"lat": 0.5}, "k")
    ]


def test_three_evolving_schemas_land_and_are_read_again_without_the_registry(
    bench: Bench, events: Topic, registry: EmbeddedRegistry
) -> None:
    orders = JsonTopic(events, SchemaRegistryClient({"url": registry.url}))
    json_bench = behind_registry(bench, registry, "json")
    orders.write(FIRST, {"id": 1, "name": "one"}, {"id": 2})
    json_bench.pipeline().run()
    orders.write(SECOND, {"id": 3, "name": "three", "place": {"lat": "3"}})
    second = json_bench.pipeline().run().head
    assert second.counts.schemas is not None
    assert set(second.counts.schemas.types.values()) == {"JSON"}
    orders.write(THIRD, {"id": 4, "tags": ["a", "b"]})
    planned = json_bench.pipeline().plan_run().reader
    assert "(new: tags; no longer: name, place)" in str(planned)
    orders.write(FIRST, {"id": 5, "name": "five"})
    junk = [b'{"id": 6}', struct.pack(">bI", 0, 4711) + b"{}"]
    junk += [struct.pack(">bI", 0, orders.register(FIRST)) + b for b in (b"[1]", b'{"id": "x"}')]
    for value in junk:
        events.write_value(value)
    tolerant = {"on_bad_record": "dead_letter"}
    head = json_bench.pipeline(source=tolerant).run().head
    json_bench.table.assert_holds_once(events.written)
    assert (head.counts.unknown, head.counts.unknown_fields) == (1, ("name",))
    letters = json_bench.table.query("select value, error from events_dead_letters")
    errors = {bytes(value): error for value, error in letters}
    assert "does not begin with the number of a schema" in errors[junk[0]]
    assert "the registry has no JSON schema 4711" in errors[junk[1]]
    assert errors[junk[2]] == "the value is not a JSON object"
    assert errors[junk[3]] == "field 'id' is no whole number, or is out of range for BIGINT"
    everything = "select id, name, place::text, tags from events order by id"
    before = json_bench.table.query(everything)
    assert before == [
        (1, "one", None, None),
        (2, None, None, None),
        (3, "three", '{"lat": "3"}', None),
        (4, None, None, ["a", "b"]),
        (5, None, None, None),
    ]
    registry.kill()
    json_bench.pipeline(source=tolerant).replay(second.version, head.version)
    assert json_bench.table.query(everything) == before


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


#: Values of the rows' types, as JSON has them, and as Spark has them where that is not the same.
VALUES: list[tuple[str, Any, Any]] = [
    ("boolean", True, True),
    ("integer", -(2**63), -(2**63)),
    ("number", 0.1, 0.1),
    ("string", "naïve \U0001f600", "naïve \U0001f600"),
    ("date-time", "2026-02-03T04:05:06.789Z", datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)),
    ('"date"', "2026-02-03", date(2026, 2, 3)),
    ("enum", "S", "S"),
    ('"null"', None, None),
    ("oneOf", 7, 7),
    ('["integer", "number"]', 1, 1.0),
    ('["integer", "string"]', 5, "5"),
    ("items", [1, 2], [1, 2]),
    ("properties", {"lat": 0.5}, {"lat": 0.5}),
    ("additionalProperties", {"a": 1}, [("a", 1)]),
    ('{"type": "object"}', {"any": [1, {}]}, '{"any":[1,{}]}'),
    ("{}", [1, "x"], '[1,"x"]'),
]


@pytest.mark.core
def test_every_row_of_the_page_is_what_json_holds(spark: SparkSession) -> None:
    assert len(TABLE) == len(VALUES)
    rows = {f"f{i}": json.loads(row) for i, row in enumerate(TABLE)}
    for row, (name, _, _) in zip(TABLE, VALUES, strict=True):
        assert name in row
    values = {f"f{i}": value for i, (_, value, _) in enumerate(VALUES)}
    schemas = WriterSchemas("7", ("7",), {"7": schema(**rows)}, type="JSON")
    source = KafkaSource(
        bootstrap_servers="h:1",
        topics=("t",),
        value_format="json",
        registry=Registry(url="http://h"),
    )
    value = struct.pack(">bI", 0, 7) + json.dumps(values).encode()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    frame = spark.createDataFrame([(None, value, "t", 0, 0, now, 0, None)], _KAFKA_COLUMNS)
    both = decode(frame, source, ReadSchemas(schemas))
    assert both.dead_letters(1).toArrow().to_pylist() == []
    good = both.good(both.all).drop("_kafka")
    assert [f.dataType.simpleString() for f in good.schema] == list(TABLE.values())
    [read] = good.toArrow().to_pylist()
    assert list(read.values()) == [expected for _, _, expected in VALUES]


NODE = {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FIRST, None),
        ("nonsense", "is not JSON"),
        ('{"type": "string"}', "is not an object with properties"),
        ("{}", "is not an object with properties"),
        (
            json.dumps({**NODE, "definitions": {"node": NODE}}),
            "has a field next.next that refers to the schema that it is in",
        ),
        (schema(a={"$ref": "#/nowhere"}), "refers to #/nowhere, which it does not hold"),
        (schema(a={"$ref": "other.json"}), "refers to other.json, which the registry does not"),
        (schema(a=INTEGER, A=INTEGER), "has fields a and A that differ only in case"),
        (schema(_kafka=INTEGER), "has a field _kafka, a name that is taken"),
    ],
)
def test_what_cannot_become_columns_is_said(text: str, expected: str | None) -> None:
    fault = JsonSchema().fault_of(text)
    assert fault is None if expected is None else expected in str(fault)


def test_a_schema_in_another_document_is_found_by_its_name_or_its_id() -> None:
    place = json.dumps({"$id": "http://x/place.json", **json.loads(schema(lat=STRING, lon=STRING))})
    named = schema(id=INTEGER, at={"$ref": "place"})
    by_id = json.dumps(
        {"$id": "http://x/order", **json.loads(schema(at={"$ref": "place.json#/properties/lat"}))}
    )
    whole = JsonSchema().self_contained(named, {"place": place})
    assert JsonSchema().fault_of(whole) is None
    narrower = schema(id=INTEGER, at=json.loads(schema(lon={})))
    assert JsonSchema().left_out(whole, narrower) == ["at.lat"]
    assert JsonSchema().fault_of(JsonSchema().self_contained(by_id, {"whatever": place})) is None


def test_a_schema_of_the_registry_that_refers_to_another_is_whole(
    bench: Bench, events: Topic, registry: EmbeddedRegistry
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    client.register_schema("place", Schema(schema(lat=STRING), "JSON"))
    at = [SchemaReference("place.json", "place", 1)]
    text = schema(id=INTEGER, at={"$ref": "place.json"})
    number = client.register_schema(f"{events.name}-value", Schema(text, "JSON", at))
    producer = events.producer()
    value = struct.pack(">bI", 0, number) + b'{"id": 1, "at": {"lat": "1", "lon": "2"}}'
    events.send(producer, value, 0)
    assert producer.flush(120) == 0
    head = behind_registry(bench, registry, "json").pipeline().run().head
    assert bench.table.query("select id, at::text from events") == [(1, '{"lat": "1"}')]
    assert head.counts.unknown_fields == ("at.lon",)

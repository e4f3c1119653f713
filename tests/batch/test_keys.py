"""What becomes of keys, of topics that confluent-kafka writes."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.errors import BadRecordError, ConfigError, RegistryUnavailableError
from tests.support.engine import Bench
from tests.support.registry import QUICKLY, AvroTopic, record, serialized

PLACE = record(("city", "string"), ("zip", ["null", "int"], None), name="Place")


def send(bench: Bench, *keys: bytes | None) -> None:
    """A record for each key, whose number is its id."""
    producer = bench.topic.producer()
    for n, key in enumerate(keys):
        value = json.dumps({"id": n, "name": f"record {n}"}).encode()
        producer.produce(
            bench.topic.name, value, key, partition=0, on_delivery=bench.topic._delivered
        )
    assert producer.flush(120) == 0


def rows(bench: Bench, columns: str, order: str = "id") -> list[tuple[Any, ...]]:
    return bench.table.query(f'select {columns} from events order by "{order}"')


def errors(bench: Bench) -> dict[int, str]:
    letters = bench.table.query('select "offset", error from events_dead_letters')
    return dict(letters)


def test_a_key_that_is_text_becomes_a_column(bench: Bench) -> None:
    send(bench, b"N1", None, "Zürich".encode(), b"\xff")
    source = {"key_format": "text", "on_bad_record": "dead_letter"}
    bench.pipeline(source=source).run()
    assert rows(bench, "id, key, name") == [
        (0, "N1", "record 0"),
        (1, None, "record 1"),
        (2, "Zürich", "record 2"),
    ]
    assert errors(bench) == {3: "the key is not text in UTF-8"}
    bench.table.assert_holds_once({c for c in bench.topic.written if c[2] != 3})
    assert bench.pipeline(source=source).audit().passed


def test_the_fields_of_a_json_key_become_columns_with_a_prefix(bench: Bench) -> None:
    send(bench, b'{"id": 7, "more": 1}', None, b"7", b'{"more": 1}')
    source = {
        "key_format": "json",
        "key_schema": "id BIGINT NOT NULL, at DATE",
        "on_bad_record": "dead_letter",
    }
    head = bench.pipeline(source=source).run().head
    assert rows(bench, "id, key_id, key_at") == [(0, 7, None), (1, None, None)]
    assert errors(bench) == {
        2: "the key is not a JSON object",
        3: "the key: required field 'id' is missing or null",
    }
    assert (head.counts.unknown, head.counts.unknown_fields) == (1, ("key: more",))
    with pytest.raises(ConfigError, match=r"both have a column id\. .*\(source\.key_prefix\)"):
        bench.pipeline(
            source={**source, "key_prefix": ""}, name="other", sink={"table": "other"}
        ).run()


@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_an_avro_key_is_a_record_or_a_plain_value(bench: Bench, inline_records: int) -> None:
    send(bench, serialized(PLACE, {"city": "Ulm", "zip": 89073}), None, b"\x08U")
    source = {"key_format": "avro", "key_schema": PLACE}
    with pytest.raises(BadRecordError, match="the key is cut off, or is not of the schema"):
        bench.pipeline(source=source, inline_records=inline_records).run()
    source["on_bad_record"] = "dead_letter"
    bench.pipeline(source=source, inline_records=inline_records).run()
    assert rows(bench, "id, key_city, key_zip") == [(0, "Ulm", 89073), (1, None, None)]
    plain = {"topics": [bench.topic.name], "key_format": "avro", "key_schema": "long"}
    send(bench, b"\x0e")
    start = {"offsets": {bench.topic.name: {"0": 3}}, "or_else": "earliest"}
    other = bench.pipeline(name="plain", source={**plain, "start": start}, sink={"table": "plain"})
    other.run()
    assert bench.table.query("select key from plain") == [(7,)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"key_format": "json"}, "key_schema belongs to key_format json, avro and protobuf"),
        ({"key_schema": "id INT"}, "key_schema belongs to key_format json, avro and protobuf"),
        ({"key_format": "json", "key_schema": "{"}, "key_schema, a JSON Schema, is not JSON"),
        ({"key_format": "json", "key_schema": '{"type": "array"}'}, "is not an object with"),
        ({"value_schema": '{"type": "string"}'}, "value_schema, a JSON Schema, is not an object"),
        ({"key_format": "avro", "key_schema": "{"}, "key_schema, an Avro schema as JSON, is not"),
        ({"key_format": "protobuf"}, "key_schema belongs to key_format json, avro and protobuf"),
        ({"key_format": "protobuf", "key_schema": "{"}, "key_schema, a .proto file, cannot be"),
        ({"key_message": "Place"}, "key_message belongs to key_format protobuf"),
        ({"key_format": "thrift"}, "'raw', 'text', 'json', 'avro' or 'protobuf'"),
    ],
)
def test_what_a_document_cannot_ask_for(bench: Bench, source: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench.pipeline(source=source)


def write_avro(bench: Bench, url: str, schema: str, *keys: Any) -> None:
    """A record for each key, by confluent-kafka's serializer; the ids go on."""
    serialize = AvroSerializer(SchemaRegistryClient({"url": url}), schema)
    context = SerializationContext(bench.topic.name, MessageField.KEY)
    send(bench, *(serialize(key, context) for key in keys))


def test_keys_behind_a_registry_are_read_as_then_without_it(
    bench: Bench, registry: EmbeddedRegistry
) -> None:
    settings = {"url": registry.url, "client": QUICKLY}
    source = {"key_format": "avro", "registry": settings, "on_bad_record": "dead_letter"}
    write_avro(bench, registry.url, PLACE, {"city": "Ulm", "zip": 1}, {"city": "Bonn", "zip": None})
    first = bench.pipeline(source=source).run().head
    wider = record(("city", "string"), ("country", "string", "DE"), name="Place")
    send(bench, b"\0\0\0\xff\xff\x02", b"Ulm", None)
    write_avro(bench, registry.url, wider, {"city": "Graz", "country": "AT"})
    write_avro(bench, registry.url, PLACE, {"city": "Ulm", "zip": 2})
    head = bench.pipeline(source=source).run().head
    columns = "key_city, key_country, key_zip"
    read = bench.table.query(f'select {columns} from events order by "_eo_offset"')
    assert read == [
        *(("Ulm", None, 1), ("Bonn", None, None)),
        *((None, None, None), ("Graz", "AT", None), ("Ulm", "DE", None)),
    ]
    assert errors(bench) == {
        2: "the registry has no AVRO schema 65535",
        3: "the key does not begin with the number of a schema in a registry",
    }
    used = head.counts.key_schemas
    assert used is not None
    assert (len(used.writers), len(used.texts), used.unknown) == (2, 1, ("65535",))
    assert head.counts.schemas is None
    assert head.counts.unknown_fields == ("key: zip",)
    pipeline = bench.pipeline(source=source)
    copied = pipeline.fork(first.version, "copied", {**bench.config["sink"], "table": "copied"})
    begun = copied.head()
    assert begun is not None
    assert begun.counts.key_schemas is not None
    assert set(begun.counts.key_schemas.texts) == set(first.known_key_schemas.held)
    copied.run()
    registry.kill()
    keys = bench.table.query('select key_city, key_country from copied order by "_eo_offset"')
    assert keys == [row[:2] for row in read[2:]], "there never was a column key_zip"
    assert copied.audit().passed
    assert pipeline.audit().passed
    pipeline.replay(1, head.version)
    assert bench.table.query(f'select {columns} from events order by "_eo_offset"') == read
    send(bench, None)
    with pytest.raises(RegistryUnavailableError, match="does not answer"):
        bench.pipeline(source=source).run()


def test_json_keys_behind_a_registry_are_objects_or_plain_and_are_read_as_then_without_it(
    bench: Bench, registry: EmbeddedRegistry
) -> None:
    client = SchemaRegistryClient({"url": registry.url})

    def write(schema: dict[str, Any], *keys: Any) -> None:
        serialize = JSONSerializer(json.dumps(schema), client)
        context = SerializationContext(bench.topic.name, MessageField.KEY)
        send(bench, *(serialize(key, context) for key in keys))

    city, zip_code = {"type": "string"}, {"type": "integer"}
    first = {"title": "Place", "type": "object", "properties": {"city": city}}
    second = {**first, "properties": {"city": city, "zip": zip_code}}
    settings = {"url": registry.url, "client": QUICKLY}
    source = {"key_format": "json", "registry": settings, "on_bad_record": "dead_letter"}
    write(first, {"city": "Ulm"})
    bench.pipeline(source=source).run()
    write(second, {"city": "Bonn", "zip": 1})
    send(bench, b"{}", b"\0\0\0\xff\xff{}", None)
    head = bench.pipeline(source=source).run().head
    places = 'select key_city, key_zip from events order by "_eo_offset"'
    read = [("Ulm", None), ("Bonn", 1), (None, None)]
    assert bench.table.query(places) == read
    assert errors(bench) == {
        2: "the key does not begin with the number of a schema in a registry",
        3: "the key: the registry has no JSON schema 65535",
    }
    used = head.counts.key_schemas
    assert used is not None
    assert set(used.types.values()) == {"JSON"}
    plain = {**source, "registry": {**settings, "key_subject": f"{bench.topic.name}-plain"}}
    text = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}'
    numbered = client.register_schema(f"{bench.topic.name}-plain", Schema(text, "JSON"))
    prefix = struct.pack(">bI", 0, numbered)
    send(bench, prefix + b'"k"', prefix + b"{}x", prefix + b'"k", "more": 1')
    start = {"offsets": {bench.topic.name: {"0": 5}}, "or_else": "earliest"}
    named = {"name": "plain", "sink": {"table": "plain"}}
    other = bench.pipeline(source={**plain, "start": start}, **named)
    other.run()
    assert bench.table.query("select key from plain") == [("k",)]
    plain_errors = bench.table.query('select error from plain_dead_letters order by "offset"')
    assert plain_errors == [
        ("the key does not fit the schema",),
        ("the key is not one JSON value",),
    ]
    registry.kill()
    pipeline = bench.pipeline(source=source)
    assert pipeline.audit().passed
    pipeline.replay(1, head.version)
    assert bench.table.query(places) == read


def test_a_plain_key_behind_a_registry_is_one_column_beside_an_avro_value(
    avro_bench: Bench, orders: AvroTopic, registry: EmbeddedRegistry
) -> None:
    serialize = AvroSerializer(orders.client, '"string"')
    value = AvroSerializer(orders.client, record(("id", "long")))
    contexts = [
        SerializationContext(orders.topic.name, field)
        for field in (MessageField.KEY, MessageField.VALUE)
    ]
    producer = orders.topic.producer()
    for n in range(3):
        key, body = serialize(f"k{n}", contexts[0]), value({"id": n}, contexts[1])
        producer.produce(orders.topic.name, body, key, partition=n)
    assert producer.flush(120) == 0
    pipeline = avro_bench.pipeline(source={"key_format": "avro"})
    counts = pipeline.run().head.counts
    assert rows(avro_bench, "id, key") == [(0, "k0"), (1, "k1"), (2, "k2")]
    assert counts.schemas is not None
    assert counts.key_schemas is not None
    assert counts.schemas.writers != counts.key_schemas.writers

"""Protobuf behind a real schema registry, written by confluent-kafka, to PostgreSQL and back."""

from __future__ import annotations

import os
import struct
import uuid
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)

from eo_pipeline.embedded.registry import EmbeddedRegistry
from tests.cli.shell import Shell, eo
from tests.support.engine import Bench, Topic
from tests.support.registry import (
    JsonTopic,
    ProtobufTopic,
    RegistryTopic,
    behind_registry,
    messages,
    record,
)

__all__ = ["eo"]


def proto(*fields: str, more: str = "") -> str:
    body = " ".join(fields)
    return f'syntax = "proto3"; package shop; message Order {{ {body} }} {more}'


ID, NAME = "int64 id = 1;", "string name = 2;"
FIRST = proto(ID, NAME)
SECOND = proto(ID, NAME, "Place place = 3;", more="message Place { string lat = 1; }")
THIRD = proto(ID, "repeated string tags = 4;", "Place place = 3;", more="message Place { }")
THIRD = THIRD.replace("message Place { }", "message Place { string lat = 1; }")
ORDER = "shop.Order"


def test_three_evolving_schemas_land_and_are_read_again_without_the_registry(
    bench: Bench, events: Topic, registry: EmbeddedRegistry
) -> None:
    orders = ProtobufTopic(events, SchemaRegistryClient({"url": registry.url}))
    proto_bench = behind_registry(bench, registry, "protobuf")
    first, second, third = (messages(text)(ORDER) for text in (FIRST, SECOND, THIRD))
    orders.write(first, {"id": 1, "name": "one"}, {"id": 2})
    proto_bench.pipeline().run()
    orders.write(second, {"id": 3, "name": "three", "place": {"lat": "3"}})
    head = proto_bench.pipeline().run().head
    assert head.counts.schemas is not None
    assert set(head.counts.schemas.types.values()) == {"PROTOBUF"}
    orders.write(third, {"id": 4, "tags": ["a", "b"]})
    planned = proto_bench.pipeline().plan_run().reader
    assert "(new: tags; no longer: name)" in str(planned)
    orders.write(first, {"id": 5, "name": "five"}, {"id": 6})
    number = struct.pack(">bI", 0, int(head.counts.schemas.reader))
    junk = [b"{}", struct.pack(">bI", 0, 4711) + b"\0", number + b"\2\2", number + b"\0\x12\x05a"]
    other = orders.client.register_schema("other", Schema(record(("id", "long")), "AVRO"))
    junk.append(struct.pack(">bI", 0, other) + b"{}")
    for value in [*junk, None]:
        events.write_value(value)
    tolerant = {"on_bad_record": "dead_letter"}
    last = proto_bench.pipeline(source=tolerant).run().head
    proto_bench.table.assert_holds_once(events.written)
    assert (last.counts.unknown, last.counts.unknown_fields) == (1, ("name",))
    letters = proto_bench.table.query("select value, error from events_dead_letters")
    errors = {None if value is None else bytes(value): error for value, error in letters}
    assert "does not begin with the number of a schema" in errors[junk[0]]
    assert "the registry has no PROTOBUF schema 4711" in errors[junk[1]]
    assert "is not the message shop.Order, but another one of schema" in errors[junk[2]]
    assert errors[junk[3]] == "the value is cut off, or is no message shop.Order"
    assert f"the registry has no PROTOBUF schema {other}" in errors[junk[4]]
    assert "tombstone" in errors[None]
    everything = "select id, name, place::text, tags from events order by id"
    before = proto_bench.table.query(everything)
    assert before == [
        (1, "one", None, None),
        (2, "", None, None),
        (3, "three", '{"lat": "3"}', None),
        (4, None, None, ["a", "b"]),
        (5, None, None, []),
        (6, None, None, []),
    ]
    registry.kill()
    proto_bench.pipeline(source=tolerant).replay(head.version, last.version)
    assert proto_bench.table.query(everything) == before
    assert proto_bench.pipeline(source=tolerant).audit().findings == ()


NESTED = """
syntax = "proto3"; package shop; import "common.proto";
message First { int32 a = 1; }
message Outer { message Aside { int32 b = 1; } message Inner { int64 id = 1; Place at = 2; } }
"""
COMMON = 'syntax = "proto3"; package shop; message Place { string lat = 1; }'


def test_a_nested_message_whose_schema_imports_another_file_is_read(
    bench: Bench, events: Topic, registry: EmbeddedRegistry
) -> None:
    """Confluent's serializer registers descriptors in base64; others register .proto files."""
    client = SchemaRegistryClient({"url": registry.url})
    orders = ProtobufTopic(events, client)
    inner = messages(NESTED, common=COMMON)("shop.Outer.Inner")
    orders.write(inner, {"id": 1, "at": {"lat": "1"}})
    client.register_schema("common", Schema(COMMON, "PROTOBUF"))
    at = [SchemaReference("common.proto", "common", 1)]
    newer = NESTED.replace("Place at = 2;", "Place here = 2; string more = 3;")
    client.register_schema(f"{events.name}-value", Schema(newer, "PROTOBUF", at))
    behind = behind_registry(bench, registry, "protobuf")
    behind.pipeline(source={"message": "shop.Outer.Inner"}).run()
    assert bench.table.query("select id, here::text, more from events") == [(1, '{"lat": "1"}', "")]


def test_the_guid_and_the_message_may_stand_in_a_header(
    bench: Bench, events: Topic, registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With confluent-kafka's registry in memory: the real one of the tests knows no GUIDs."""
    client = SchemaRegistryClient.new_client({"url": "mock://protobuf-guids"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _: client)
    in_header = {"schema.id.serializer": header_schema_id_serializer}
    two = proto(ID, NAME, more="message Second { int64 id = 1; }")
    ProtobufTopic(events, client).write(messages(two)(ORDER), {"id": 1, "name": "one"})
    ProtobufTopic(events, client, in_header).write(messages(two)(ORDER), {"id": 2, "name": "two"})
    guid = client.get_latest_version(f"{events.name}-value").guid
    assert guid is not None
    second = b"\x01" + uuid.UUID(guid).bytes + b"\x02\x02"
    producer = events.producer()
    producer.produce(events.name, b"\x08\x03", headers=[("__value_schema_id", second)])
    assert producer.flush(120) == 0
    behind = behind_registry(bench, registry, "protobuf")
    behind.pipeline(source={"on_bad_record": "dead_letter"}).run()
    assert bench.table.query("select id, name from events order by id") == [(1, "one"), (2, "two")]
    [(error,)] = bench.table.query("select error from events_dead_letters")
    assert error == f"the value is not the message shop.Order, but another one of schema {guid}"


@pytest.mark.parametrize(
    ("make", "first", "then"),
    [
        (
            ProtobufTopic,
            lambda: messages(FIRST)(ORDER),
            lambda: messages(proto(ID, NAME, "bool new = 5;"))(ORDER),
        ),
        (
            JsonTopic,
            lambda: '{"type": "object", "properties": {"id": {"type": "integer"}, "name": {}}}',
            lambda: (
                '{"type": "object", "properties": {"id": {"type": "integer"}, "name": {}, '
                '"new": {"type": "boolean"}}}'
            ),
        ),
    ],
    ids=["protobuf", "json"],
)
def test_init_finds_the_format_and_the_document_runs(
    eo: Shell,
    events: Topic,
    registry: EmbeddedRegistry,
    monkeypatch: pytest.MonkeyPatch,
    make: type[RegistryTopic],
    first: Any,
    then: Any,
) -> None:
    orders = make(events, SchemaRegistryClient({"url": registry.url}))
    orders.write(first(), {"id": 1, "name": "one"})
    kafka = ("--bootstrap", events.bootstrap_servers, "--topic", events.name, "--name", "events")
    begun = eo("init", *kafka, "--sink", "postgres", "--registry", registry.url)
    assert begun.code == 0, begun.err
    monkeypatch.setenv("EO_EVENTS_DSN", os.environ["EO_TEST_DSN"])
    ran = eo("run", "-f", "pipelines/events.yaml")
    assert ran.code == 0, ran.err
    assert eo.bench.table.query("select id, name from events") == [(1, "one")]
    orders.write(then(), {"id": 2, "name": "two", "new": True})
    assert "(new: new)" in eo("plan", "-f", "pipelines/events.yaml").out
    assert eo("run", "-f", "pipelines/events.yaml").code == 0
    assert "new: new" in eo("schema", "-f", "pipelines/events.yaml").out

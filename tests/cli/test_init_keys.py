"""What `eo init` writes for keys, by a registry in memory and a sample."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from eo_pipeline.cli.init import NOTHING, json_keys, registry_format, registry_keys
from eo_pipeline.cli.sampling import infer_schema
from tests.support.registry import record

SOURCE: dict[str, Any] = {
    "bootstrap_servers": "h:1",
    "topics": ["t"],
    "value_format": "avro",
    "registry": {"url": "http://h"},
}
FRAMED: list[bytes | None] = [b"\0\0\0\0\1\2", None]
#: Of the second message of a file.
SECOND: list[bytes | None] = [b"\0\0\0\0\1\2\2\x08\1"]
PROTO = 'syntax = "proto3"; message A { int64 id = 1; } message B { int32 zip = 1; }'


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> SchemaRegistryClient:
    made = SchemaRegistryClient.new_client({"url": "mock://keys"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _: made)
    value = record(("id", "long"), ("key", "int"), ("key_city", "string"))
    made.register_schema("t-value", Schema(value, "AVRO"))
    return made


def test_a_topic_without_a_subject_for_keys_keeps_them_as_they_are(
    client: SchemaRegistryClient,
) -> None:
    assert registry_keys(SOURCE, FRAMED) == NOTHING
    client.register_schema("t-key", Schema('"string"', "AVRO"))
    both = {**SOURCE, "topics": ["t", "u"], "registry": {"url": "http://h", "subject": "t-value"}}
    assert registry_keys(both, FRAMED) == NOTHING


@pytest.mark.parametrize(
    ("schema", "kind", "found"),
    [
        (record(("zip", "int")), "AVRO", "avro"),
        ('{"type": "object", "properties": {"zip": {"type": "integer"}}}', "JSON", "json"),
    ],
)
def test_keys_with_a_schema_become_columns(
    client: SchemaRegistryClient, schema: str, kind: str, found: str
) -> None:
    client.register_schema("t-key", Schema(schema, kind))
    assert registry_keys(SOURCE, FRAMED)[0] == {"key_format": found}


@pytest.mark.parametrize(
    ("schema", "sample", "said"),
    [
        ('"long"', FRAMED, "both have a column key"),
        (record(("city", "string")), FRAMED, "both have a column key_city"),
        (record(("zip", "int")), [b"plain"], "starts with a schema id"),
        (record(("_kafka", "int")), FRAMED, "a name that is taken"),
    ],
)
def test_keys_that_cannot_become_columns_stay_bytes_and_it_is_said(
    client: SchemaRegistryClient, schema: str, sample: Any, said: str
) -> None:
    client.register_schema("t-key", Schema(schema, "AVRO"))
    fields, sentences = registry_keys(SOURCE, sample)
    assert fields == {}
    assert said in sentences[0]


def test_the_message_of_the_sampled_records_is_named(client: SchemaRegistryClient) -> None:
    client.register_schema("t-key", Schema(PROTO, "PROTOBUF"))
    named = registry_keys(SOURCE, SECOND)[0]
    assert named == {"key_format": "protobuf", "key_message": "B"}
    client.register_schema("p-value", Schema(PROTO, "PROTOBUF"))
    source = {"bootstrap_servers": "h:1", "topics": ["p"]}
    for values, message in ((SECOND, {"message": "B"}), (FRAMED, {})):
        found = registry_format(source, "http://h", None, {}, values)
        assert found == {
            "value_format": "protobuf",
            "registry": {"url": "http://h"},
            **message,
        }


def test_json_keys_without_a_registry_keep_the_schema_inferred() -> None:
    values = infer_schema([b'{"a": 1}'])
    keys = infer_schema([b'{"id": 1}', None])
    assert json_keys(keys, values)[0] == {"key_format": "json", "key_schema": "id BIGINT"}
    assert json_keys(infer_schema([b'{"id": 1}', b"k"]), values) == NOTHING
    assert json_keys(keys, infer_schema([b'{"KEY_id": 1}'])) == NOTHING

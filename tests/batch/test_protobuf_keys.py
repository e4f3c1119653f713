"""What becomes of keys that are Protobuf, of topics that confluent-kafka writes."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.errors import ConfigError, RegistryUnavailableError
from tests.batch.test_keys import errors, rows, send
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench
from tests.support.registry import QUICKLY, messages

PLACE = (
    'syntax = "proto3"; package shop; message Place { string city = 1; optional int32 zip = 2; }'
)
WIDER = PLACE.replace("int32 zip = 2;", "int32 zip = 2; string country = 3;")
OTHER = PLACE.replace("message Place", "message First { int32 a = 1; } message Place")


def write(bench: Bench, url: str, text: str, *keys: dict[str, Any]) -> None:
    """A record for each key, by confluent-kafka's serializer; the ids begin anew."""
    place = messages(text)("shop.Place")
    client = SchemaRegistryClient({"url": url})
    serialize = ProtobufSerializer(place, client, {"use.deprecated.format": False})
    context = SerializationContext(bench.topic.name, MessageField.KEY)
    send(bench, *(serialize(place(**key), context) for key in keys))


def test_keys_behind_a_registry_are_read_as_then_without_it(
    bench: Bench, registry: EmbeddedRegistry
) -> None:
    source = {
        "key_format": "protobuf",
        "key_message": "Place",
        "registry": {"url": registry.url, "client": QUICKLY},
        "on_bad_record": "dead_letter",
    }
    write(bench, registry.url, OTHER, {"city": "Ulm", "zip": 1}, {"city": "Bonn"})
    bench.pipeline(source=source).run()
    send(bench, b"\0\0\0\xff\xff\x02", b"Ulm", None)
    write(bench, registry.url, WIDER, {"city": "Graz", "country": "AT"})
    write(bench, registry.url, OTHER, {"city": "Ulm", "zip": 2})
    head = bench.pipeline(source=source).run().head
    columns = "key_city, key_country, key_zip"
    query = f'select {columns} from events order by "_eo_offset"'
    read = bench.table.query(query)
    assert read == [
        *(("Ulm", None, 1), ("Bonn", None, None)),
        *((None, None, None), ("Graz", "AT", None), ("Ulm", "", 2)),
    ]
    assert errors(bench) == {
        2: "the registry has no PROTOBUF schema 65535",
        3: "the key does not begin with the number of a schema in a registry",
    }
    used = head.counts.key_schemas
    assert used is not None
    assert (len(used.writers), used.unknown, used.message) == (2, ("65535",), "Place")
    assert set(used.types.values()) == {"PROTOBUF"}
    assert head.counts.schemas is None
    registry.kill()
    pipeline = bench.pipeline(source=source)
    assert pipeline.audit().passed
    pipeline.replay(1, head.version)
    assert bench.table.query(query) == read
    send(bench, None)
    with pytest.raises(RegistryUnavailableError, match="does not answer"):
        bench.pipeline(source=source).run()


@pytest.mark.parametrize(
    "inline_records", rest_is_chaos([0, 10_000], but=[0]), ids=["files", "inline"]
)
def test_a_key_of_a_schema_in_the_document_is_read_beside_such_a_value(
    bench: Bench, inline_records: int
) -> None:
    place = messages(PLACE)("shop.Place")
    written = place(city="Ulm", zip=89073).SerializeToString()
    producer = bench.topic.producer()
    for key in (written, None, b"\x0a\x09Ulm", written + b"\x78\x01"):
        producer.produce(
            bench.topic.name, b"\x08\x07", key, partition=0, on_delivery=bench.topic._delivered
        )
    assert producer.flush(120) == 0
    source = {
        "key_format": "protobuf",
        "key_schema": OTHER,
        "key_message": "shop.Place",
        "value_format": "protobuf",
        "value_schema": 'syntax = "proto3"; message Order { int64 city = 1; }',
        "on_bad_record": "dead_letter",
    }
    head = bench.pipeline(source=source, inline_records=inline_records).run().head
    assert rows(bench, "city, key_city, key_zip", "_eo_offset") == [
        (7, "Ulm", 89073),
        (7, None, None),
        (7, "Ulm", 89073),
    ]
    assert errors(bench) == {2: "the key is cut off, or is no message shop.Place"}
    assert (head.counts.unknown, head.counts.unknown_fields) == (1, ("key: #15",))
    with pytest.raises(ConfigError, match="the key and the value both have a column city"):
        bench.pipeline(
            source={**source, "key_prefix": ""}, name="other", sink={"table": "other"}
        ).run()

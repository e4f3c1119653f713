"""What is asked of a schema registry, and what is made of its answers: confluent-kafka's own, in
memory.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from eo_pipeline.errors import ConfigError
from eo_pipeline.formats.avro import Avro
from eo_pipeline.formats.registry import VERSIONS_MAX, Registry, RegistryClient
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.schemas import AVRO, canonical
from tests.support.registry import record

ORDER = record(("id", "long"))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SchemaRegistryClient:
    """Each client of the mock has schemas of its own; here all are this one."""
    client = SchemaRegistryClient.new_client({"url": "mock://one"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _: client)
    return client


@pytest.fixture
def registry(store: SchemaRegistryClient) -> RegistryClient:
    return RegistryClient(Registry(url="http://one"), AVRO)


def test_the_latest_version_is_the_one_of_now(
    store: SchemaRegistryClient, registry: RegistryClient
) -> None:
    store.register_schema("orders-value", Schema(ORDER, "AVRO"))
    assert registry.latest("orders-value").text == canonical(ORDER)
    wider = record(("id", "long"), ("name", "string"))
    store.register_schema("orders-value", Schema(wider, "AVRO"))
    assert registry.latest("orders-value").text == canonical(wider)


def test_a_schema_is_found_by_its_number_and_by_its_guid(
    store: SchemaRegistryClient, registry: RegistryClient
) -> None:
    full = store.register_schema_full_response("orders-value", Schema(ORDER, "AVRO"))
    assert registry.latest("orders-value").keys == (str(full.schema_id), full.guid)
    assert registry.text(str(full.schema_id)) == canonical(ORDER)
    assert registry.text(str(full.guid)) == canonical(ORDER)
    assert registry.text("4711") is None
    assert registry.text("00000000-0000-0000-0000-000000000000") is None


def test_only_the_newest_versions_are_asked_for(
    store: SchemaRegistryClient, registry: RegistryClient
) -> None:
    for n in range(VERSIONS_MAX + 5):
        store.register_schema("many-value", Schema(record((f"f{n}", "long")), "AVRO"))
    newest = registry.newest("many-value")
    assert len(newest) == VERSIONS_MAX
    assert newest[0].text == registry.latest("many-value").text


def test_what_a_schema_refers_to_is_written_out_in_it(
    store: SchemaRegistryClient, registry: RegistryClient
) -> None:
    city = record(("name", "string"), name="City")
    store.register_schema("city", Schema(city, "AVRO"))
    at_city = [SchemaReference("shop.City", "city", 1)]
    place = record(("city", "shop.City"), name="Place")
    store.register_schema("place", Schema(place, "AVRO", at_city))
    at_place = [SchemaReference("shop.Place", "place", 1)]
    order = record(("id", "long"), ("here", "shop.Place"), ("there", "shop.Place"))
    store.register_schema("orders-value", Schema(order, "AVRO", at_place))
    schema = json.loads(registry.latest("orders-value").text)
    here, there = (field["type"] for field in schema["fields"][1:])
    assert here["name"] == "shop.Place"
    assert here["fields"][0]["type"]["fields"][0]["type"] == "string"
    assert there == "shop.Place"  # a name stands for what was written out before
    assert Avro().fault_of(json.dumps(schema)) is None


def test_a_subject_that_is_not_there_or_is_no_avro_is_said(
    store: SchemaRegistryClient, registry: RegistryClient
) -> None:
    with pytest.raises(ConfigError, match=r"has no subject 'absent'.*source\.registry\.subject"):
        registry.latest("absent")
    store.register_schema("json-value", Schema("{}", "JSON"))
    with pytest.raises(ConfigError, match=r"'json-value'.* is JSON, and the document says avro"):
        registry.latest("json-value")


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"], "default": None}],
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (ORDER, None),
        ('"string"', "is not a record"),
        ("nonsense", "is not JSON"),
        (record(("node", NODE)), "has a field node.next that refers to the record shop.Node"),
        (json.dumps(NODE), "has a field next that refers to the record Node that it is in"),
        (record(("nothing", "null")), "has a field nothing that is never anything but null"),
        (
            record(("n", {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2})),
            "has a field n that is a decimal of more than 38 digits",
        ),
        (record(("a", "strin")), "names a type shop.strin that it does not define"),
        ('{"type": "record", "name": "A", "fields": [{"name": "a"}]}', "is no Avro schema"),
        ('{"type": "record", "name": "A", "fields": ["a"]}', "is no Avro schema"),
        (record(("_kafka", "string")), "has a field _kafka, a name that is taken"),
    ],
)
def test_what_cannot_become_columns_is_said(schema: str, expected: str | None) -> None:
    fault = Avro().fault_of(schema)
    assert fault is None if expected is None else expected in str(fault)


def test_fields_that_the_reader_leaves_out_are_named_by_their_paths() -> None:
    place = {"type": "record", "name": "Place", "fields": []}
    lat, lon = {"name": "lat", "type": "double"}, {"name": "lon", "type": "double"}
    written = {**place, "fields": [lat, lon]}
    read = {**place, "fields": [lat]}
    writer = record(("id", "long"), ("a", written), ("b", ["null", "Place"]), ("old", "string"))
    reader = record(("id", "long"), ("a", read), ("b", ["null", "Place"]))
    assert Avro().left_out(writer, reader) == ["a.lon", "b.lon", "old"]
    assert Avro().left_out(reader, reader) == []
    renamed = json.loads(reader)
    renamed["fields"].append({"name": "new", "type": "string", "aliases": ["old"]})
    assert Avro().left_out(writer, json.dumps(renamed)) == ["a.lon", "b.lon"]
    places = ("places", {"type": "map", "values": "shop.Place"})
    several = record(("all", {"type": "array", "items": written}), places)
    fewer = record(("all", {"type": "array", "items": read}), places)
    assert Avro().left_out(several, fewer) == ["all.lon", "places.lon"]


GOOD: dict[str, Any] = {
    "bootstrap_servers": "h:1",
    "topics": ["orders"],
    "value_format": "avro",
    "registry": {"url": "http://h:8081"},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"registry": None}, "needs either registry or value_schema"),
        ({"value_schema": ORDER}, "needs either registry or value_schema"),
        ({"registry": None, "value_schema": "id BIGINT"}, "an Avro schema as JSON, is not JSON"),
        (
            {"value_format": "raw"},
            "do not belong to value_format raw",
        ),
        ({"topics": ["a", "b"]}, "registry.subject is required"),
        ({"topics": [], "topic_pattern": "a.*"}, "registry.subject is required"),
        ({"registry": {"url": "http://me:secret@h"}}, "basic.auth.user.info"),
        ({"registry": {"url": "h:8081"}}, "begins with http"),
        ({"registry": {"url": "http://h", "client": {"url": "x"}}}, "stands beside client"),
    ],
)
def test_a_source_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        KafkaSource(**{**GOOD, **changes})
    assert "secret" not in str(raised.value)


def test_the_subject_is_the_topics_unless_it_is_named_and_no_login_is_shown() -> None:
    login = {"url": "http://h", "client": {"basic.auth.user.info": "me:secret"}}
    source = KafkaSource(**{**GOOD, "registry": login})
    assert source.subject == "orders-value"
    assert "secret" not in repr(source)
    named = {"url": "http://h", "subject": "shop.Order"}
    assert KafkaSource(**{**GOOD, "topics": ["a", "b"], "registry": named}).subject == "shop.Order"


@pytest.mark.parametrize(
    "client", [{"no.such.setting": "x"}, {"max.retries": "many"}, {"basic.auth.user.info": "me"}]
)
def test_what_the_client_does_not_take_is_said(client: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"source\.registry\.client"):
        RegistryClient(Registry(url="http://h", client=client), AVRO)

"""Records that are written as Protobuf behind a real registry, and read back by confluent-kafka."""

from __future__ import annotations

import base64
import json
import signal
from collections import Counter
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.json_format import MessageToDict
from google.type import date_pb2
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, SchemaChangeError
from eo_pipeline.formats.protobuf import Protobuf
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.kafka.encoding import AgreedProtobuf
from eo_pipeline.sinks.kafka.protobuf import derived, grown, misfits
from eo_pipeline.sinks.kafka.protobuf_worker import batches_encoder
from tests.sinks.kafka.kafka_sink_world import by_schemas, kafka_bench
from tests.sinks.kafka.kafka_world import headers, read
from tests.sinks.kafka.test_kafka_sink_avro import messages, published, topic_of
from tests.support.engine import Bench, Topic
from tests.support.registry import messages as classes
from tests.support.servers import MakeTopic

TYPES = (
    "id BIGINT NOT NULL, name STRING, amount DECIMAL(12,2), day DATE, at TIMESTAMP, "
    "tags ARRAY<STRING>, place STRUCT<lat: DOUBLE, city: STRUCT<name: STRING>>, "
    "counts MAP<STRING, INT>, raw BINARY, places ARRAY<STRUCT<on: DATE>>"
)
ROW = {
    "id": 1,
    "name": "né",
    "amount": -12.5,
    "day": "2026-01-31",
    "raw": "AAE=",
    "at": "2026-01-31T12:00:00.000001Z",
    "tags": ["a", ""],
    "counts": {"x": 1},
    "place": {"lat": 0, "city": {"name": "Ulm"}},
    "places": [{"on": "1999-12-31"}, {}],
}


@pytest.fixture
def bench(
    spark_server: EmbeddedSpark,
    events: Topic,
    make_topic: MakeTopic,
    registry: EmbeddedRegistry,
    tmp_path: Path,
) -> Bench:
    """Keys and values as Protobuf."""
    return by_schemas(kafka_bench(events, make_topic(partitions=4), tmp_path), registry, "protobuf")


@pytest.fixture
def client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def reader(bench: Bench, client: SchemaRegistryClient, field: str) -> Callable[[bytes], Any]:
    """Confluent's deserializer of the subject's latest schema; its messages as dictionaries."""
    client.clear_latest_caches()
    latest = client.get_latest_version(f"{topic_of(bench)}-{field}").schema.schema_str
    assert latest is not None
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(latest))
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, date_pb2, decimal_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    name = f"{file.package}.{file.message_type[0].name}"
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    read_by = ProtobufDeserializer(message, {"use.deprecated.format": False})
    context = SerializationContext(topic_of(bench), getattr(MessageField, field.upper()))
    return lambda written: MessageToDict(
        read_by(written, context), preserving_proto_field_name=True
    )


def decoded(bench: Bench, client: SchemaRegistryClient) -> list[tuple[Any, Any]]:
    """Keys and values, in the order of keys."""
    key, value = reader(bench, client, "key"), reader(bench, client, "value")
    found = [(key(m.key()), value(m.value())) for m in messages(bench)]  # type: ignore[arg-type]
    return sorted(found, key=lambda record: int(record[0]["id"]))


def test_rows_arrive_as_protobuf_of_the_columns_types(
    bench: Bench, client: SchemaRegistryClient
) -> None:
    bench.topic.write_value(json.dumps(ROW).encode())
    bench.topic.write_value(b'{"id": 2}')
    source = {"value_schema": TYPES}
    bench.pipeline(source=source).run()
    (key, value), (_, empty) = decoded(bench, client)
    assert key == {"id": "1"}
    unscaled = base64.b64encode((-1250).to_bytes(16, "big", signed=True)).decode()
    assert value == {
        **{name: ROW[name] for name in ("name", "raw", "at", "tags", "counts")},
        "amount": {"value": unscaled, "precision": 12, "scale": 2},
        "day": {"year": 2026, "month": 1, "day": 31},
        "place": {"lat": 0.0, "city": {"name": "Ulm"}},
        "places": [{"on": {"year": 1999, "month": 12, "day": 31}}, {}],
    }
    assert empty == {}
    bench.topic.write_value(b'{"id": 3, "name": "x", "more": true}')
    bench.pipeline(source=source).run()
    subject = f"{topic_of(bench)}-value"
    assert client.get_versions(subject) == [1], "the same schema is registered once"
    bench.topic.write_value(b'{"id": 4, "more": true}')
    bench.pipeline(source={"value_schema": "id BIGINT NOT NULL, more BOOLEAN, name STRING"}).run()
    assert client.get_versions(subject) == [1, 2]
    read_now = decoded(bench, client)
    assert [value for _, value in read_now] == [value, {}, {"name": "x"}, {"more": True}]


def test_killed_with_a_promise_made_the_next_run_keeps_it_without_the_registry(
    bench: Bench, client: SchemaRegistryClient
) -> None:
    bench.topic.write(250, partitions=range(4))
    killed = bench.run_in_a_process("--crash-at", CrashPoint.PRE_COMMITTED, "2")
    _, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    before = sum(published(bench).values())
    bench.pipeline().run()
    assert sum(published(bench).values()) > before
    assert published(bench) == Counter(bench.topic.written)
    assert client.get_versions(f"{topic_of(bench)}-value") == [1]
    values = [value for _, value in decoded(bench, client)]
    assert [value["name"] for value in values] == [f"record {n}" for n in range(250)]


ORDERS = """
syntax = "proto3"; package shop; import "google/protobuf/wrappers.proto";
message First { int32 a = 1; }
message Order {
  enum Kind { BIG = 0; SMALL = 1; }
  Kind name = 7; google.protobuf.Int64Value amount = 3; sint32 count = 2; string remark = 9;
  repeated int64 many = 4;
}
"""


def test_a_schema_that_somebody_else_registered_is_written_by(
    bench: Bench, client: SchemaRegistryClient
) -> None:
    known = {**bench.config["sink"]["registry"], "auto_register": False}
    sink = {"registry": known, "key_format": "text", "message": "Order"}
    source = {
        "value_schema": "id BIGINT, name STRING, amount BIGINT, count INT, many ARRAY<BIGINT>",
        "on_bad_record": "dead_letter",
    }
    for row in (
        {"id": 1, "name": "SMALL", "amount": 0, "count": -5, "many": [0, 2]},
        {"id": 2, "name": "TALL", "count": 1},
        {"id": 3, "name": "BIG"},
        {"id": 4, "name": "BIG", "count": 1, "many": [1, None]},
    ):
        bench.topic.write_value(json.dumps(row).encode())
    pipeline = bench.pipeline(sink=sink, source=source)
    subject = f"{topic_of(bench)}-value"
    with pytest.raises(ConfigError, match=f"no subject '{subject}', and sink"):
        pipeline.run()
    client.register_schema(subject, Schema(ORDERS.replace("sint32", "string"), "PROTOBUF"))
    with pytest.raises(SchemaChangeError, match="count is int, and string there"):
        pipeline.run()
    number = client.register_schema(subject, Schema(ORDERS, "PROTOBUF"))
    pipeline.run()
    (message,) = messages(bench)
    written = message.value()
    assert written is not None
    assert written[:7] == b"\0" + number.to_bytes(4, "big") + b"\x02\x02"
    assert message.key() == b"1"
    read_by = ProtobufDeserializer(classes(ORDERS)("shop.Order"), {"use.deprecated.format": False})
    context = SerializationContext(topic_of(bench), MessageField.VALUE)
    assert MessageToDict(read_by(written, context)) == {
        "name": "SMALL",
        "amount": "0",
        "count": -5,
        "many": ["0", "2"],
    }
    letters = read(bench.topic.bootstrap_servers, f"{topic_of(bench)}._dead_letters")
    said = {headers(letter)["_eo_error"].decode() for letter in letters}
    assert any("'name' holds a text that is no symbol of the registered" in s for s in said)
    assert any("'count' holds null, which the registered schema has no form" in s for s in said)
    assert any("'many' holds null within an array or a map" in s for s in said)
    assert client.get_versions(subject) == [1, 2], "nothing was registered"


INT, LONG, TEXT = T.IntegerType(), T.LongType(), T.StringType()


def columns(**types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in types.items()])


#: What the names "new", "lon" and "at" make of themselves, for good.
NEW, LON, AT = 1477, 865, 508


def numbers(text: str, message: str = "Value") -> dict[str, tuple[int, str]]:
    found = Protobuf(message).descriptor(text)
    return {f.name: (f.number, f.message_type.name if f.message_type else "") for f in found.fields}


def test_a_field_keeps_its_number_whatever_becomes_of_the_columns() -> None:
    place = columns(lat=INT)
    of = T.MapType(TEXT, columns(a=INT))
    first = derived(columns(id=INT, place=place, name=TEXT, of=of), "orders-v1", "Value")
    assert numbers(first) == {
        "id": (1, ""),
        "place": (2, "Place"),
        "name": (3, ""),
        "of": (4, "OfEntry"),
    }
    kind = Protobuf("Value")
    wider = columns(lon=INT, lat=LONG)
    now = columns(new=TEXT, place=wider, of=T.MapType(TEXT, columns(b=INT, a=LONG)), id=LONG)
    second = grown(first, now, kind)
    assert numbers(second) == {**numbers(first), "new": (NEW, "")}
    inner = kind.descriptor(second).nested_types_by_name["Place"].fields_by_name
    assert {name: field.number for name, field in inner.items()} == {"lat": 1, "lon": LON}
    assert kind.clash(first, second) is None, "what was written by the first is read by the second"
    assert list(misfits(now, kind.descriptor(second))) == []
    with pytest.raises(SchemaChangeError, match="name is int, and string there"):
        grown(second, columns(name=INT), kind)


def test_what_somebody_else_made_grows_with_all_that_is_in_it() -> None:
    kind = Protobuf("shop.Order")
    theirs = kind.self_contained(ORDERS.replace("9;", "9; reserved 506 to 508;"), {})
    made = grown(theirs, columns(remark=TEXT, at=T.TimestampType()), kind)
    assert numbers(made, "Order")["at"] == (AT + 1, "Timestamp")
    assert {**numbers(made, "Order"), "at": 0} == {**numbers(theirs, "Order"), "at": 0}
    assert kind.indexes(made) == (1,)


def test_what_is_empty_or_null_is_written_as_that() -> None:
    """Batches as Spark hands them to its workers, without Spark."""
    money, day = T.DecimalType(9, 2), T.DateType()
    struct = columns(d=money, many=T.ArrayType(money), on=T.MapType(LONG, day), p=columns(d=day))
    text = derived(struct, "orders", "Value")
    kind = Protobuf("Value")
    agreed = AgreedProtobuf(7, text, struct, kind)
    rows = [
        {"d": None, "many": None, "on": None, "p": None},
        {"d": Decimal("-0.01"), "many": [], "on": [], "p": {"d": None}},
        None,
        {"d": None, "many": [Decimal("9999999.99")], "on": [(0, date(1, 1, 1))], "p": None},
    ]
    types = to_arrow_type(struct)
    encode = batches_encoder([agreed.written("value")])
    for some in (rows, rows[:1], rows[1:2]):
        batch = pa.record_batch({"value": pa.array(some, types), "n": pa.array(range(len(some)))})
        (made,) = encode([batch])
        assert made.schema.names == ["value", "n"]
        found = [_told(kind, text, written) for written in made.column("value").to_pylist()]
        cent = (-1).to_bytes(16, "big", signed=True)
        most = (999999999).to_bytes(16, "big", signed=True)
        digits = {"precision": 9, "scale": 2}
        first = {"day": 1, "month": 1, "year": 1}
        expected = [
            {},
            {"d": {"value": base64.b64encode(cent).decode(), **digits}, "p": {}},
            None,
            {"many": [{"value": base64.b64encode(most).decode(), **digits}], "on": {"0": first}},
        ]
        assert found == [expected[rows.index(each)] for each in some]


def _told(kind: Protobuf, text: str, written: bytes | None) -> Any:
    if written is None:
        return None
    assert written[:6] == b"\0\0\0\0\7\0"
    message = message_factory.GetMessageClass(kind.descriptor(text)).FromString(written[6:])
    return MessageToDict(message, preserving_proto_field_name=True)


@pytest.mark.parametrize(
    ("kind", "field", "said"),
    [
        (LONG, "int32 a = 1;", "a is bigint, and int32 there"),
        (INT, "uint32 a = 1;", "a is int, and uint32 there"),
        (T.ArrayType(INT), "int32 a = 1;", "a is array<int>, and int32 there"),
        (INT, "repeated int32 a = 1;", "a is int, and repeated int32 there"),
        (T.ArrayType(INT), "repeated string a = 1;", "a.item is int, and string there"),
        (columns(b=INT), "string a = 1;", "a is struct<b:int>, and string there"),
        (T.MapType(TEXT, INT), "map<string, bool> a = 1;", "a.value is int, and bool there"),
        (T.DateType(), "P a = 1;", "a is date, and shop.P there"),
        (INT, "oneof o { int32 a = 1; int32 b = 2; }", "a is one of o there, a oneof"),
        (INT, "int32 b = 1;", "it has no field a"),
    ],
)
def test_why_columns_do_not_fit_a_schema(kind: T.DataType, field: str, said: str) -> None:
    text = f'syntax = "proto3"; package shop; message O {{ {field} }} message P {{ int32 b = 1; }}'
    message = Protobuf("O").descriptor(Protobuf("O").self_contained(text, {}))
    assert list(misfits(columns(a=kind), message)) == [said]


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("a-b", INT, "'a-b' is no name"),
        ("a", T.NullType(), "type for a "),
        ("a", T.TimestampNTZType(), "type for a "),
        ("a", T.ArrayType(T.ArrayType(INT)), r"type for a\.item"),
        ("a", T.MapType(T.DoubleType(), INT), "type for a "),
    ],
)
def test_what_protobuf_has_no_form_for_is_refused(name: str, kind: T.DataType, said: str) -> None:
    with pytest.raises(SchemaChangeError, match=said):
        derived(columns(**{name: kind}), "orders", "Value")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"value_format": "protobuf"}, "registry belongs to value_format or key_format"),
        ({"message": "Order"}, "message belongs to value_format protobuf"),
        ({"key_format": "protobuf", "registry": {"url": "http://h:1"}}, "protobuf needs key"),
    ],
)
def test_a_sink_that_contradicts_itself_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KafkaSink(bootstrap_servers="h:1", topic="t", **settings)

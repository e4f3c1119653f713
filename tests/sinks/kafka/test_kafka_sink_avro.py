"""Records that are written as Avro behind a real registry, and read back by confluent-kafka."""

from __future__ import annotations

import json
import signal
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import types as T

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, RegistryUnavailableError, SchemaChangeError
from eo_pipeline.sinks.kafka.avro import derived, misfits
from eo_pipeline.sinks.kafka.encoding import whole
from tests.sinks.kafka.kafka_sink_world import by_schemas, kafka_bench
from tests.sinks.kafka.kafka_world import headers, read
from tests.support.engine import Bench, Coordinates, Topic
from tests.support.registry import QUICKLY, record
from tests.support.servers import MakeTopic

TYPES = (
    "id BIGINT NOT NULL, name STRING, amount DECIMAL(12,2), day DATE, at TIMESTAMP, "
    "tags ARRAY<STRING>, place STRUCT<lat: DOUBLE, city: STRUCT<name: STRING>>, "
    "counts MAP<STRING, INT>, raw BINARY"
)


@pytest.fixture
def bench(
    spark_server: EmbeddedSpark,
    events: Topic,
    make_topic: MakeTopic,
    registry: EmbeddedRegistry,
    tmp_path: Path,
) -> Bench:
    """Keys and values as Avro."""
    return by_schemas(kafka_bench(events, make_topic(partitions=4), tmp_path), registry, "avro")


@pytest.fixture
def client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def messages(bench: Bench) -> list[Message]:
    return read(bench.topic.bootstrap_servers, topic_of(bench))


def topic_of(bench: Bench) -> str:
    return str(bench.config["sink"]["topic"])


def decoded(bench: Bench, client: SchemaRegistryClient) -> list[tuple[Any, Any]]:
    """Keys and values, in the order of keys."""
    read_by = AvroDeserializer(client)
    value, key = (
        SerializationContext(topic_of(bench), field)
        for field in (MessageField.VALUE, MessageField.KEY)
    )
    found = [(read_by(m.key(), key), read_by(m.value(), value)) for m in messages(bench)]
    return sorted(found, key=lambda record: record[0])


def published(bench: Bench) -> Counter[Coordinates]:
    """How often each source record is there, by its headers."""
    told = map(headers, messages(bench))
    return Counter(
        (h["_eo_topic"].decode(), int(h["_eo_partition"]), int(h["_eo_offset"])) for h in told
    )


def test_rows_arrive_as_avro_of_the_columns_types(
    bench: Bench, client: SchemaRegistryClient
) -> None:
    row = {
        "id": 1,
        "name": "né",
        "amount": 12.5,
        "day": "2026-01-31",
        "raw": "AAE=",
        "at": "2026-01-31T12:00:00.000001Z",
        "tags": ["a", None],
        "counts": {"x": 1},
        "place": {"lat": 1.5, "city": {"name": "Ulm"}},
    }
    bench.topic.write_value(json.dumps(row).encode())
    bench.topic.write_value(b'{"id": 2}')
    source = {"value_schema": TYPES}
    bench.pipeline(source=source).run()
    (key, value), (_, empty) = decoded(bench, client)
    assert key == 1
    assert value == {
        "name": "né",
        "amount": Decimal("12.50"),
        "day": date(2026, 1, 31),
        "raw": b"\0\1",
        "at": datetime(2026, 1, 31, 12, 0, 0, 1, UTC),
        "tags": ["a", None],
        "counts": {"x": 1},
        "place": {"lat": 1.5, "city": {"name": "Ulm"}},
    }
    assert empty == dict.fromkeys(value)
    bench.topic.write_value(b'{"id": 3, "name": "x", "more": true}')
    bench.pipeline(source=source).run()
    value_subject, key_subject = f"{topic_of(bench)}-value", f"{topic_of(bench)}-key"
    assert client.get_versions(value_subject) == [1], "the same schema is registered once"
    assert "long" in str(client.get_latest_version(key_subject).schema.schema_str)
    bench.topic.write_value(b'{"id": 4, "more": true}')
    bench.pipeline(source={"value_schema": f"{TYPES}, more BOOLEAN"}).run()
    assert client.get_versions(value_subject) == [1, 2]
    assert decoded(bench, client)[3][1] == {**empty, "more": True}
    written = [e.counts.written for e in bench.pipeline(source=source).history() if e.ranges]
    numbers = [client.get_version(value_subject, n).schema_id for n in (1, 1, 2)]
    assert [each.registered["value"] for each in written if each] == [str(n) for n in numbers]
    assert all(each.registered["key"] for each in written if each)
    assert len({each.since for each in written if each}) == 1, "bytes, whatever is in them"


def test_killed_with_a_promise_made_the_next_run_keeps_it_without_the_registry(
    bench: Bench, client: SchemaRegistryClient, registry: EmbeddedRegistry
) -> None:
    bench.topic.write(250, partitions=range(4))
    killed = bench.run_in_a_process("--crash-at", CrashPoint.PRE_COMMITTED, "2")
    _, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    before = sum(published(bench).values())
    away = {"url": "http://127.0.0.1:9", "client": QUICKLY}
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:9 does not answer"):
        bench.pipeline(sink={"registry": away}).run()
    kept = published(bench)
    assert sum(kept.values()) > before, "what was promised needs no registry"
    assert max(kept.values()) == 1
    bench.pipeline().run()
    assert published(bench) == Counter(bench.topic.written)
    values = [value for _, value in decoded(bench, client)]
    assert [value["name"] for value in values] == [f"record {n}" for n in range(250)]


PERSONS = record(
    ("name", {"type": "enum", "name": "Kind", "symbols": ["big", "small"]}),
    ("amount", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}]),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("remark", ["string", "null"]),
)


def test_a_schema_that_somebody_else_registered_is_written_by(
    bench: Bench, client: SchemaRegistryClient
) -> None:
    known = {**bench.config["sink"]["registry"], "auto_register": False}
    sink = {"registry": known, "key_format": "text"}
    source = {
        "value_schema": "id BIGINT, name STRING, amount DECIMAL(12,2), at TIMESTAMP",
        "on_bad_record": "dead_letter",
    }
    at = "2026-01-31T12:00:00.123Z"
    bench.topic.write_value(json.dumps({"id": 1, "name": "big", "amount": 1, "at": at}).encode())
    bench.topic.write_value(json.dumps({"id": 2, "name": "tall", "at": at}).encode())
    bench.topic.write_value(b'{"id": 3, "name": "small"}')
    pipeline = bench.pipeline(sink=sink, source=source)
    subject = f"{topic_of(bench)}-value"
    with pytest.raises(ConfigError, match=f"no subject '{subject}', and sink"):
        pipeline.run()
    other = record(("name", "int"), ("needed", "string"))
    client.register_schema(subject, Schema(other, "AVRO"))
    with pytest.raises(SchemaChangeError) as refused:
        pipeline.run()
    for told in ("name is string, and int there", "no field amount", "its field needed, which is"):
        assert told in str(refused.value)
    number = client.register_schema(subject, Schema(PERSONS, "AVRO"))
    pipeline.run()
    (message,) = messages(bench)
    assert message.value()[:5] == b"\0" + number.to_bytes(4, "big")  # type: ignore[index]
    assert message.key() == b"1"
    context = SerializationContext(topic_of(bench), MessageField.VALUE)
    assert AvroDeserializer(client)(message.value(), context) == {
        "name": "big",
        "amount": Decimal("1.00"),
        "remark": None,
        "at": datetime(2026, 1, 31, 12, 0, 0, 123000, UTC),
    }
    letters = read(bench.topic.bootstrap_servers, f"{topic_of(bench)}._dead_letters")
    said = {headers(letter)["_eo_error"].decode() for letter in letters}
    assert any("'name' holds a text that is no symbol of the registered" in s for s in said)
    assert any("'at' holds null, which the registered schema does not" in s for s in said)
    assert client.get_versions(subject) == [1, 2], "nothing was registered"


INT, TEXT = T.IntegerType(), T.StringType()


def columns(**types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("kind", "schema", "said"),
    [
        (INT, "long", "a is int, and long there"),
        (INT, {"type": "int", "logicalType": "date"}, "a is int, and date there"),
        (T.DecimalType(4, 2), {"type": "bytes", "logicalType": "decimal", "precision": 4}, "(4,0)"),
        (TEXT, ["null", "string", "int"], "a is a union of several types"),
        (T.ArrayType(INT), {"type": "array", "items": "string"}, "a.item is int, and string"),
        (columns(b=INT), "string", "a is struct<b:int>, and string there"),
    ],
)
def test_why_columns_do_not_fit_a_schema(kind: T.DataType, schema: Any, said: str) -> None:
    faults = misfits(columns(a=kind), whole(record(("a", schema))))
    assert [said in fault for fault in faults] == [True]


def test_every_schema_derived_takes_its_columns_and_no_two_records_have_one_name() -> None:
    several = columns(
        a=columns(b=columns(c=INT)),
        a__b=TEXT,
        d=T.ArrayType(columns(c=T.DateType())),
        e=T.MapType(TEXT, columns(c=T.TimestampNTZType())),
        f=T.ByteType(),
        g=T.FloatType(),
        h=T.BooleanType(),
    )
    assert list(misfits(several, whole(json.dumps(derived(several, "orders_v1.Value"))))) == []
    for name, kind, said in (("a-b", INT, "'a-b' is no name"), ("a", T.NullType(), "type for a")):
        with pytest.raises(SchemaChangeError, match=said):
            derived(columns(**{name: kind}), "orders.Value")

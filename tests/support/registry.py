"""A real schema registry for the session, and topics that are written as other programs write them:
by confluent-kafka's own serializers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import google.type as google_type
import grpc_tools
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from eo_pipeline.embedded.jars import registry_jar
from eo_pipeline.embedded.registry import EmbeddedRegistry
from tests.support.engine import Bench, Coordinates, Topic
from tests.support.servers import STATE

#: A registry that is away is told at once.
QUICKLY = {"max.retries": 0}

#: In front of a value: a zero byte, and the number of its schema.
PREFIX_BYTES = 5


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    folder = tmp_path_factory.mktemp("registry")
    with EmbeddedRegistry(folder, jar=registry_jar(STATE)) as server:
        yield server


@pytest.fixture
def registry(registry_server: EmbeddedRegistry) -> EmbeddedRegistry:
    """Running; a test may have killed it, which empties it."""
    return registry_server.start()


def record(*fields: tuple[str, Any] | tuple[str, Any, Any], name: str = "Order") -> str:
    """An Avro schema: each field is its name and type, and its default if it has one."""
    made = [
        {"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields
    ]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": made})


def serialized(schema: str, value: Mapping[str, Any]) -> bytes:
    """By confluent-kafka's serializer, without what it puts in front."""
    client = SchemaRegistryClient.new_client({"url": "mock://nobody"})
    context = SerializationContext("t", MessageField.VALUE)
    written: bytes = AvroSerializer(client, schema)(dict(value), context)
    return written[PREFIX_BYTES:]


@dataclass
class RegistryTopic:
    """A topic of values with schemas of one kind, and what was written to it."""

    topic: Topic
    client: SchemaRegistryClient
    #: of the serializer, as its users write them
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str]

    def serializer(self, schema: Any) -> Any:
        """Confluent's own."""
        raise NotImplementedError

    def write(
        self, schema: Any, *values: Any, partition: int = 0, key: tuple[Any, Any] | None = None
    ) -> None:
        """Registers ``schema``, as a producer does with its first record, and writes ``values``;
        all with that ``key``, a schema and a value.
        """
        serializer = self.serializer(schema)
        producer = self.topic.producer()
        for value in values:
            headers: list[tuple[str, str | bytes | None]] = []
            context = SerializationContext(self.topic.name, MessageField.VALUE, headers)
            written = serializer(value, context)
            of_key = SerializationContext(self.topic.name, MessageField.KEY, headers)
            key_bytes = self.serializer(key[0])(key[1], of_key) if key else None
            self._send(producer, written, headers, partition, key_bytes)
        assert producer.flush(120) == 0

    def register(self, schema: str) -> int:
        """Registers ``schema`` without a record of it."""
        return self.client.register_schema(f"{self.topic.name}-value", Schema(schema, self.kind))

    def _send(
        self,
        producer: Producer,
        value: bytes,
        headers: Sequence[tuple[str, str | bytes | None]],
        partition: int,
        key: bytes | None = None,
    ) -> None:
        producer.produce(
            self.topic.name,
            value=value,
            key=key,
            headers=list(headers),
            partition=partition,
            on_delivery=self.topic._delivered,
        )

    @property
    def written(self) -> set[Coordinates]:
        return self.topic.written


class AvroTopic(RegistryTopic):
    """Of Avro."""

    kind = "AVRO"

    def serializer(self, schema: str) -> Any:
        """Takes dictionaries."""
        return AvroSerializer(self.client, schema, conf=dict(self.settings))


class JsonTopic(RegistryTopic):
    """Of JSON with a JSON Schema."""

    kind = "JSON"

    def serializer(self, schema: str) -> Any:
        """Takes dictionaries."""
        return JSONSerializer(schema, self.client, conf=dict(self.settings))


class ProtobufTopic(RegistryTopic):
    """Of Protobuf; its messages are those of :func:`messages`."""

    kind = "PROTOBUF"

    def write(
        self, schema: Any, *values: Any, partition: int = 0, key: tuple[Any, Any] | None = None
    ) -> None:
        """``schema`` is a message class, ``values`` are its fields."""
        made = (schema(**value) for value in values)
        super().write(schema, *made, partition=partition, key=key)

    def serializer(self, schema: Any) -> Any:
        """Takes messages of the class ``schema``."""
        settings = {"use.deprecated.format": False, **self.settings}
        return ProtobufSerializer(schema, self.client, settings)


def messages(text: str, **others: str) -> Callable[[str], Any]:
    """The classes of the messages in a .proto file, by their full names, as protoc makes them;
    ``others`` are the files that it imports.
    """
    folder = Path(tempfile.mkdtemp(prefix="eo-proto-"))
    for name, content in {"shop": text, **others}.items():
        (folder / f"{name}.proto").write_text(content)
    google = Path(google_type.__path__[0]).parents[1]
    tools = Path(grpc_tools.__file__).parent / "_proto"
    out = folder / "out"
    asked = [f"-I{each}" for each in (folder, tools, google)]
    code = protoc.main(
        ["protoc", *asked, "--include_imports", f"--descriptor_set_out={out}", "shop.proto"]
    )
    assert code == 0
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.fixture
def orders(events: Topic, registry: EmbeddedRegistry) -> AvroTopic:
    return AvroTopic(events, SchemaRegistryClient({"url": registry.url}))


@pytest.fixture
def avro_bench(bench: Bench, registry: EmbeddedRegistry) -> Bench:
    """The bench's pipeline, reading Avro behind the registry."""
    return behind_registry(bench, registry, "avro")


def behind_registry(bench: Bench, registry: EmbeddedRegistry, value_format: str) -> Bench:
    """The bench's pipeline, reading so."""
    source = {k: v for k, v in bench.config["source"].items() if k != "value_schema"}
    source |= {"value_format": value_format, "registry": {"url": registry.url, "client": QUICKLY}}
    return Bench(bench.topic, bench.table, {**bench.config, "source": source})

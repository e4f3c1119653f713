"""Avro and Protobuf beside JSON, and many writers' schemas beside one:
``python -m benchmarks.bench_formats``.

Starts Kafka, a schema registry and a warm Spark of its own. The same records stand in one topic as
JSON, in another as Avro and in one as Protobuf; in a further one, of more columns, all are written
with one schema, in the last, of the same columns, with twenty versions of it in turn. A pipeline
reads each to its end into a Parquet table, one topic after the other, again and again: they share
the machine's moods, so look at the ratios. What counts is the processor time that Spark takes, its
Python workers too, of which others on the machine take nothing. Avro is to take at most as much as
JSON, twenty schemas at most 1.5 times what one takes; Protobuf, which is decoded in Python workers,
at most 2.5 times what JSON takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from benchmarks.suite.topic import create, put
from eo_pipeline.embedded.jars import kafka_broker_jars, registry_jar
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark.connector import spark_connector_jars

STATE = Path(__file__).parents[1] / ".eo"
PARTITIONS = 8
VERSIONS = 20

#: Rounds until the server has compiled what it runs.
WARM_UP = 2

#: Name by name the type in DDL and in Avro.
FIELDS: Mapping[str, tuple[str, Any]] = {
    "id": ("BIGINT NOT NULL", "long"),
    "at": ("TIMESTAMP", {"type": "long", "logicalType": "timestamp-micros"}),
    "carrier": ("STRING", "string"),
    "flight": ("INT", "int"),
    "origin": ("STRING", "string"),
    "dest": ("STRING", "string"),
    "distance": ("DOUBLE", "double"),
    "delay": ("INT", ["null", "int"]),
    "note": ("STRING", "string"),
}

#: The types of the same in Protobuf; any may be absent.
MESSAGE = ("int64", "at", "string", "int32", "string", "string", "double", "int32", "string")

#: Of topic, the ratio's divisor and the most it is to be.
GOALS = {"avro": ("json", 1.0), "protobuf": ("json", 2.5), "twenty": ("one", 1.5)}


class Took(NamedTuple):
    """Seconds of Spark's processor time, and of the clock."""

    cpu: float
    wall: float


def record(n: int) -> dict[str, Any]:
    """About 200 bytes as JSON; ``at`` in microseconds."""
    return {
        "id": n,
        "at": 1_356_998_400_000_000 + n * 1_000_000,
        "carrier": "UA",
        "flight": n % 5000,
        "origin": "EWR",
        "dest": "IAH",
        "distance": n % 4000 + 0.5,
        "delay": n % 60 - 10 if n % 7 else None,
        "note": f"{n:040}",
    }


def schema(version: int) -> str:
    """With so many fields more than :data:`FIELDS`."""
    fields = [{"name": name, "type": avro} for name, (_, avro) in FIELDS.items()]
    more = [{"name": f"more_{n}", "type": "int", "default": n} for n in range(version)]
    return json.dumps({"type": "record", "name": "Event", "fields": [*fields, *more]})


def as_json(n: int) -> bytes:
    value = record(n)
    seconds, micros = divmod(value["at"], 1_000_000)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return json.dumps({**value, "at": f"{at}.{micros:06}Z"}).encode()


def as_avro(url: str, topic: str, versions: list[int]) -> Callable[[int], bytes]:
    """By confluent-kafka's serializer, one version after the other."""
    client = SchemaRegistryClient({"url": url})
    serializers = [AvroSerializer(client, schema(version)) for version in versions]
    context = SerializationContext(topic, MessageField.VALUE)
    more = {f"more_{n}": n for n in range(VERSIONS)}

    def encode(n: int) -> bytes:
        value: bytes = serializers[n % len(serializers)]({**record(n), **more}, context)
        return value

    return encode


def as_protobuf(url: str, topic: str) -> Callable[[int], bytes]:
    """By confluent-kafka's serializer."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    event = file.message_type.add(name="Event")
    for number, (name, kind) in enumerate(zip(FIELDS, MESSAGE, strict=True), start=1):
        field = event.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL)
        if kind == "at":
            field.type, field.type_name = kinds.TYPE_MESSAGE, ".google.protobuf.Timestamp"
        else:
            field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            field.proto3_optional, field.oneof_index = True, len(event.oneof_decl)
            event.oneof_decl.add(name=f"_{name}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))
    client = SchemaRegistryClient({"url": url})
    serialize = ProtobufSerializer(make, client, {"use.deprecated.format": False})
    context = SerializationContext(topic, MessageField.VALUE)

    def encode(n: int) -> bytes:
        values = record(n)
        seconds, micros = divmod(values["at"], 1_000_000)
        at = {"seconds": seconds, "nanos": micros * 1000}
        value: bytes = serialize(make(**{**values, "at": at}), context)
        return value

    return encode


def fill(servers: str, topic: str, records: int, encode: Callable[[int], bytes]) -> None:
    create(servers, topic, PARTITIONS)
    # neighbours in a partition are of all versions
    put(servers, topic, ((encode(n), n // VERSIONS % PARTITIONS) for n in range(records)))


@contextmanager
def filled(scratch: Path, records: int) -> Iterator[tuple[Mapping[str, Any], EmbeddedSpark]]:
    """The source's fields by topic, and a Spark server."""
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka(scratch / "kafka", jars=kafka_broker_jars(STATE)))
        registry = stack.enter_context(
            EmbeddedRegistry(scratch / "registry", jar=registry_jar(STATE))
        )
        jars = spark_connector_jars(STATE)
        spark = stack.enter_context(EmbeddedSpark(scratch / "spark", jars=jars))
        ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in FIELDS.items())
        by_registry = {"value_format": "avro", "registry": {"url": registry.url}}
        fill(kafka.bootstrap_servers, "json", records, as_json)
        encode = as_protobuf(registry.url, "protobuf")
        fill(kafka.bootstrap_servers, "protobuf", records, encode)
        for topic, versions in (
            ("avro", [0]),
            ("one", [VERSIONS]),
            ("twenty", [*range(1, VERSIONS + 1)]),
        ):
            encode = as_avro(registry.url, topic, versions)
            fill(kafka.bootstrap_servers, topic, records, encode)
        common = {"bootstrap_servers": kafka.bootstrap_servers, "max_records": None}
        formats = {
            "json": {"value_schema": ddl},
            "protobuf": {**by_registry, "value_format": "protobuf"},
            **dict.fromkeys(("avro", "one", "twenty"), by_registry),
        }
        yield {t: {**common, "topics": [t], **f} for t, f in formats.items()}, spark


def run(source: Mapping[str, Any], spark: EmbeddedSpark, folder: Path, records: int) -> Took:
    """One pipeline from the beginning of its topic to the end."""
    pipeline = Pipeline.from_config(
        {
            "name": "bench",
            "source": source,
            "sink": {"type": "parquet", "path": str(folder / "table")},
            "staging": str(folder / "staging"),
            "inline_records": 0,
            "spark": {"remote": spark.remote},
        }
    )
    cpu, wall = spent(spark.pid), time.perf_counter()
    head = pipeline.run().head
    took = Took(spent(spark.pid) - cpu, time.perf_counter() - wall)
    if head.counts.rows_total != records:
        raise RuntimeError(f"{head.counts.rows_total} rows of {records} records")
    return took


def spent(pid: int) -> float:
    """Seconds of processor time of a process and all below it, those that have ended too."""
    process = psutil.Process(pid)
    alive = [process, *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:4]) for each in alive)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        with filled(scratch, options.records) as (sources, spark):
            took: dict[str, list[Took]] = {topic: [] for topic in sources}
            for number in range(WARM_UP + options.rounds):
                for topic, source in sources.items():
                    folder = scratch / f"{topic}-{number}"
                    took[topic].append(run(source, spark, folder, options.records))
    report({topic: each[WARM_UP:] for topic, each in took.items()})


def report(took: Mapping[str, list[Took]]) -> None:
    """Medians, and the ratios round by round."""
    for topic, rounds in took.items():
        cpu, wall = (statistics.median(each) for each in zip(*rounds, strict=True))
        sys.stdout.write(f"{topic:>8}: {cpu:6.2f} s of Spark's processor time, {wall:6.2f} s\n")
    for topic, (other, most) in GOALS.items():
        pairs = list(zip(took[topic], took[other], strict=True))
        cpu = statistics.median(a.cpu / b.cpu for a, b in pairs)
        wall = statistics.median(a.wall / b.wall for a, b in pairs)
        sys.stdout.write(
            f"{topic} / {other}: {cpu:.2f} by processor time, {wall:.2f} by the clock; "
            f"at most {most:.2f}\n"
        )


if __name__ == "__main__":
    main()

"""Records made to hurt their reader: each costs no more than its size, and ends nothing.

Half of a batch are good records, and half are drawn: good ones that were cut, spliced and
repeated, and lengths, counts, digits and depths that promise more than the record holds.
"""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from eo_pipeline.batch.decode import decode
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.formats.wire_format import ReadSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.spark import SparkSettings
from tests.batch.frames import kafka_frame
from tests.support.registry import messages, record, serialized

pytestmark = pytest.mark.slow

#: Of each seed and format, as many good ones again.
DRAWN = 400

#: Of a batch, however hostile: reading as many good records takes less than a second.
SECONDS_MAX = 60

JSON_SCHEMA = (
    "id BIGINT NOT NULL, amount DECIMAL(10,2), x DOUBLE, name STRING, at TIMESTAMP, "
    "place STRUCT<lat: DOUBLE, tags: MAP<STRING, DECIMAL(20,4)>>, "
    "lines ARRAY<STRUCT<price: DECIMAL(4,1)>>"
)
AVRO_SCHEMA = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("raw", ["null", "bytes"]),
    ("amount", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}]),
    ("at", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("tags", {"type": "map", "values": "string"}),
    ("lines", {"type": "array", "items": json.loads(record(("sku", "string"), name="Line"))}),
    ("sizes", {"type": "array", "items": {"type": "fixed", "name": "Size", "size": 4}}),
)
PROTOBUF_SCHEMA = (
    'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; '
    'import "google/protobuf/duration.proto"; import "google/protobuf/wrappers.proto"; '
    "message Place { double lat = 1; repeated string tags = 2; } message Row { int64 id = 1; "
    "string name = 2; bytes raw = 3; Place place = 4; map<string, int64> counts = 5; "
    "repeated int32 packed = 6; google.protobuf.Timestamp at = 7; "
    "google.protobuf.Duration took = 8; "
    "google.protobuf.StringValue said = 9; oneof one { string a = 10; Place b = 11; } }"
)


def varint(value: int) -> bytes:
    """``value`` modulo 2**64, in the groups of seven bits that Avro and Protobuf share."""
    value &= 2**64 - 1
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def zigzag(value: int) -> bytes:
    return varint(value << 1 ^ value >> 63)


#: Numbers that stand where a length, a count, a time or an index is expected.
NUMBERS = [-(2**63), -(2**31), -1, 0, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1]


def good_json(n: int) -> bytes:
    value = {"id": n, "amount": 1.25, "x": 0.5, "name": "é\U0001f600", "at": "2026-01-31T08:30:00Z"}
    value |= {"place": {"lat": 1.5, "tags": {"a": 1.5}}, "lines": [{"price": 1.5}, None]}
    return json.dumps(value).encode()


def hostile_json(chance: random.Random, n: int) -> bytes:
    many = chance.choice([100, 1000, 100_000])
    field = chance.choice(["amount", "x", "id", "at", "name", "price"])
    strange = chance.choice(["NaN", "-Infinity", "+1", "01", ".5", "0x1"])
    number = chance.choice(
        ["1e" + "9" * chance.randint(1, 12), "-1e-" + "9" * 10, "9" * many, "0." + "0" * many + "1"]
    )
    numbered = ", ".join(f'"f{i}": {i}' for i in range(many // 10))
    again = ", ".join(f'"id": {i}' for i in range(many // 10))
    records = [
        f'"{field}": {number}',
        f'"{field}": {strange}',
        f'"place": {{"lat": {number}, "tags": {{"a": {number}}}}}',
        f'"lines": [{{"price": {number}}}]',
        '"new": ' + "[" * many + "]" * many,
        '"new": ' + "[" * many,
        '"place": ' + '{"place": ' * many + "1" + "}" * many,
        numbered,
        again,
        '"name": "\\ud83d' + "\\u0000" * (many // 10) + '"',
        '"' + "k" * many + '": 1',
    ]
    return f'{{"id": {n}, {chance.choice(records)}}}'.encode()


def good_avro(n: int) -> bytes:
    value = {"id": n, "name": "é", "raw": b"\0", "amount": None, "at": None, "tags": {"a": "b"}}
    return serialized(AVRO_SCHEMA, {**value, "lines": [{"sku": "x"}], "sizes": []})


def hostile_avro(chance: random.Random, n: int) -> bytes:
    """Each field as it is until one that is not; what follows does not matter."""
    number = zigzag(chance.choice(NUMBERS))
    head, none = zigzag(n), b"\0"
    records = [
        head + number,  # a member of a union
        head + b"\2" + number,  # a text's length
        head + none + b"\2" + number,
        head + none * 2 + b"\2" + number,  # a decimal's bytes
        head + none * 2 + b"\2" + zigzag(50) + b"\x7f" * 50 + none * 4,  # of too many digits
        head + none * 3 + b"\2" + number + none * 3,  # a time
        head + none * 4 + number,  # entries of a map
        head + none * 4 + zigzag(-1) + number,  # ... and their bytes
        head + none * 5 + number + none,  # items of an array
        head + none * 5 + zigzag(-(2**20)) + none + none,
        head + none * 6 + number + none,
        b"\xff" * chance.choice([9, 10, 11, 1000]),
    ]
    return chance.choice(records)


def good_protobuf(n: int) -> bytes:
    return bytes(
        _ROW(
            id=n, name="é", raw=b"\0", place={"lat": 1.5, "tags": ["a"]}, counts={"a": 1},
            packed=[1, 2], at={"seconds": n}, took={"seconds": 1}, said={"value": "x"}, a="y",
        ).SerializeToString()
    )  # fmt: skip


_ROW = messages(PROTOBUF_SCHEMA)("shop.Row")


def hostile_protobuf(chance: random.Random, n: int) -> bytes:
    head, number = b"\x08" + varint(n), varint(chance.choice(NUMBERS))
    field = chance.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 2**29 - 1, 2**29])
    many = chance.choice([50, 99, 101, 10_000])
    inner = b"\x09" + struct.pack("<d", float("nan"))
    deep = b""
    for _ in range(min(many, 500)):
        deep = b"\x22" + varint(len(deep)) + deep
    records = [
        head + varint(field << 3 | 2) + number,  # a length
        head + varint(field << 3 | chance.randrange(8)) + number,
        head + varint(field << 3 | 3) * many,  # groups that never end
        head + varint(15 << 3 | 3) * many + varint(15 << 3 | 4) * many,
        head + deep,
        head + b"\x3a" + varint(len(number) + 1) + b"\x08" + number,  # a time's seconds
        head + b"\x42" + varint(len(number) + 1) + b"\x10" + number,  # a duration's nanoseconds
        head + (b"\x22" + varint(len(inner)) + inner) * many,  # a message again and again
        head + b"\x32" + varint(many) + b"\x80" * many,  # packed numbers without end
        head + b"\x12\x02\xff\xfe",
        head + b"\x2a\x00" * many,  # entries of a map that have nothing
        b"\xff" * chance.choice([9, 10, 11, 1000]),
    ]
    return chance.choice(records)


Maker = Callable[[random.Random, int], bytes]

#: Of each format its settings, a good record, a hostile one.
FORMATS: dict[str, tuple[dict[str, Any], Callable[[int], bytes], Maker]] = {
    "json": ({"value_schema": JSON_SCHEMA}, good_json, hostile_json),
    "json, strict": (
        {"value_schema": JSON_SCHEMA, "unknown_fields": "fail"},
        good_json,
        hostile_json,
    ),
    "json, kept": (
        {"value_schema": JSON_SCHEMA, "unknown_fields": "keep"},
        good_json,
        hostile_json,
    ),
    "avro": ({"value_format": "avro", "value_schema": AVRO_SCHEMA}, good_avro, hostile_avro),
    "protobuf": (
        {"value_format": "protobuf", "value_schema": PROTOBUF_SCHEMA, "message": "Row"},
        good_protobuf,
        hostile_protobuf,
    ),
}


def damaged(chance: random.Random, value: bytes) -> bytes:
    """``value`` cut, spliced, repeated or with some of its bits turned."""
    at, cut = chance.randrange(len(value)), chance.choice([0, 0, 1, 2, 5])
    splice = chance.choice(
        [b"", b"\0", b"\xff" * 4, bytes([chance.randrange(256)]), value[: at + 1]]
    )
    value = value[:at] + splice + value[at + cut :]
    return value[: chance.randrange(len(value))] if value and chance.random() < 0.2 else value


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_records_cost_no_more_than_their_size(
    spark: SparkSession, name: str, seed: int
) -> None:
    settings, good, hostile = FORMATS[name]
    chance = random.Random(f"{name} {seed}")
    values: dict[int, bytes] = {2 * n: good(n) for n in range(DRAWN)}
    for n in range(DRAWN):
        drawn = hostile(chance, n)
        values[2 * n + 1] = damaged(chance, good(n)) if chance.random() < 0.4 else drawn
    source = KafkaSource(bootstrap_servers="h:1", topics=("t",), **settings)
    frame = kafka_frame(spark, [values[n] for n in sorted(values)])
    for native in (True, False) if name.startswith("json") else (False,):
        began = time.monotonic()
        both = decode(frame, source, ReadSchemas(None), native=native)
        letters = {
            row["offset"]: row["error"] for row in both.dead_letters(1).toArrow().to_pylist()
        }
        rows = both.good(both.all).toArrow()  # Avro's texts are judged in front of the sink
        took = time.monotonic() - began
        offsets = [kafka["offset"] for kafka in rows["_kafka"].to_pylist()]
        assert sorted([*offsets, *letters]) == sorted(values), "each is a row or a bad record, once"
        assert not letters.keys() & set(range(0, 2 * DRAWN, 2)), "a good record is a row"
        assert all(letters.values()), "a reason stands with each"
        assert took < SECONDS_MAX

"""Rows for a Kafka topic are JSON objects, made by the tasks that read the records: byte for byte
what Spark's own plan makes of them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from eo_pipeline.sinks.kafka import KafkaSink
from tests.batch.test_fast_path import VALUES, WIDE, World, by_chance, record, spark, world

__all__ = ["spark", "world"]

_LINEAGE = ("_eo_topic", "_eo_partition", "_eo_offset")

#: What a JSON writer may escape, or not, and how.
TEXTS = [
    "/",
    "\\u007f",
    "\\u0001\\u001f",
    "\\b\\f\\r\\t",
    "\\u2028\\u2029",
    "<&>'",
    "\\ud83d\\ude00",
    "\\\\",
]


def sink(**more: Any) -> KafkaSink:
    return KafkaSink(bootstrap_servers="127.0.0.1:1", topic="into", **more)


@pytest.mark.parametrize("held", [False, True])
def test_every_value_of_every_type_is_written_as_spark_writes_it(world: World, held: bool) -> None:
    for n, values in enumerate(VALUES.values()):
        lines = [[v if m == n else "" for m in range(len(VALUES))] for v in [*values, "null"]]
        world.write([record(line) for line in lines], partition=n % 4)
    world.write([record([f'"{text}"']) for text in TEXTS])
    world.write(by_chance(7, 500), partition=1)

    direct, _ = world.both(world.stager(WIDE, sink()), held=held)

    first = json.loads(direct.table["_eo_value"][0].as_py())
    assert [*first] == [*(f"c{n}" for n in range(len(VALUES))), "_eo_checkpoint", *_LINEAGE]
    assert direct.table.column_names == ["_eo_value", "_eo_checkpoint", *_LINEAGE]


@pytest.mark.core(only=["True-STRING-null-None"])
@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        ("STRING", '"é"', "é".encode()),
        ("STRING", '""', b""),
        ("BIGINT", "-12", b"-12"),
        ("TINYINT", "7", b"7"),
        ("STRING", "null", None),
    ],
)
@pytest.mark.parametrize("held", [False, True])
def test_a_key_is_the_bytes_of_its_column_and_not_in_the_object(
    world: World, kind: str, value: str, key: bytes | None, held: bool
) -> None:
    world.write([f'{{"n": 1, "k": {value}}}'.encode()] * 3)

    direct, _ = world.both(world.stager(f"n INT, k {kind}", sink(key="k")), held=held)

    assert direct.table["_eo_key"].to_pylist() == [key] * 3
    assert all('"k"' not in text for text in direct.table["_eo_value"].to_pylist())


@pytest.mark.parametrize(
    "more",
    [
        {"value": "s"},
        {"headers": {"h": "s"}},
        {"timestamp": "at"},
        {
            "value_format": "avro",
            "registry": {"url": "http://127.0.0.1:1"},
        },
    ],
)
def test_records_of_other_parts_are_made_by_sparks_plan(world: World, more: Any) -> None:
    world.write([b'{"s": "a"}'])
    assert world.directly(world.stager("s STRING, at TIMESTAMP", sink(**more))) is None


def test_numbers_and_times_are_those_of_the_json_writer_whatever_the_session_says(
    world: World,
) -> None:
    world.write([b'{"at": "1999-12-31T23:59:59.123456Z", "d": 0.0000000, "x": 1e21}'])
    names = {
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.jsonGenerator.ignoreNullFields": "true",
    }
    for name, value in names.items():
        world.spark.conf.set(name, value)
    try:
        direct, _ = world.both(
            world.stager("at TIMESTAMP, d DECIMAL(10,7), x DOUBLE, n INT", sink())
        )
    finally:
        for name in names:
            world.spark.conf.unset(name)
    [text] = direct.table["_eo_value"].to_pylist()
    assert text.startswith('{"at":"1999-12-31T23:59:59.123456Z","d":')
    assert '"n":null' in text

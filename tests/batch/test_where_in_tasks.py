"""Conditions of tables are evaluated by the tasks that read the records, as by Spark's own plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.split import read_together
from eo_pipeline.batch.stage import Stager
from eo_pipeline.batch.tables import TablesStager
from tests.batch.test_fast_path import World, spark
from tests.support.engine import Topic

__all__ = ["spark"]

SCHEMA = "id BIGINT NOT NULL, kind STRING"

CONDITIONS = [
    "headers['kind'] = 'a'",
    'value like \'%"kind": "b"%\' -- its own',
    "key = 'k' and offset % 2 = 0",
    "timestamp > '2001-01-01' and partition < 2",
    "get_json_object(value, '$.kind') is null",
    "cast(null as boolean)",
    "exists(map_keys(headers), name -> name = 'more') or topic = 'another'",
    "true",
]


@pytest.fixture
def world(spark: SparkSession, events: Topic, tmp_path: Path) -> World:
    made = World(spark, events, tmp_path)
    for number in range(300):
        kind = "abc"[number % 3]
        headers: Sequence[tuple[str, bytes | None]] = [("kind", b"x"), ("kind", kind.encode())]
        if number % 7 == 0:
            headers = [*headers, ("more", None)]
        value = b'{"id": %d, "kind": "%s"}' % (number, kind.encode())
        if number % 50 == 0:
            value = b"no JSON, "
        made.write([value], number % 4, key=b"k" if number % 5 else None, headers=headers)
    made.write([None, b"\xff"], partition=3, headers=[("kind", b"a")])
    return made


def lenient(world: World, where: str) -> Stager:
    stager = world.stager(SCHEMA, on_bad_record="dead_letter")
    return replace(stager, where=where, had_bad_records=True)


@pytest.mark.parametrize("where", CONDITIONS)
def test_records_of_a_condition_are_staged_as_by_the_plan(world: World, where: str) -> None:
    direct, _ = world.both(lenient(world, where))
    total = direct.counts.records
    assert 0 <= total <= 302
    assert direct.counts.rows + direct.counts.dead_letters == total


@pytest.mark.parametrize("where", CONDITIONS)
def test_so_they_are_below_a_transform(world: World, where: str) -> None:
    def twice(records: DataFrame) -> DataFrame:
        return records.select((F.col("id") * 2).alias("id"), "kind", "_kafka")

    stager = replace(lenient(world, where), transform=twice)
    entry, attempt = world.entry(), world._attempt()
    decoder = stager._native_decoder(world.spark, entry, None, None)
    assert decoder is not None
    staged, _ = stager._stage_by_tasks(world.spark, decoder, entry, attempt)
    assert isinstance(staged, tuple)
    output, counts = staged
    plan = world.by_plan(stager)
    assert counts == plan.counts
    assert output.rows is not None
    assert output.rows.rows == plan.rows.rows


@pytest.mark.parametrize(
    "where",
    [
        "timestamp < current_timestamp()",
        "rand() < 2",
    ],
)
def test_what_is_of_more_than_one_record_is_left_to_the_plan(world: World, where: str) -> None:
    stager = lenient(world, where)
    assert world.directly(stager) is None
    assert stager._native_decoder(world.spark, world.entry(), None, None) is None
    assert world.by_plan(stager).counts.records > 200


#: Conditions of many tables, most of which compare one expression with a text.
MANY = [
    *(f"headers['kind'] = '{kind}'" for kind in "abcdefghij"),
    "headers['kind'] = 'a' -- once more",
    *(f"key = 'k' and get_json_object(value, '$.id') = '{number}'" for number in range(60, 120)),
    # which fails for a key that is no number
    *(f"key <> 'k' and cast(cast(key as int) as string) = '{number}'" for number in range(10)),
    "key = 'k' and headers['kind'] = 'b' and offset % 2 = 0",
    "'c' = headers['kind'] or key = 'none'",
    "topic = 'another'",
]


def taken_by_both(world: World, wheres: Sequence[str]) -> Mapping[str, int]:
    """How many records tables with these conditions take, by the tasks as by the plan."""
    stagers = {str(n): lenient(world, where) for n, where in enumerate(wheres)}
    entry = world.entry()
    parts = dict.fromkeys(stagers, entry)
    tables = TablesStager(world.stager(SCHEMA).source, stagers, "ignore")
    together = read_together(world.spark, tables.source, stagers, parts, entry, world._attempt())
    assert together is not None
    plan = tables.count(world.spark, entry.pipeline, entry.ranges, entry.topic_ids)
    assert together.counted["taken"] == plan.taken
    assert together.counted["rest"] == plan.rest
    assert plan.taken["0"] == together.staged["0"][1].records
    return plan.taken


def test_many_tables_take_the_records_that_they_take_by_the_plan(world: World) -> None:
    taken = taken_by_both(world, MANY)
    assert taken["0"] == taken["10"] > 100
    assert sum(taken[str(n)] for n in range(11, 71)) > 40


#: Values of which a task reads fields itself, or leaves them to Spark's function.
VALUES = [
    b'{"kind": "a", "more": {"kind": "b", "list": [1, -2.5e3, {"x": [true, null]}]}}',
    b' {"more" : [] , "kind" : "a\\u00e9\\n\\"" }\n',
    b'{"k\\u0069nd": "a"}',
    b'{"kind": null, "name": "b"}',
    b'{"kind": null, "kind": "a"}',
    b'{"kind": "a", "kind": "b"}',
    b'{"name": "a", "kind": 7}',
    b'{"kind": 7.50}',
    b'{"kind": true}',
    b'{"kind": {"a": [1, 2.0]}}',
    b'{"kind": ["a", "b"]}',
    b'{"kind": "a"} and more',
    b'{"kind": "a", "more": 01}',
    b'{"kind": "a", "more": [1,}',
    b'{"kind": "a", "more": {"x": }',
    b'{"kind": "a", "more": tru}',
    b'{"kind": "a", more: 1}',
    b"{'kind': 'a'}",
    b'{"kind": "\xff"}',
    b'{"kind": "a", "more": "\xc3"}',
    b'{"kind": "a\x01"}',
    b'{"kind": ""}',
    b'{"kind": "\\ud83d\\ude00", "name": "\\ud83d"}',
    b'{"kind": "a", "more": ' + b"[" * 20 + b"]" * 20 + b"}",
    b'{"more": {}}',
    b"{}",
    b"[]",
    b'["kind", "a"]',
    b'"a"',
    b"{",
    b"}",
    b"",
    None,
]


def test_a_field_of_a_value_is_what_spark_makes_of_it(
    spark: SparkSession, events: Topic, tmp_path: Path
) -> None:
    world = World(spark, events, tmp_path)
    for value in VALUES:
        world.write([value])
    kind, name = (f"get_json_object(value, '$.{field}')" for field in ("kind", "name"))
    rows = spark.createDataFrame([(value,) for value in VALUES], "value binary")
    texts = rows.select(F.expr(kind.replace("value", "cast(value as string)")).alias("text"))
    met = sorted({row["text"] for row in texts.collect() if row["text"] is not None})
    assert {"a", "7", "true", '["a","b"]', 'aé\n"', ""} < {*met}
    escaped = [text.replace("\\", "\\\\").replace("'", "\\'") for text in met]
    wheres = [f"{kind} = '{text}'" for text in escaped]
    wheres += [
        f"{kind} is null",
        f"{kind} = 'a' and {name} = 'b'",
        f"{kind} is null and {name} = 'b'",
    ]
    wheres += [f"{name} = '{text}'" for text in "ab"] + [
        "get_json_object(value, '$.more.kind') = 'b'"
    ]
    taken = taken_by_both(world, wheres)
    assert len(taken) == len(wheres)
    assert sum(taken.values()) > len(VALUES)

"""Tables from one read: the tasks that read make the rows of each as it would by itself."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.split import Split, read_together
from eo_pipeline.batch.stage import Stager, Transform
from eo_pipeline.batch.tables import TablesStager
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import BadRecordError, TransformError
from eo_pipeline.kafka.fetch import Fetched, fetched
from eo_pipeline.ledger.entry import Counts
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.spark import SparkSettings
from tests.batch.test_decoded_source import SCHEMA, TRANSFORMS, value
from tests.batch.test_fast_path import Staged, World, spark
from tests.support.engine import Topic, spark_jars

__all__ = ["spark"]

RECORDS = 400


@pytest.fixture
def world(spark: SparkSession, events: Topic, tmp_path: Path) -> World:
    """Records, of which every fiftieth is bad, with a kind for a key."""
    made = World(spark, events, tmp_path)
    for number in range(RECORDS):
        headers = [("h", b"1")] if number % 2 else []
        text = value(number) if number % 50 < 49 else b"no JSON"
        made.write([text], number % 4, key=b"abc"[number % 3 :][:1], headers=headers)
    return made


def derived(records: DataFrame) -> DataFrame:
    return records.where("id % 5 <> 0").select(F.upper("name").alias("name"), "id", "_kafka")


def in_pandas(records: DataFrame) -> DataFrame:
    def doubled(batches: Iterable[Any]) -> Iterable[Any]:
        for batch in batches:
            batch["id"] = batch["id"] * 2
            yield batch

    coordinates = "struct<topic: string, partition: int, offset: bigint>"
    kafka = F.struct("_kafka.topic", "_kafka.partition", "_kafka.offset").alias("_kafka")
    return records.select("id", kafka).mapInPandas(doubled, f"id BIGINT, _kafka {coordinates}")


def with_its_names(records: DataFrame) -> DataFrame:
    names = records.select("name").distinct().select("name", F.lit(1).alias("is_one"))
    return records.join(F.broadcast(names), "name")


def of_a_range(records: DataFrame) -> DataFrame:
    """As many tasks as read, but of other rows."""
    numbers = records.sparkSession.range(0, RECORDS, 1, 2)
    return numbers.join(F.broadcast(records.where("_kafka.partition = 0")), "id")


def never(records: DataFrame) -> DataFrame:
    return records.where(F.lit(False))


#: Whose plans need records of other tasks, or none.
ALONE = {name: TRANSFORMS[name] for name in ("shuffle", "twice", "one task", "sorted")} | {
    "its names": with_its_names,
    "of a range": of_a_range,
    "never": never,
}

TASK_BY_TASK = {
    **{name: made for name, made in TRANSFORMS.items() if name not in ALONE},
    "derived": derived,
    "in pandas": in_pandas,
}


def stager(world: World, transform: Transform | None = None, **source: Any) -> Stager:
    sink = DeltaSink(path=str(world.folder / uuid.uuid4().hex))
    schema = source.pop("value_schema", SCHEMA)
    of = world.stager(
        schema, sink, on_bad_record=source.pop("on_bad_record", "dead_letter"), **source
    )
    return replace(of, transform=transform, had_bad_records=True)


def together(world: World, stagers: Mapping[str, Stager], *, in_memory: bool = False) -> Split:
    entry = world.entry()
    source = next(iter(stagers.values())).source
    parts = {name: replace(entry) for name in stagers}
    attempt = None if in_memory else world._attempt()
    done = read_together(world.spark, source, stagers, parts, entry, attempt)
    assert done is not None
    return done


def same(world: World, done: Split, stagers: Mapping[str, Stager]) -> dict[str, Counts]:
    """The rows, dead letters and counts of tables that one read staged are those of each alone."""
    for name, (output, counts) in done.staged.items():
        assert output.rows is not None
        split = Staged(output.rows, counts, output.dead_letters)
        plan = world.by_plan(stagers[name])
        assert split.counts == plan.counts, name
        assert split.letters == plan.letters
        flat = [field.name for field in plan.rows.schema if not pa.types.is_nested(field.type)]
        by_all = [(column, "ascending") for column in flat]
        assert split.table.sort_by(by_all).equals(
            plan.table.cast(split.rows.schema).sort_by(by_all)
        ), name
    return {name: counts for name, (_, counts) in done.staged.items()}


def test_each_record_makes_the_rows_of_all_tables(world: World) -> None:
    wheres = [None, "key = 'a'", "key <> 'b'", "offset % 2 = 0"]
    stagers = {
        name: replace(stager(world, transform), where=wheres[number % 4])
        for number, (name, transform) in enumerate(TASK_BY_TASK.items())
    }
    stagers["explode"] = replace(stagers["explode"], where=None)
    stagers["nested"] = replace(stager(world), where="key = 'b'")
    stagers["plain"] = stager(world, value_schema="id BIGINT NOT NULL, name STRING")
    assert len(stagers) <= 16
    done = together(world, stagers)
    assert done.staged.keys() == stagers.keys()
    # Hadoop's own local files start processes, for their permissions and those of checksums
    assert not [*world.folder.rglob("*.crc")]
    counts = same(world, done, stagers)
    assert done.counted["taken"]["explode"] == done.counted["records"] == RECORDS
    assert counts["explode"].dead_letters == counts["plain"].dead_letters == RECORDS // 50
    assert counts["explode"].rows > RECORDS > counts["filter"].rows > 0
    assert 0 < counts["key"].rows < RECORDS
    assert counts["nothing"].rows == 0


def test_few_records_make_the_rows_of_all_tables_in_memory(
    spark: SparkSession, events: Topic, tmp_path: Path
) -> None:
    world = World(spark, events, tmp_path)
    for number in range(60):
        world.write([value(number)], number % 4, key=b"abc"[number % 3 :][:1])

    def large(records: DataFrame) -> DataFrame:
        return records.select(F.repeat(F.lit("large"), 1 << 20).alias("text"), "id", "_kafka")

    stagers = {
        name: replace(stager(world, transform), had_bad_records=False)
        for name, transform in {**TASK_BY_TASK, "large": large}.items()
    }
    stagers["key"] = replace(stagers["key"], where="key = 'a'")
    done = together(world, stagers, in_memory=True)
    # a task holds only so many bytes
    assert stagers.keys() - done.staged.keys() == {"large"}
    same(world, done, stagers)


def test_few_records_of_which_one_is_bad_are_fetched_once(
    spark: SparkSession, events: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letters are files of tasks, so each table is staged by itself."""
    world = World(spark, events, tmp_path)
    world.write([*map(value, range(20)), b"no JSON"])
    stagers = {
        "derived": replace(stager(world, derived), had_bad_records=False, where="offset < 9"),
        "filter": replace(stager(world, TRANSFORMS["filter"]), had_bad_records=False),
    }
    fetches = []

    def counted(*of: Any) -> Fetched | None:
        fetches.append(of)
        return fetched(*of)

    monkeypatch.setattr("eo_pipeline.batch.tables.fetched", counted)
    tables = TablesStager(stagers["filter"].source, stagers, "ignore")
    for _ in range(2):
        output, counts = tables.stage(spark, world.entry(), None)
        taken = {name: (of.records, of.dead_letters) for name, of in counts.tables.items()}
        assert taken == {"derived": (9, 0), "filter": (21, 1)}
        rows = {name: of.rows.rows for name, of in output.tables.items() if of.rows}
        assert rows == {"derived": 7, "filter": 7}
    assert len(fetches) == 2


@pytest.mark.parametrize("name", ALONE)
def test_a_plan_that_needs_other_tasks_is_left_to_the_table(world: World, name: str) -> None:
    stagers = {"other": stager(world, ALONE[name]), "derived": stager(world, derived)}
    done = together(world, stagers)
    assert done.staged.keys() == {"derived"}
    same(world, done, stagers)
    staged, _ = stagers["other"].stage(world.spark, world.entry(), world._attempt())
    assert staged.rows is not None
    plan = world.by_plan(stagers["other"])
    assert staged.rows.rows == plan.rows.rows
    # it is not tried again at once
    stagers = {**stagers, "explode": stager(world, TRANSFORMS["explode"])}
    assert together(world, stagers).staged.keys() == {"derived", "explode"}


def test_a_table_that_took_nothing_before_is_prepared_if_it_takes_something(world: World) -> None:
    """A plan takes time to prepare. One that fails stops no checkpoint that has nothing for it."""
    called: list[str] = []

    def idle(records: DataFrame) -> DataFrame:
        called.append("idle")
        raise ValueError("no such thing")

    def late(records: DataFrame) -> DataFrame:
        called.append("late")
        return derived(records)

    stagers = {
        "derived": replace(stager(world, derived), where="key = 'a'", record_bytes=80.0),
        "idle": replace(stager(world, idle), where="key = 'none'"),
        "late": replace(stager(world, late), where="key = 'b'"),
        "nested": replace(stager(world), where="key = 'c'"),
    }
    done = together(world, stagers)
    assert done.staged.keys() == {"derived", "late", "nested"}
    assert called == ["late"]
    same(world, done, stagers)
    with pytest.raises(TransformError, match=r"^table idle: .*no such thing"):
        together(world, {"idle": stagers["idle"], "late": stagers["late"]})


def test_tables_that_fail_at_a_bad_record_name_it(world: World) -> None:
    stagers = {
        "derived": stager(world, derived, on_bad_record="fail"),
        "explode": stager(world, TRANSFORMS["explode"], on_bad_record="fail"),
    }
    with pytest.raises(BadRecordError, match="no JSON"):
        together(world, stagers)


def test_a_record_that_needs_a_judge_is_left_to_the_table(world: World) -> None:
    """The next checkpoint has the judge from the start."""
    stagers = {
        name: replace(stager(world, of), had_bad_records=False)
        for name, of in {"derived": derived, "explode": TRANSFORMS["explode"]}.items()
    }
    entry = world.entry()
    parts = dict.fromkeys(stagers, entry)
    for expected in (set(), {"derived", "explode"}):
        read = world.spark, stagers["explode"].source, stagers, parts, entry, world._attempt()
        done = read_together(*read)
        assert done is not None
        assert done.staged.keys() == expected


#: Of a task's memory 15 pages of 2 MB and what lists their rows leave 32 KB: too little for a sort.
LITTLE_MEMORY = {
    "spark.testing.memory": str(2 * (15 * 2**21 + 2**18 + 2**15)),
    "spark.testing.reservedMemory": "0",
    "spark.memory.fraction": "0.5",
    "spark.memory.storageFraction": "0",
    "spark.buffer.pageSize": "2m",
    "spark.log.level": "INFO",
}


def ordered(records: DataFrame) -> DataFrame:
    return records.sortWithinPartitions("name")


@pytest.mark.slow
@pytest.mark.parametrize("count", [9_000, 40_000], ids=["nearly all memory", "more than memory"])
def test_rows_that_are_held_leave_memory_to_the_plans(
    events: Topic, tmp_path: Path, count: int
) -> None:
    """A plan that sorts needs some, and cannot have the held rows moved to the disk."""
    local = tmp_path / "local"
    settings = {**LITTLE_MEMORY, "spark.local.dir": str(local)}
    jars = spark_jars()
    with EmbeddedSpark(
        tmp_path / "spark", jars=jars, cores="1", memory="1g", settings=settings
    ) as server:
        session = SparkSettings(remote=server.remote).session()
        small = World(session, events, tmp_path)
        chance = random.Random(1)
        small.write(
            b'{"id": %d, "name": "%s"}' % (n, chance.randbytes(1_500).hex().encode())
            for n in range(count)
        )
        transforms = {"ordered": ordered, "python": TRANSFORMS["python"]}
        stagers = {name: stager(small, made) for name, made in transforms.items()}
        done = together(small, stagers)
        assert done.staged.keys() == stagers.keys()
        same(small, done, stagers)
        session.stop()
        log = "".join(file.read_text() for file in (tmp_path / "spark").glob("*.log"))
        assert "spilling sort data" in log
        assert not [file for file in local.rglob("temp_*") if file.is_file()]


AVRO = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}


def test_avro_is_decoded_for_all_tables(spark: SparkSession, events: Topic, tmp_path: Path) -> None:
    world = World(spark, events, tmp_path)
    for number in range(200):
        written = BytesIO()
        fastavro.schemaless_writer(written, AVRO, {"id": number, "name": "ab"[number % 2]})
        value = written.getvalue() if number % 20 else b"\x02"
        world.write([value], number % 4, key=b"ab"[number % 2 :][:1])
    source: dict[str, Any] = {"value_format": "avro", "value_schema": json.dumps(AVRO)}
    stagers = {
        "derived": stager(world, derived, **source),
        "all": stager(world, **source),
        "some": replace(stager(world, derived, **source), where="key = 'a'"),
    }
    done = together(world, stagers)
    assert done.staged.keys() == stagers.keys()
    counts = same(world, done, stagers)
    assert counts["derived"].dead_letters == counts["all"].dead_letters == 10

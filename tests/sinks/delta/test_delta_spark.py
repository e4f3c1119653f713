"""delta-spark reads what the sink wrote, and works on it between our commits."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.spark.maven import Artefact, resolved
from eo_pipeline.testing.all_types import ALL_TYPES
from tests.sinks.delta.delta_world import World, rows_of
from tests.sinks.maintaining import maintain
from tests.support.servers import STATE

pytestmark = pytest.mark.slow

DELTA = Artefact("io.delta", "delta-spark_2.13", "4.0.0")

#: A session of its own: the extension cannot be added to a running one.
SCRIPT = """
import json, os, sys
for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):  # other tests' Spark
    os.environ.pop(name, None)
from pyspark.sql import SparkSession
path, jars, as_of = sys.argv[1:4]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars).config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.databricks.delta.snapshotPartitions", "1")
    .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    .config("spark.sql.shuffle.partitions", "1").config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
found = {}
table = spark.read.format("delta").load(path)
found["rows"] = {str(r[0]): r[1] for r in table.groupBy("_eo_checkpoint").count().collect()}
found["words"] = sorted({r[0] or "null" for r in table.select("word").collect()})
found["files"] = len(table.inputFiles())
found["files_of_2"] = len(table.where("_eo_checkpoint = 2").inputFiles())
found["files_of_day"] = len(table.where("day = date'2013-01-03'").inputFiles())
past = spark.sql(as_of).groupBy("_eo_checkpoint").count()
found["as_of_2"] = {str(r[0]): r[1] for r in past.collect()}
types = spark.read.format("delta").load(path + "_types")
found["types"] = sorted(c for c, _ in types.dtypes)
found["exact"] = str(types.where("exact > 5").select("exact").first()[0])
found["instant"] = types.where("instant > timestamp'2013-01-01 12:30:15.1234'").count()
spark.conf.set("spark.sql.session.timeZone", "America/New_York")
zone = spark.read.format("delta").load(path + "_zone")
found["seconds"] = [r[0] for r in zone.selectExpr("unix_seconds(at)").distinct().collect()]
found["texts"] = sorted(r[0] or "null" for r in zone.select("c").distinct().collect())
spark.conf.set("spark.sql.session.timeZone", "UTC")
spark.sql(f"OPTIMIZE delta.`{path}`")
spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 100")
spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
found["after"] = spark.read.format("delta").load(path).count()
print("FOUND", json.dumps(found))
"""


@pytest.mark.timeout(600)  # a cold JVM, seven Delta commands, and a machine that is shared
def test_delta_spark_reads_skips_and_maintains_the_table(world: World) -> None:
    jars = resolved(DELTA, STATE)
    days = [f"2013-01-0{v}" for v in range(1, 5)]
    world.settings["partition_by"] = ["word"]
    for version, day in enumerate(days, start=1):
        world.forward(
            rows_of(
                version,
                word=pa.array(["a/b c=%:", None, "x"]),
                day=pa.array([day] * 3).cast(pa.date32()),
            ),
            files=False,
        )
    World(Path(f"{world.root}_types")).forward(ALL_TYPES)
    zone = World(Path(f"{world.root}_zone"), {"partition_by": ["at", "c"]})
    instant = pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC)] * 3)
    for version in range(1, 8):
        zone.forward(rows_of(version, at=instant, c=pa.array(["a b=c/ü%20~", "..", None])))
        if version == 6:
            maintain(zone.sink(), "p")
    before = world.history()
    with world.sink().open(world.pipeline) as session:
        past = session.past(before[2])
        assert past is not None
        as_of = past.queries["Spark"]

    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(world.root), ",".join(map(str, jars)), as_of],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.partition("FOUND")[2])

    assert found["rows"] == {"1": 3, "2": 3, "3": 3, "4": 3}
    assert found["as_of_2"] == {"1": 3, "2": 3}, as_of
    assert found["words"] == ["a/b c=%:", "null", "x"]
    assert (found["files"], found["files_of_2"], found["files_of_day"]) == (12, 3, 3)
    assert found["types"] == sorted(ALL_TYPES.column_names)
    assert found["seconds"] == [instant[0].as_py().timestamp()], "whatever the session's zone is"
    assert found["texts"] == ["..", "a b=c/ü%20~", "null"]
    assert found["exact"] == str(10**38 - 1)
    assert found["instant"] == 1
    assert found["after"] == 11
    assert list((world.root / "eo_rows").rglob("*.parquet")) == [], "VACUUM left what OPTIMIZE took"
    # and what Spark did in between hurts neither ledger nor the next checkpoint nor a rewind
    assert world.history() == before
    world.forward(rows_of(5, word=pa.array(["x"] * 3)))
    world.rewind(2)
    assert world.checkpoints() == {1: 2, 2: 3}
    assert {row[CHECKPOINT_COLUMN] for row in world.rows()} == {1, 2}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "table")

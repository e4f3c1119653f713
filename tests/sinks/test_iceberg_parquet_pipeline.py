"""Whole pipelines, Kafka to Spark to an Iceberg table or a Parquet folder, killed in between."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.spark import EmbeddedSpark
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Coordinates, Table, Topic

_COLUMNS = ["_eo_topic", "_eo_partition", "_eo_offset"]


def with_time(df: DataFrame) -> DataFrame:
    """An instant for every record, ten hours apart, from before 1970."""
    return df.withColumn("at", F.timestamp_seconds(F.col("id") * 36_000 - 1_000_000))


def coordinates(table: pa.Table) -> Counter[Coordinates]:
    return Counter(tuple(row.values()) for row in table.select(_COLUMNS).to_pylist())


def iceberg_rows(folder: Path) -> pa.Table:
    catalog = load_catalog("eo", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    try:
        return catalog.load_table("ops.events").scan().to_arrow()
    except NoSuchTableError:
        return pa.table({name: [] for name in _COLUMNS})


def parquet_rows(folder: Path) -> pa.Table:
    files = sorted(folder.glob("checkpoint=*/*.parquet"))
    tables = [pq.ParquetFile(path).read() for path in files]
    nothing = pa.table({name: [] for name in _COLUMNS})
    return pa.concat_tables([nothing, *tables], promote_options="default")


SINKS: dict[str, tuple[dict[str, Any], Callable[[Path], pa.Table]]] = {
    "iceberg": ({"type": "iceberg", "table": "ops.events"}, iceberg_rows),
    "iceberg, partitioned": (
        {"type": "iceberg", "table": "ops.events", "partition_by": ["day(at)", "_eo_partition"]},
        iceberg_rows,
    ),
    "parquet": ({"type": "parquet"}, parquet_rows),
}


@pytest.fixture(params=list(SINKS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def lake(spark_server: EmbeddedSpark, events: Topic, folder: Path, kind: str) -> Bench:
    """An append pipeline to the sink, 100 offsets a checkpoint, small batches through files too."""
    sink, _ = SINKS[kind]
    where = {"path" if sink["type"] == "parquet" else "warehouse": str(folder)}
    config = {
        "name": "events",
        "source": events.source(max_records=100),
        "transform": f"{__name__}:with_time",
        "sink": {**sink, **where},
        "inline_records": 0,
    }
    return Bench(events, Table("unused"), config)


@pytest.fixture
def new_york(lake: Bench) -> Iterator[SparkSession]:
    """A session whose days begin five hours late."""
    session = lake.pipeline().spark.session()
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield session
    session.conf.set("spark.sql.session.timeZone", before or "UTC")


@pytest.mark.core(only=["iceberg-entry_sent"])
@pytest.mark.parametrize(
    "point",
    rest_is_chaos(
        [CrashPoint.PRE_COMMITTED, CrashPoint.ENTRY_SENT, CrashPoint.COMMITTED],
        but=[CrashPoint.ENTRY_SENT],
    ),
)
def test_killed_and_run_again_every_record_is_there_once(
    lake: Bench, kind: str, folder: Path, point: CrashPoint
) -> None:
    _, read = SINKS[kind]
    lake.topic.write(300, partitions=range(4))
    killed = lake.run_in_a_process("--crash-at", point, "2")
    out, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    assert "done" not in out
    assert len(coordinates(read(folder))) in (0, 100)

    report = lake.pipeline().run()

    assert coordinates(read(folder)) == Counter(lake.topic.written)
    history = lake.pipeline().history()
    assert [entry.version for entry in history] == list(range(report.head.version + 1))
    assert sum(entry.counts.rows for entry in history) == 300
    assert report.lag == 0


def test_small_batches_and_files_end_in_one_table(
    lake: Bench, kind: str, folder: Path, new_york: SparkSession
) -> None:
    """Also in another time zone than Iceberg counts its days in."""
    _, read = SINKS[kind]
    lake.topic.write(120, partitions=range(4))
    lake.pipeline().run(spark=lambda: new_york)
    lake.topic.write(80, partitions=range(4))
    lake.pipeline(inline_records=1000).run(spark=lambda: new_york)

    assert coordinates(read(folder)) == Counter(lake.topic.written)
    left = list(folder.rglob("manifest.json"))
    assert left == []

"""Columns that somebody renames, in files that Spark wrote, on each of its ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.iceberg.fields import ids_in, ids_of
from tests.engine import Bench, Table, Topic


def within(df: DataFrame) -> DataFrame:
    """The name within a column too."""
    return df.withColumn("s", F.struct("name", F.struct("id").alias("t")))


def of_many(df: DataFrame) -> DataFrame:
    """The name in an array and in a map too."""
    one = F.struct("name")
    return df.withColumns({"l": F.array(F.array(one)), "m": F.create_map(F.lit("k"), one)})


WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "within": {"transform": f"{__name__}:within"},
    "many": {"transform": f"{__name__}:of_many"},
    "partitioned": {"sink": {"partition_by": ["id"]}},
}


@pytest.fixture(params=list(WAYS))
def lake(
    spark_server: EmbeddedSpark, events: Topic, tmp_path: Path, request: pytest.FixtureRequest
) -> Bench:
    more = WAYS[request.param]
    sink = {"type": "iceberg", "table": "ops.t", "warehouse": str(tmp_path / "lake")}
    config = {
        "name": "events",
        "source": events.source(),
        "inline_records": 0,
        **more,
        "sink": {**sink, **more.get("sink", {})},
    }
    return Bench(events, Table("unused"), config)


def table_of(lake: Bench) -> IcebergTable:
    folder = lake.config["sink"]["warehouse"]
    return load_catalog("eo", type="sql", uri=f"sqlite:///{folder}/catalog.db").load_table("ops.t")


@pytest.mark.core(only=["direct", "within"])
def test_files_have_the_ids_of_the_tables_columns(lake: Bench) -> None:
    lake.topic.write(3)
    lake.pipeline().run()
    table = table_of(lake)
    if "of_many" in str(lake.config.get("transform")):
        assert "schema.name-mapping.default" in table.properties, "found by their names"
        return
    paths = [task.file.file_path for task in table.scan().plan_files()]
    assert paths
    for path in paths:
        assert dict(ids_in(pq.ParquetFile(path.removeprefix("file://")).schema_arrow)) == ids_of(
            table.schema()
        )


def test_a_renamed_column_keeps_its_values(lake: Bench) -> None:
    lake.topic.write(3)
    lake.pipeline().run()
    with table_of(lake).update_schema() as update:
        update.rename_column("name", "full_name")
    lake.topic.write(1)
    with pytest.raises(SchemaChangeError, match="'full_name'"):
        lake.pipeline().run()
    schema = "id BIGINT NOT NULL, full_name STRING"
    lake.pipeline(source={"value_schema": schema}, transform=None).run()
    found = table_of(lake).scan().to_arrow().sort_by("id")["full_name"].to_pylist()
    assert found == ["record 0", "record 1", "record 2", None]

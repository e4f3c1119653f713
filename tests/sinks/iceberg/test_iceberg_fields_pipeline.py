"""Columns that somebody renames, in files that Spark wrote, on each of its ways."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import SchemaChangeError, TableRolledBackError
from eo_pipeline.sinks.iceberg.fields import ids_in, ids_of
from tests.support.engine import Bench, Table, Topic


def within(df: DataFrame) -> DataFrame:
    """The name within a column too."""
    return df.withColumn("s", F.struct("name", F.struct("id").alias("t")))


def of_many(df: DataFrame) -> DataFrame:
    """The name in an array and in a map too."""
    one = F.struct("name")
    return df.withColumns({"l": F.array(F.array(one)), "m": F.create_map(F.lit("k"), one)})


def with_nan(df: DataFrame) -> DataFrame:
    """NaN in the second row."""
    return df.withColumn("d", F.when(F.col("id") == 1, float("nan")).otherwise(0.5))


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


@pytest.mark.core(only=["direct", "many"])
def test_files_have_the_ids_of_the_tables_columns(lake: Bench) -> None:
    lake.topic.write(3)
    lake.pipeline().run()
    table = table_of(lake)
    assert "schema.name-mapping.default" not in table.properties
    paths = [task.file.file_path for task in table.scan().plan_files()]
    assert paths
    for path in paths:
        assert dict(ids_in(pq.ParquetFile(path.removeprefix("file://")).schema_arrow)) == ids_of(
            table.schema()
        )


def test_a_spark_without_our_format_writes_files_without_ids(
    lake: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eo_pipeline.batch.output.has_format", lambda *_: False)
    lake.topic.write(3)
    lake.pipeline().run()
    table = table_of(lake)
    needs = "of_many" in str(lake.config.get("transform"))
    assert ("schema.name-mapping.default" in table.properties) is needs
    assert sorted(table.scan().to_arrow()["name"].to_pylist()) == [f"record {n}" for n in range(3)]


@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_any_text_is_a_partition_and_null_in_a_column_that_takes_none_is_a_bad_record(
    spark_server: EmbeddedSpark, events: Topic, tmp_path: Path, inline_records: int
) -> None:
    sink = {"type": "iceberg", "table": "ops.t", "warehouse": str(tmp_path / "lake")}
    config = {
        "name": "events",
        "source": events.source(value_schema="id BIGINT, name STRING", on_bad_record="dead_letter"),
        "inline_records": inline_records,
        "sink": {**sink, "partition_by": ["name"]},
    }
    lake = Bench(events, Table("unused"), config)
    texts = [None, "__HIVE_DEFAULT_PARTITION__", "", "a/b c=ü%:", "\u0000", "x" * 300, "y" * 9000]
    for number, text in enumerate(texts):
        lake.topic.write_value(json.dumps({"id": number, "name": text}).encode())
    lake.pipeline().run()
    with table_of(lake).update_schema(allow_incompatible_changes=True) as update:
        update._set_column_requirement("id", required=True)
    for number, text in enumerate(texts):
        lake.topic.write_value(json.dumps({"id": number or None, "name": text}).encode())
    counts = lake.pipeline().run().head.counts
    assert (counts.rows, counts.dead_letters) == (len(texts) - 1, 1)
    table = table_of(lake)
    found = table.scan().to_arrow()
    assert Counter(found["name"].to_pylist()) == Counter([*texts, *texts[1:]])
    parts = {task.file.partition[0] for task in table.scan().plan_files()}
    assert parts == {*texts}

    first = table.metadata.snapshots[0].snapshot_id
    assert lake.pipeline().status().blocked == ()
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert isinstance(lake.pipeline().status().blocked[0], TableRolledBackError)
    with pytest.raises(TableRolledBackError, match="`eo rewind 1`"):
        lake.pipeline().run()
    lake.pipeline().rewind(1)
    assert lake.pipeline().run().head.counts.rows == len(texts) - 1


def test_nan_is_no_partition_and_a_bad_record(
    spark_server: EmbeddedSpark, events: Topic, tmp_path: Path
) -> None:
    sink = {"type": "iceberg", "table": "ops.t", "warehouse": str(tmp_path / "lake")}
    config = {
        "name": "events",
        "source": events.source(on_bad_record="dead_letter"),
        "transform": f"{__name__}:with_nan",
        "inline_records": 0,
        "sink": {**sink, "partition_by": ["d"]},
    }
    events.write(3)
    counts = Bench(events, Table("unused"), config).pipeline().run().head.counts
    assert (counts.rows, counts.dead_letters) == (2, 1)


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

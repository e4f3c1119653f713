"""What Spark makes of a result before it is staged for PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from eo_pipeline.errors import ConfigError, SchemaChangeError
from eo_pipeline.sinks.columns import nested_columns, refuse_unknown_types
from eo_pipeline.spark import STAGING_SETTINGS, SparkSettings
from eo_pipeline.staging.rows import StagedFile, StagedTable
from tests.sinks.postgres.postgres_world import World, world

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eo_pipeline.embedded.spark import EmbeddedSpark

__all__ = ["world"]

SCALARS = [
    BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(),
    DecimalType(10, 2), StringType(), StringType("UNICODE_CI"), VarcharType(3), BinaryType(),
    DateType(), TimestampType(), TimestampNTZType(),
]  # fmt: skip

#: A value of each nested type, in Spark's words, and the JSON that PostgreSQL shall hold.
NESTED = {
    "named_struct('a', 1, 'b', cast(null as string))": {"a": 1, "b": None},
    "named_struct('m', 1.10BD, 'x', double('NaN'), 'raw', X'00FF')": {
        "m": 1.1,
        "x": "NaN",
        "raw": "AP8=",
    },
    "named_struct('t', timestamp'2013-01-01 12:00:00.000001 UTC', 'd', date'2013-01-01')": {
        "t": "2013-01-01T12:00:00.000001Z",
        "d": "2013-01-01",
    },
    "named_struct('t', timestamp_ntz'2013-01-01 12:00:00.5')": {"t": "2013-01-01T12:00:00.500000"},
    "map('größe', 1L, 'b', null)": {"größe": 1, "b": None},
    "array(named_struct('a', 'x \"y\" \\n'))": [{"a": 'x "y" \n'}],
    "array(array(1, null), null)": [[1, None], None],
    "cast(null as struct<a int>)": None,
}


def schema(name: str, data_type: DataType) -> StructType:
    return StructType([StructField("id", IntegerType()), StructField(name, data_type)])


@pytest.mark.parametrize(
    "data_type",
    [
        NullType(),
        VariantType(),
        CalendarIntervalType(),
        DayTimeIntervalType(),
        YearMonthIntervalType(),
        ArrayType(NullType()),
        StructType([StructField("inner", VariantType())]),
        MapType(StringType(), DayTimeIntervalType()),
        MapType(DateType(), StringType()),
        MapType(BinaryType(), StringType()),
        MapType(DoubleType(), StringType()),
    ],
    ids=lambda data_type: data_type.simpleString(),
)
def test_a_type_without_a_counterpart_is_refused_by_name_before_anything_is_read(
    data_type: DataType,
) -> None:
    with pytest.raises(SchemaChangeError, match="'odd'"):
        refuse_unknown_types(schema("odd", data_type), "PostgreSQL")


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: scalar.simpleString())
def test_scalars_and_arrays_of_them_stay_what_they_are(scalar: DataType) -> None:
    for data_type in (scalar, ArrayType(scalar)):
        refuse_unknown_types(schema("x", data_type), "PostgreSQL")
        assert nested_columns(schema("x", data_type), has_arrays=True) == []


class TestOnSpark:
    @pytest.fixture
    def spark(self, spark_server: EmbeddedSpark) -> SparkSession:
        session = SparkSettings(remote=spark_server.remote).session()
        for key, value in STAGING_SETTINGS.items():
            session.conf.set(key, value)
        return session

    @pytest.fixture
    def nested(self, spark: SparkSession) -> DataFrame:
        values = ", ".join(f"{text} AS c{n}" for n, text in enumerate(NESTED))
        return spark.sql(f"SELECT {values}, 7 AS `odd ``name``.x`")

    def expected(self) -> list[dict[str, object]]:
        return [{f"c{n}": json for n, json in enumerate(NESTED.values())} | {"odd `name`.x": 7}]

    @pytest.mark.core
    def test_nested_columns_arrive_as_jsonb_from_arrow(
        self, world: World, nested: DataFrame
    ) -> None:
        projected = world.sink().project(nested)
        world.publish(world.sink(), StagedTable.in_memory(projected.toArrow()))
        assert world.rows() == self.expected()

    def test_nested_columns_arrive_as_jsonb_from_files(
        self, world: World, nested: DataFrame, tmp_path: Path
    ) -> None:
        projected = world.sink().project(nested)
        projected.write.parquet((tmp_path / "rows").as_uri())
        world.publish(world.sink(), in_files(tmp_path / "rows"))
        assert world.rows() == self.expected()

    def test_what_no_spark_turned_into_json_becomes_the_same(
        self, world: World, nested: DataFrame
    ) -> None:
        world.publish(world.sink(), StagedTable.in_memory(nested.toArrow()))
        assert world.rows() == self.expected()

    def test_columns_that_an_upsert_goes_by_are_asked_for_before_reading(
        self, world: World, spark: SparkSession
    ) -> None:
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["at"])
        with pytest.raises(ConfigError, match=r"sink\.sequence_by.* at"):
            sink.project(spark.sql("SELECT 1 AS id"))


def in_files(folder: Path) -> StagedTable:
    """What Spark wrote, as the pipeline hands it on."""
    paths = sorted(folder.glob("*.parquet"))
    files = tuple(
        StagedFile(path.name, path.stat().st_size, pq.read_metadata(path).num_rows)
        for path in paths
    )
    return StagedTable(pq.read_schema(paths[0]), root=folder, files=files)

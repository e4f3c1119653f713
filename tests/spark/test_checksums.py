"""A checksum of rows: the same wherever the same values are, another one if a value is another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.checksum import (
    NotComparableError,
    digest,
    hashed_columns,
    row_hash,
    summed,
    sums,
)
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.sinks.columns import is_made_of_scalars
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.jvm import CLIENT_VARIABLES
from eo_pipeline.testing.all_types import ALL_TYPES

NESTED = pa.table(
    {
        "point": pa.array(
            [{"x": 1, "y": None}, {"x": None, "y": 1}, None],
            pa.struct([("x", pa.int64()), ("y", pa.int64())]),
        ),
        "tags": pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int32())),
        "points": pa.array([[{"x": 1}, None], [], None], pa.list_(pa.struct([("x", pa.int64())]))),
        "nested": pa.array([[[1], [None]], [[]], None], pa.list_(pa.list_(pa.int64()))),
    }
)
ROWS = pa.table(
    [*ALL_TYPES.columns, *NESTED.columns], [*ALL_TYPES.column_names, *NESTED.column_names]
)

#: Ledgers hold it: were it computed otherwise one day, all of their tables would seem damaged.
FOR_GOOD = "26eaf46c2ec073f9-1dba90aea-b10f9c95"


def checksum_of(frame: DataFrame, columns: dict[str, Any] | None = None) -> str:
    columns = columns or hashed_columns(frame.schema, is_made_of_scalars)
    found = {field.name: (F.col(field.name), field.dataType) for field in frame.schema}
    row = frame.select(row_hash(columns, found).alias("h")).agg(*sums(F.col("h"))).first()
    assert row is not None
    return digest(summed(row.asDict()))


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(remote=spark_server.remote).session()


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(ROWS, path)
    return spark.read.parquet(str(path))


CLASSIC = """
import sys
from pyspark.sql import SparkSession
from tests.spark.test_checksums import checksum_of
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(checksum_of(spark.read.parquet(sys.argv[1]).repartition(3)))
"""


@pytest.mark.core
def test_the_same_rows_have_the_same_checksum_on_every_session_in_any_order_for_good(
    rows: DataFrame, tmp_path: Path
) -> None:
    pq.write_table(ROWS.select(ROWS.column_names[::-1]), tmp_path / "rows.parquet")
    environment = {k: v for k, v in os.environ.items() if k not in CLIENT_VARIABLES}
    classic = subprocess.run(
        [sys.executable, "-c", CLASSIC, str(tmp_path / "rows.parquet")],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [
        checksum_of(rows),
        checksum_of(rows.orderBy(F.desc("id"))),
        checksum_of(rows.repartition(3)),
        classic.stdout.strip(),
    ] == [FOR_GOOD] * 4, classic.stderr[-2000:]


#: (id 1 and 2 have values everywhere, 3 has nulls)
CHANGES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a digit": lambda df: df.withColumn("big", _where(2, F.col("big") + 1, "big")),
    "a cent": lambda df: df.withColumn("money", _where(1, F.lit(Decimal("1.11")), "money")),
    "a letter": lambda df: df.withColumn("text", _where(1, F.lit(" "), "text")),
    "a value gone": lambda df: df.withColumn("day", _where(1, F.lit(None), "day")),
    "a value that was null": lambda df: df.withColumn("yes", _where(3, F.lit(False), "yes")),
    "an empty list": lambda df: df.withColumn("numbers", _where(3, F.array(), "numbers")),
    "null at another place": lambda df: df.withColumn(
        "numbers", _where(1, F.array(F.lit(None), F.lit(1)), "numbers")
    ),
    "null in another field": lambda df: df.withColumn(
        "point",
        _where(1, F.struct(F.col("point.y").alias("x"), F.col("point.x").alias("y")), "point"),
    ),
    "one key's value": lambda df: df.withColumn(
        "tags", _where(1, F.map_from_entries(F.expr("array(('a', null), ('b', 1))")), "tags")
    ),
    "values of two rows": lambda df: df.withColumn(
        "big", F.when(F.col("id") == 1, -(2**63)).when(F.col("id") == 2, 2**63 - 1)
    ),
    "values of two columns": lambda df: df.withColumns({"id": F.col("big"), "big": F.col("id")}),
    "a row twice": lambda df: df.union(df.where("id = 3")),
    "a row three times": lambda df: df.union(df.where("id = 3")).union(df.where("id = 3")),
    "a row gone": lambda df: df.where("id > 1"),
}

NO_CHANGES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "wider numbers": lambda df: df.withColumns(
        {
            "tiny": F.col("tiny").cast("int"),
            "whole": F.col("whole").cast("bigint"),
            "single": F.col("single").cast("double"),
            "money": F.col("money").cast("decimal(12, 3)"),
        }
    ),
    "a new column": lambda df: df.withColumn("since", F.lit(1)),
    "a new field": lambda df: df.withColumn("point", F.col("point").withField("z", F.lit(3))),
    "keys in another order": lambda df: df.withColumn(
        "tags", _where(1, F.map_from_entries(F.reverse(F.map_entries("tags"))), "tags")
    ),
}


def _where(number: int, value: Any, name: str) -> Any:
    return F.when(F.col("id") == number, value).otherwise(F.col(name))


@pytest.mark.core(only=["a row twice"])
@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_differ_in_anything_have_another_checksum(rows: DataFrame, change: str) -> None:
    columns = hashed_columns(rows.schema, is_made_of_scalars)
    assert checksum_of(CHANGES[change](rows), columns) != checksum_of(rows)


@pytest.mark.parametrize("change", NO_CHANGES)
def test_what_another_form_of_the_same_values_is_makes_no_difference(
    rows: DataFrame, change: str
) -> None:
    columns = hashed_columns(rows.schema, is_made_of_scalars)
    assert checksum_of(NO_CHANGES[change](rows), columns) == checksum_of(rows)


def test_zero_is_zero_and_a_text_is_its_letters(spark: SparkSession) -> None:
    zeros = [spark.createDataFrame([(n, "ä")], "n double, t string") for n in (0.0, -0.0)]
    upper = spark.createDataFrame([(0.0, "Ä")], "n double, t string")
    folded = [df.withColumn("t", F.collate("t", "UNICODE_CI")) for df in (zeros[0], upper)]
    assert checksum_of(zeros[0]) == checksum_of(zeros[1]) == checksum_of(folded[0])
    assert checksum_of(folded[0]) != checksum_of(folded[1])


def test_no_rows_have_a_checksum_too(rows: DataFrame) -> None:
    assert checksum_of(rows.limit(0)) == f"{0:016x}-0-0"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda df: df.drop("text"), "'text' is missing"),
        (lambda df: df.withColumn("text", F.lit(1)), "'text': it was string, and is int"),
        (lambda df: df.withColumn("big", F.lit("1")), "'big': it was bigint, and is string"),
        (
            lambda df: df.withColumn("point", F.col("point").dropFields("y")),
            "'point': 'y' is missing",
        ),
    ],
)
def test_what_cannot_be_compared_is_no_difference_but_said(
    rows: DataFrame, found: Callable[[DataFrame], DataFrame], said: str
) -> None:
    columns = hashed_columns(rows.schema, is_made_of_scalars)
    with pytest.raises(NotComparableError, match=said):
        checksum_of(found(rows), columns)

"""Rows of this process in a plan of Spark's."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from eo_pipeline.spark.clients import is_connect

#: Bytes that go to a Spark Connect server with the plan. More of them pyspark lets the server keep.
_WITH_THE_PLAN_MAX = 32 * 1024 * 1024


def frame_of(spark: SparkSession, rows: pa.Table, tasks: int) -> DataFrame:
    """``rows``, to be looked at by so many ``tasks``; their types are Spark's own, times in UTC.

    Without saying how many, Spark's optimizer would evaluate what is made of them all by itself
    before the job begins.
    """
    return _frame_of(spark, rows).coalesce(tasks)


def _frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Over Spark Connect pyspark would ask for nine settings first, and have the server name the
    columns as they are named: a step of the plan more, which is looked through by itself.
    """
    if not is_connect(spark) or rows.nbytes > _WITH_THE_PLAN_MAX:
        return spark.createDataFrame(rows)
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import LocalRelation

    return cast(DataFrame, ConnectFrame(LocalRelation(rows), cast(Any, spark)))

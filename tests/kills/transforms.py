"""The same transform in several revisions, so that a row says which one made it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

REVISIONS = 4


def rev_0(df: DataFrame) -> DataFrame:
    return df.withColumn("rev", F.lit(0))


def rev_1(df: DataFrame) -> DataFrame:
    return df.withColumn("rev", F.lit(1))


def rev_2(df: DataFrame) -> DataFrame:
    return df.withColumn("rev", F.lit(2))


def rev_3(df: DataFrame) -> DataFrame:
    return df.withColumn("rev", F.lit(3))

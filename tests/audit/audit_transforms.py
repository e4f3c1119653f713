"""Transforms of pipelines that are audited."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def two_of_three_twice(df: DataFrame) -> DataFrame:
    """Every third record gives no row, every other one two."""
    numbers = F.explode(F.array(F.lit(0), F.lit(1)))
    return df.where("id % 3 <> 0").withColumn("copy", numbers)


def first_of_each_name(df: DataFrame) -> DataFrame:
    """Depends on which records it sees together: one row a name in each checkpoint."""
    return df.groupBy("name").agg(F.min("id").alias("id"), F.min("_kafka").alias("_kafka"))


def named(df: DataFrame) -> DataFrame:
    """Lets go of where a row came from."""
    return df.select("id", "name")

"""Transforms that tests name by their import path."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def only_small_ids(df: DataFrame) -> DataFrame:
    return df.where("id < 60")


def nothing(df: DataFrame) -> DataFrame:
    return df.where("false")


def shouting(df: DataFrame) -> DataFrame:
    """Another transform of the same records, of which a reader can tell."""
    return df.withColumn("name", F.upper("name"))


def endless(df: DataFrame) -> DataFrame:
    """A job that takes every core of its Spark for hours, and can be cancelled all that time."""
    numbers = df.sparkSession.range(10**13).select(F.col("id").alias("number"))
    # nothing that the optimizer could prove to be empty: it would leave all of it out
    return numbers.crossJoin(F.broadcast(df)).where(F.xxhash64("number") == 0).drop("number")


def slow_the_first_time(df: DataFrame) -> DataFrame:
    """Two seconds a record, the first time in this process; EO_TEST_REACHED is then a file."""
    reached = Path(os.environ["EO_TEST_REACHED"])
    if reached.exists():
        return df
    reached.touch()
    return df.where(F.expr("java_method('java.lang.Thread', 'sleep', 2000L) is null"))


def divided_by_zero(df: DataFrame) -> DataFrame:
    """Fails at the eighth record, in Spark's own code."""
    return df.withColumn("share", F.lit(1) / (F.col("id") - 7))


def broken_at_run_time(df: DataFrame) -> DataFrame:
    """Fails at the first record, in Python code that Spark calls."""

    def broken(_: int) -> int:
        raise ValueError("no such carrier")

    return df.withColumn("id", F.udf(broken, "bigint")("id"))


def away_at_run_time(df: DataFrame) -> DataFrame:
    """The same, for a reason that may pass."""

    def away(_: int) -> int:
        raise ConnectionRefusedError("the rates server is away")

    return df.withColumn("id", F.udf(away, "bigint")("id"))


def wide(df: DataFrame) -> DataFrame:
    """A hundred kilobytes a row, of which little can be compressed."""
    return df.withColumn(
        "noise", F.expr("array_join(transform(sequence(1, 3000), n -> uuid()), '')")
    )

"""Transforms that tests of lake tables name by their import path."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def with_day_and_word(df: DataFrame) -> DataFrame:
    """A date and a text that folder names must escape; every other text is null."""
    day = F.date_add(F.lit("2013-01-01").cast("date"), (F.col("id") % 2).cast("int"))
    word = F.when(F.col("id") % 2 == 1, F.lit("a/b c=ü%:"))
    return df.withColumns({"day": day, "word": word})


def interval_and_void(df: DataFrame) -> DataFrame:
    return df.withColumns({"span": F.expr("interval 1 day"), "nothing": F.lit(None)})


def odd_name(df: DataFrame) -> DataFrame:
    return df.withColumnRenamed("name", "a b")

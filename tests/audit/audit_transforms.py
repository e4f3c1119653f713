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


def of_every_type(df: DataFrame) -> DataFrame:
    """A column of each type that a sink may be asked to hold, null in every third row."""
    made = {
        "yes": "id % 2 = 0",
        "tiny": "cast(id % 100 as tinyint)",
        "small": "cast(-id as smallint)",
        "whole": "cast(id as int)",
        "big": "9223372036854775807 - id",
        "single": "cast(id / 3 as float)",
        "double": "case id % 4 when 0 then double('NaN') when 1 then double('-0.0') "
        "when 2 then double('-Infinity') else 1 / id end",
        "money": "cast(id + 0.01 as decimal(10, 2))",
        "exact": "cast('99999999999999999999999999999999999999' as decimal(38, 0)) - id",
        "text": "concat('naïve \\U0001F6E9 \\\\N \\n', id)",
        "raw": "cast(concat('\\u0001', id) as binary)",
        "day": "date_add(date '0001-01-01', cast(id * 20000 as int))",
        "instant": "timestamp_micros(-62135510400000000 + id * 1728000000000001)",
        "wall": "timestamp_ntz '9999-12-31 23:59:59.999999' - make_dt_interval(cast(id as int))",
        "words": "array('a', null, cast(id as string))",
        "point": "named_struct('x', nullif(id, 0), 'y', if(id % 2 = 0, null, "
        "array(if(id % 4 = 1, null, named_struct('z', nullif(id, 3))))))",
        "tags": "map('b', id, 'a', cast(null as bigint))",
    }
    return df.withColumns({n: F.expr(f"if(id % 3 = 2, null, {e})") for n, e in made.items()})

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


def every_kind(df: DataFrame) -> DataFrame:
    """A column of every kind, all of them told by the id."""
    return df.selectExpr(
        "*",
        "id % 2 = 0 as yes",
        "cast(id as tinyint) as tiny",
        "cast(id as smallint) as small",
        "cast(id as int) as whole",
        "cast(id / 3 as float) as single",
        "id / 7 as double",
        "cast(id * 1.01 as decimal(10, 2)) as money",
        "cast(id as decimal(38, 0)) as exact",
        "cast(name as binary) as raw",
        "date_add(date'2013-01-01', cast(id as int)) as day",
        "timestamp_micros(id * 1000001) as instant",
        "cast(timestamp_micros(id * 1000001) as timestamp_ntz) as wall",
        "if(id = 5, null, array(name, null)) as words",
        "named_struct('b', id, 'a', array(name), 'at', timestamp_micros(id)) as inner",
        "map(name, id / 7) as by_name",
    )


#: What :func:`revised` does to ids from 10 to 29: it changes all columns but these.
SPARED_BY_REVISED = ("id", "_eo_topic", "_eo_partition", "_eo_offset")


def revised(df: DataFrame) -> DataFrame:
    """:func:`every_kind` without ten ids, with five twice, and with others for twenty."""
    kept = df.where("id >= 10").withColumn(
        "n", F.expr("explode(if(id between 90 and 94, array(1, 2), array(1)))")
    )
    moved = F.when(F.expr("id between 10 and 29"), F.col("id") + 7).otherwise(F.col("id"))
    other = kept.drop("n").withColumns({"mine": F.col("id"), "id": moved})
    named = other.withColumn("name", F.concat(F.lit("record "), F.col("id").cast("string")))
    return every_kind(named).withColumn("id", F.col("mine")).drop("mine")


def endless(df: DataFrame) -> DataFrame:
    """A job that takes every core of its Spark for hours, and can be cancelled all that time."""
    numbers = df.sparkSession.range(10**13).select(F.col("id").alias("number"))
    # nothing that the optimizer could prove to be empty: it would leave all of it out
    return numbers.crossJoin(F.broadcast(df)).where(F.xxhash64("number") == 0).drop("number")


def a_tenth_of_a_second_each(df: DataFrame) -> DataFrame:
    """All records are kept, late: what Java answers is the text ``null``."""
    return df.where(F.expr("java_method('java.lang.Thread', 'sleep', 100L) is not null"))


def slow_from_the_hundredth(df: DataFrame) -> DataFrame:
    """All records are kept; those with ids from 100 on take twenty seconds each."""
    return df.where(
        F.expr("id < 100 or java_method('java.lang.Thread', 'sleep', 20000L) is not null")
    )


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


# What a transform may do to those who count the records on their way into it.


def looking_at_the_first(df: DataFrame) -> DataFrame:
    df.first()
    return df


def asking_whether_empty(df: DataFrame) -> DataFrame:
    return df.limit(0) if df.isEmpty() else df


def counting_all(df: DataFrame) -> DataFrame:
    return df.withColumn("of", F.lit(df.count()))


def sorted_by_name(df: DataFrame) -> DataFrame:
    return df.orderBy("name")


def spread_by_range(df: DataFrame) -> DataFrame:
    return df.repartitionByRange(3, "name")


def the_first_five(df: DataFrame) -> DataFrame:
    return df.limit(5)


def twice(df: DataFrame) -> DataFrame:
    return df.union(df)


def joined_with_itself(df: DataFrame) -> DataFrame:
    return df.join(df.select("id", F.col("name").alias("same")), "id")


def kept_in_memory(df: DataFrame) -> DataFrame:
    kept = df.cache()
    kept.count()
    return kept


def one_of_each_id(df: DataFrame) -> DataFrame:
    return df.dropDuplicates(["id"])


def narrow(df: DataFrame) -> DataFrame:
    """Steps that each take every record once."""
    numbers = F.explode(F.array(F.lit(0), F.lit(1)))
    return df.where("id % 2 = 0").withColumn("copy", numbers).coalesce(2)


def through_python(df: DataFrame) -> DataFrame:
    shout = F.udf(str.upper, "string")
    return df.withColumn("name", shout("name"))


def as_it_is(df: DataFrame) -> DataFrame:
    return df


#: Rows made of twenty records with the ids 0 to 19, by each of the above.
ROWS_OF_TWENTY = {
    "looking_at_the_first": 20,
    "asking_whether_empty": 20,
    "counting_all": 20,
    "sorted_by_name": 20,
    "spread_by_range": 20,
    "the_first_five": 5,
    "nothing": 0,
    "twice": 40,
    "joined_with_itself": 20,
    "kept_in_memory": 20,
    "one_of_each_id": 20,
    "narrow": 20,
    "through_python": 20,
    "as_it_is": 20,
}

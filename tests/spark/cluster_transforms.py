"""Transforms whose functions run in the Python workers of a cluster, which have no such module."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.spark import cluster_words

#: What a task leaves in its working directory, so that a test sees where it runs.
MARK = "eo-test-begun-"


def shouted(word: str) -> str:
    """Pickled by its name: whoever runs it imports this module, and what that imports."""
    return cluster_words.shouted(word)


def by_a_module(df: DataFrame) -> DataFrame:
    return df.withColumn("name", F.udf(shouted, "string")("name"))


def of_a_library(word: str) -> str:
    """Calls what no transform's folder holds."""
    import words_of_ours  # type: ignore[import-not-found]

    return str(words_of_ours.shouted(word))


def by_a_library(df: DataFrame) -> DataFrame:
    return df.withColumn("name", F.udf(of_a_library, "string")("name"))


def taking_time(word: str) -> str:
    Path(f"{MARK}{os.getpid()}").touch()
    time.sleep(0.1)
    return word


def slowly(df: DataFrame) -> DataFrame:
    """A tenth of a second a record."""
    return df.withColumn("name", F.udf(taking_time, "string")("name"))


def slowly_after_a_shuffle(df: DataFrame) -> DataFrame:
    return slowly(df.repartition(4))


def into_many_folders(df: DataFrame) -> DataFrame:
    """Of each task hundreds of files, which take seconds to be named; another attempt at the task
    lays its rows out in another way.
    """
    return df.withColumn("drawn", (F.rand() * 256).cast("int"))


def with_noise(df: DataFrame) -> DataFrame:
    """A hundred thousand characters a row, which nothing makes smaller."""
    return df.withColumn("noise", F.randstr(F.lit(100_000)))

"""Transforms that tests name by their import path."""

from __future__ import annotations

from pyspark.sql import DataFrame


def only_small_ids(df: DataFrame) -> DataFrame:
    return df.where("id < 60")


def nothing(df: DataFrame) -> DataFrame:
    return df.where("false")

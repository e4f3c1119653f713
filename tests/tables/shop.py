"""Transforms of the tests' shop: an order, and its lines."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

#: An order with its lines, as its topic has it.
ORDER = "id BIGINT NOT NULL, customer BIGINT, lines ARRAY<STRUCT<item: STRING, amount: BIGINT>>"


def orders(records: DataFrame) -> DataFrame:
    """Return a row for each order."""
    return records.select("id", "customer", "_kafka")


def lines(records: DataFrame) -> DataFrame:
    """Return a row for each line of an order."""
    line = F.explode("lines").alias("line")
    return records.select(F.col("id").alias("order_id"), line, "_kafka").select(
        "order_id", "line.item", "line.amount", "_kafka"
    )

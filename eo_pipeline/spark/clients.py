"""Which client of Spark's a session or a frame belongs to: py4j's, or Spark Connect's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_connect(spark_or_frame: SparkSession | DataFrame) -> bool:
    """Whether it speaks to a Spark Connect server, told without an import of what that takes."""
    return type(spark_or_frame).__module__.startswith("pyspark.sql.connect")

"""Kind of Spark client behind a session or frame: py4j or Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_connect(spark_or_frame: SparkSession | DataFrame) -> bool:
    """Return whether the client is Spark Connect; does not import it."""
    return type(spark_or_frame).__module__.startswith("pyspark.sql.connect")

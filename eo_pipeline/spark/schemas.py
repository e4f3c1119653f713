"""Schemas that are known without asking."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from eo_pipeline.spark.clients import is_connect


def with_known_schema(frame: DataFrame, schema: StructType | None) -> DataFrame:
    """``frame``, whose schema is ``schema`` (None: not known). Over Spark Connect the first look at
    one has the server analyse the whole plan; pyspark itself hands on what it knows like this.
    """
    if schema is not None and is_connect(frame):
        cast(Any, frame)._cached_schema = schema
    return frame

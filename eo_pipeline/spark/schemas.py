"""Schemas that are known without asking."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eo_pipeline.spark.clients import is_connect

_asked: WeakKeyDictionary[SparkSession, dict[Hashable, StructType]] = WeakKeyDictionary()


def with_known_schema(frame: DataFrame, schema: StructType | None) -> DataFrame:
    """``frame``, whose schema is ``schema`` (None: not known). Over Spark Connect the first look at
    one has the server analyse the whole plan; pyspark itself hands on what it knows like this.
    """
    if schema is not None and is_connect(frame):
        cast(Any, frame)._cached_schema = schema
    return frame


def with_schema_asked_once(frame: DataFrame, kind: Hashable) -> DataFrame:
    """``frame``, whose schema is that of every frame of its ``kind``: over Spark Connect asked once
    in a session, and not once more in every checkpoint.
    """
    if not is_connect(frame):
        return frame
    known = _asked.setdefault(frame.sparkSession, {})
    if kind not in known:
        known[kind] = frame.schema
    return with_known_schema(frame, known[kind])

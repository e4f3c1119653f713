"""Schemas of frames without a request to the server."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eo_pipeline.spark.clients import is_connect

_schemas: WeakKeyDictionary[SparkSession, dict[Hashable, StructType]] = WeakKeyDictionary()


def with_known_schema(frame: DataFrame, schema: StructType | None) -> DataFrame:
    """Return ``frame`` with its schema preset (None: unknown). Over Spark Connect the first access
    to a schema has the server analyse the whole plan; pyspark passes on schemas in this way, too.
    """
    if schema is not None and is_connect(frame):
        cast(Any, frame)._cached_schema = schema
    return frame


def with_schema_asked_once(frame: DataFrame, kind: Hashable) -> DataFrame:
    """Return ``frame`` with the schema that all frames of its ``kind`` share: over Spark Connect
    one request a session instead of one a checkpoint.
    """
    if not is_connect(frame):
        return frame
    schemas = _schemas.setdefault(frame.sparkSession, {})
    if kind not in schemas:
        schemas[kind] = frame.schema
    return with_known_schema(frame, schemas[kind])

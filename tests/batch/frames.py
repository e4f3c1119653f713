"""Values as Spark's Kafka connector hands them out, for tests that need no Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from eo_pipeline.testing.transforms import _KAFKA_COLUMNS


def kafka_frame(spark: SparkSession, values: Sequence[bytes | None]) -> DataFrame:
    """Records without keys in partition 0 of a topic, their offsets from 0 on."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [(None, value, "t", 0, offset, now, 0, None) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, _KAFKA_COLUMNS)

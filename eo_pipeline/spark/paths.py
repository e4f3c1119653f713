"""Places as Spark takes them, whatever characters their names have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eo_pipeline.storage.paths import BucketPath, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What Spark takes for a pattern in the name of something to read.
_PATTERN = re.compile(r"[][{}*?\\]")


def path_to_write(place: Place) -> str:
    """``place`` for a write. Spark wants Hadoop's Path, which looks like a URI and is none: nothing
    in it is escaped, so that ``as_uri`` would name another folder (``a%20b`` for ``a b``).
    """
    if isinstance(place, BucketPath):
        return f"{place.bucket.hadoop_scheme}://{place.bucket.name}/{place.key}"
    return f"file://{place.absolute()}"


def path_to_read(place: Place) -> str:
    """``place`` for a read, where Spark also looks for patterns."""
    return _PATTERN.sub(r"\\\g<0>", path_to_write(place))


def as_written(spark: SparkSession, place: Place) -> DataFrame:
    """Parquet files whose times are as they stand there: Spark moves those before 1582 otherwise,
    if it does not know who wrote them.
    """
    options = {"datetimeRebaseMode": "CORRECTED", **options_of(place)}
    return spark.read.options(**options).parquet(path_to_read(place))


def options_of(place: Place) -> dict[str, str]:
    """What Spark must be told, with each read or write of ``place``, to get there: nothing of it
    stays in a session, and Spark shows no secret among them.
    """
    return dict(place.bucket.hadoop) if isinstance(place, BucketPath) else {}

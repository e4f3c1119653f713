"""Storage paths in Spark's notation, with any characters in their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eo_pipeline.storage.paths import BucketPath, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Characters of glob patterns in paths that Spark reads.
_PATTERN = re.compile(r"[][{}*?\\]")


def path_to_write(place: Place) -> str:
    """Return ``place`` for a write, in the notation of Hadoop's Path. It looks like a URI, but
    nothing is escaped: ``as_uri`` would name another folder (``a%20b`` for ``a b``).
    """
    if isinstance(place, BucketPath):
        return f"{place.bucket.hadoop_scheme}://{place.bucket.name}/{place.key}"
    return f"file://{place.absolute()}"


def path_to_read(place: Place) -> str:
    """Return ``place`` for a read, where Spark expands glob patterns."""
    return _PATTERN.sub(r"\\\g<0>", path_to_write(place))


def as_written(spark: SparkSession, place: Place) -> DataFrame:
    """Read Parquet files with unchanged times: by default Spark shifts times before 1582 if it does
    not know the writer.
    """
    options = {"datetimeRebaseMode": "CORRECTED", **options_of(place)}
    return spark.read.options(**options).parquet(path_to_read(place))


def options_of(place: Place) -> dict[str, str]:
    """Return the connection options for each read or write of ``place``: none of them stays in a
    session, and Spark redacts the secrets among them.
    """
    return dict(place.bucket.hadoop) if isinstance(place, BucketPath) else {}

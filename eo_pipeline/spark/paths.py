"""Storage paths in Spark's notation, with any characters in their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eo_pipeline.storage.paths import Place, RemotePath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Characters of glob patterns in paths that Spark reads.
_PATTERN = re.compile(r"[][{}*?\\]")


def path_to_write(path: Place) -> str:
    """Return ``path`` for a write, in the notation of Hadoop's Path. It looks like a URI, but
    nothing is escaped: ``as_uri`` would name another folder (``a%20b`` for ``a b``).
    """
    if isinstance(path, RemotePath):
        return f"{path.bucket.hadoop_scheme}://{path.bucket.name}/{path.key}"
    return f"file://{path.absolute()}"


def path_to_read(path: Place) -> str:
    """Return ``path`` for a read, where Spark expands glob patterns."""
    return _PATTERN.sub(r"\\\g<0>", path_to_write(path))


def as_written(spark: SparkSession, path: Place) -> DataFrame:
    """Read Parquet files with unchanged times: by default Spark shifts times before 1582 if it does
    not know the writer.
    """
    options = {"datetimeRebaseMode": "CORRECTED", **options_of(path)}
    return spark.read.options(**options).parquet(path_to_read(path))


def options_of(path: Place) -> dict[str, str]:
    """Return the connection options for each read or write of ``path``: none of them stays in a
    session, and Spark redacts the secrets among them.
    """
    return dict(path.bucket.hadoop) if isinstance(path, RemotePath) else {}

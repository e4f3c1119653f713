"""Detection of this package's Java functions in a Spark; see :mod:`eo_pipeline.spark.native_jar`.

A Spark started by this package has them. To another Spark Connect server the jar is sent, for the
session alone.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.native_jar import CATALOG_CLASS, CATALOG_SETTING, compiled_jar

_Trial = Callable[[], Column]

#: Detection results by a function's trial expression, or the name of a source or format.
_results: WeakKeyDictionary[SparkSession, dict[_Trial | str, bool]] = WeakKeyDictionary()
_lock = Lock()


def has_function(spark: SparkSession, trial: _Trial) -> bool:
    """Return whether ``spark`` can analyse the expression of ``trial``; cached.

    The setting alone is no proof: an existing session may have the setting without the jar.
    """
    return _has(spark, trial, lambda: spark.range(1).select(trial()))


def has_source(spark: SparkSession, name: str) -> bool:
    """Return whether ``spark`` has our data source ``name``; cached."""
    return _has(spark, name, spark.read.format(name).load)


def has_format(spark: SparkSession, name: str) -> bool:
    """Return whether ``spark`` has our file format ``name``; cached."""
    return _has(spark, name, spark.read.format(name).schema("x INT").load)


def _has(spark: SparkSession, key: _Trial | str, probe: Callable[[], DataFrame]) -> bool:
    with _lock:
        results = _results.setdefault(spark, {})
        if key not in results:
            results[key] = _analyses(spark, probe)
        return results[key]


def _analyses(spark: SparkSession, probe: Callable[[], DataFrame]) -> bool:
    try:
        if spark.conf.get(CATALOG_SETTING, None) is None and not _was_sent(spark):
            return False
        return bool(probe().schema)
    # the server refuses jars; or Spark is lost, which the job reports
    except (PySparkException, Py4JError):
        return False


def _was_sent(spark: SparkSession) -> bool:
    jar = compiled_jar() if is_connect(spark) else None
    if jar is not None:
        spark.addArtifacts(str(jar))
        spark.conf.set(CATALOG_SETTING, CATALOG_CLASS)
    return jar is not None

"""Whether a Spark has a function of ours, for ordinary records or rows of a store's own form; see
:mod:`eo_pipeline.spark.native_jar`.

Those that are started here have it. A Spark Connect server of somebody else's is sent it, for the
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
from eo_pipeline.spark.native_jar import CATALOG_CLASS, CATALOG_SETTING, ordinary_jar

_Trial = Callable[[], Column]

#: Of a function its trial, of a source its name.
_known: WeakKeyDictionary[SparkSession, dict[_Trial | str, bool]] = WeakKeyDictionary()
_lock = Lock()


def has_function(spark: SparkSession, trial: _Trial) -> bool:
    """Whether ``spark`` can analyse what ``trial`` gives; asked once.

    A setting alone tells nothing: a session that was there before may have been given it, without
    the jar.
    """
    return _has(spark, trial, lambda: spark.range(1).select(trial()))


def has_source(spark: SparkSession, name: str) -> bool:
    """Whether ``spark`` has our source of that ``name``; asked once."""
    return _has(spark, name, spark.read.format(name).load)


def has_format(spark: SparkSession, name: str) -> bool:
    """Whether ``spark`` has our format of files of that ``name``; asked once."""
    return _has(spark, name, spark.read.format(name).schema("x INT").load)


def _has(spark: SparkSession, what: _Trial | str, made: Callable[[], DataFrame]) -> bool:
    with _lock:
        known = _known.setdefault(spark, {})
        if what not in known:
            known[what] = _takes(spark, made)
        return known[what]


def _takes(spark: SparkSession, made: Callable[[], DataFrame]) -> bool:
    try:
        if spark.conf.get(CATALOG_SETTING, None) is None and not _was_sent(spark):
            return False
        return bool(made().schema)
    # a server that takes no jars; and of a Spark that is lost the job itself says so
    except (PySparkException, Py4JError):
        return False


def _was_sent(spark: SparkSession) -> bool:
    jar = ordinary_jar() if is_connect(spark) else None
    if jar is not None:
        spark.addArtifacts(str(jar))
        spark.conf.set(CATALOG_SETTING, CATALOG_CLASS)
    return jar is not None

"""How many tasks Spark runs at once."""

from __future__ import annotations

import re
import time
from threading import Lock
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.interrupts import interruptible

#: A cluster may grow and shrink.
_KNOWN_SECONDS = 60.0

#: A frame that says nothing of its partitions has as many as there are cores.
_ASKED = "EXPLAIN SELECT id FROM range(1)"
_SPLITS = re.compile(r"\bsplits=(?:Some\()?(\d+)")

_known: WeakKeyDictionary[SparkSession, tuple[float, int | None]] = WeakKeyDictionary()
_lock = Lock()


def cores(spark: SparkSession) -> int | None:
    """Of all executors; ``None`` if Spark's words for it are not known."""
    with _lock:
        asked, found = _known.get(spark, (0.0, None))
    if asked and time.monotonic() - asked < _KNOWN_SECONDS:
        return found
    found = _asked(spark) if is_connect(spark) else spark.sparkContext.defaultParallelism
    with _lock:
        _known[spark] = (time.monotonic(), found)
    return found


def _asked(spark: SparkSession) -> int | None:
    """In the words of a plan. On a classic session that would be its first, and take a second."""
    told = _SPLITS.search(interruptible(spark, lambda: str(spark.sql(_ASKED).collect())))
    return int(told[1]) if told else None

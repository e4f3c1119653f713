"""What making a checkpoint costs, as far as it can be known without a second look at anything."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eo_pipeline.jvm.processes import cpu_seconds
from eo_pipeline.ledger.entry import Costs
from eo_pipeline.staging.rows import StagedOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Meter:
    """Processor time of this process and of a JVM of its own, from one promise to the next.

    Both are of whole processes: pipelines that one process runs at the same time are measured
    together.
    """

    #: offsets that wait after what is being read
    lag: int | None = None
    _cpu_s: float = field(default_factory=time.process_time)
    _spark_s: float = field(default_factory=lambda: _sparks_cpu_s() or 0.0)

    def lap(self, spark: SparkSession, seconds: Mapping[str, float], output: StagedOutput) -> Costs:
        """Of what was staged as ``output``, by ``spark``, in so many ``seconds`` a phase."""
        cpu_s, self._cpu_s = time.process_time() - self._cpu_s, time.process_time()
        tables = (output.rows, output.dead_letters)
        return Costs(
            cpu_ms=_ms(cpu_s),
            spark_cpu_ms=self._spark_ms(spark),
            phases_ms={phase: _ms(spent) for phase, spent in seconds.items()},
            bytes_out=sum(table.size for table in tables if table),
            lag=self.lag,
        )

    def _spark_ms(self, spark: SparkSession) -> int | None:
        """None on a server that others may use as well, and on a cluster's executors: neither
        says what a job of ours took.
        """
        from eo_pipeline.spark.clients import is_connect

        if is_connect(spark) or not (spark.conf.get("spark.master") or "").startswith("local"):
            return None
        now = _sparks_cpu_s()
        if now is None:
            return None
        spent, self._spark_s = now - self._spark_s, now
        # a JVM that was started anew meanwhile has less than the one before it
        return _ms(spent if spent >= 0 else now)


def _sparks_cpu_s() -> float | None:
    """Of the JVM that this process started for Spark, from its beginning."""
    if "pyspark.core.context" not in sys.modules:
        return None  # which takes a sixth of a second to import
    from eo_pipeline.jvm.driver import driver_pid

    pid = driver_pid()
    return None if pid is None else cpu_seconds(pid)


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)

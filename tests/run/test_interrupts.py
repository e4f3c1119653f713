"""A Spark in this very process, as `make run` and a laptop have it, and Ctrl-C while it works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: The connection to the JVM works afterwards, and its cores are free: that is the second job.
_PROGRAM = """
import os, signal, threading, time
from pyspark.sql import functions as F
from eo_pipeline.spark import SparkSettings, interruptible

before = signal.getsignal(signal.SIGINT)
no_jars = {"spark.jars": "", "spark.jars.packages": ""}
spark = SparkSettings(master="local[2]", config=no_jars).session()
print("handler kept", signal.getsignal(signal.SIGINT) is before)

def interrupt():
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
endless = spark.range(10**13).select(F.sum(F.col("id") % 7))
try:
    interruptible(spark, endless.toArrow)
except KeyboardInterrupt:
    print("interrupted, jobs left:", len(spark.sparkContext.statusTracker().getActiveJobsIds()))
print("counted", interruptible(spark, spark.range(10).count))
"""


def test_a_local_spark_is_free_again_after_an_interruption(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=Path(__file__).parents[2],
        env=environment,
    )
    assert done.stdout.splitlines() == [
        "handler kept True",
        "interrupted, jobs left: 0",
        "counted 10",
    ], done.stderr

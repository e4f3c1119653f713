"""A Spark in this very process, as `make run` and a laptop have it, and Ctrl-C while it works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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

#: Of two jobs in one session nobody wants the first any more.
_TWO_JOBS = """
import threading, time
from concurrent.futures import Future
from pyspark.sql import functions as F
from eo_pipeline.spark import SparkSettings, interruptible
from eo_pipeline.spark.interrupts import UnwantedError, until

no_jars = {"spark.jars": "", "spark.jars.packages": ""}
spark = SparkSettings(master="local[4]", config=no_jars).session()
tracker, unwanted, said = spark.sparkContext.statusTracker(), Future(), []
sleeping = F.expr("java_method('java.lang.Thread', 'sleep', 4000L) is not null")
endless = spark.range(0, 10**13, 1, 2).select(F.sum(F.col("id") % 7))

def run(what, job):
    try:
        with until(unwanted if what == "endless" else Future()):
            said.append((what, interruptible(spark, job)))
    except UnwantedError:
        said.append((what, "unwanted"))

jobs = {"endless": endless.toArrow, "other": spark.range(0, 1, 1, 1).where(sleeping).count}
threads = [threading.Thread(target=run, args=each) for each in jobs.items()]
for thread in threads:
    thread.start()
while len(tracker.getActiveJobsIds()) < 2:
    time.sleep(0.05)
unwanted.set_result(None)
for thread in threads:
    thread.join()
print(said, "jobs left:", len(tracker.getActiveJobsIds()))
"""


def test_who_wants_a_job_no_more_ends_no_other_of_its_session(tmp_path: Path) -> None:
    assert lines_of(_TWO_JOBS) == ["[('endless', 'unwanted'), ('other', 1)] jobs left: 0"]


def test_a_local_spark_is_free_again_after_an_interruption(tmp_path: Path) -> None:
    assert lines_of(_PROGRAM) == ["handler kept True", "interrupted, jobs left: 0", "counted 10"]


def lines_of(program: str) -> list[str]:
    """What ``program`` says, in a process and with a Spark of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=Path(__file__).parents[2],
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()

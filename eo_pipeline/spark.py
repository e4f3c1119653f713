"""The Spark session: local, on a cluster, or a warm Spark Connect server.

Everything the pipeline does runs on all three: no ``_jvm``, no ``sparkContext``, no RDD.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError
from pydantic import BaseModel, ConfigDict, Field
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from eo_pipeline.errors import SetupError

SparkProvider = Callable[[], SparkSession]

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Newer connectors than the Spark in use do not load; this one matches pyspark 4.0.0.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"

#: A folder of connector jars resolved beforehand; saves Spark asking a repository at each start.
JARS_VARIABLE = "EO_SPARK_JARS"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # failures come back as our own errors; Spark's warnings about them only bury the sentence
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # the throughput collector: 5.2 s -> 3.2 s session start and a third off a cold bulk run
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

#: A driver without executors elsewhere has nobody to talk to outside.
_ON_THIS_MACHINE_ONLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

#: Spark writes INT96 timestamps by default, which other readers of Parquet refuse or misread.
STAGING_SETTINGS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}

#: Seconds an interrupted job has to end; after them the interruption goes on without it.
CANCEL_SECONDS = 10.0
CANCEL_AGAIN_SECONDS = 0.5


class SparkSettings(BaseModel):
    """Where Spark runs.

    Args:
        master: ``local[*]`` or a cluster's URL.
        remote: ``sc://host:port`` of a Spark Connect server; wins over ``master``. The Kafka
            connector must then be on the server. ``SPARK_REMOTE`` in the environment does the
            same.
        driver_memory: heap of a locally started driver.
        config: any further Spark setting.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    master: str = "local[*]"
    remote: str | None = None
    driver_memory: str = "2g"
    config: Mapping[str, str] = Field(default_factory=dict)

    def session(self) -> SparkSession:
        """Start Spark, or return the session this process already has.

        Raises:
            SetupError: no Java, or Spark did not start.
        """
        # pyspark logs every query error it is about to raise, stack and all
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        # Python workers must run this interpreter: another one misses pyarrow
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        remote = self.remote or os.environ.get("SPARK_REMOTE")
        if not remote and SparkSession.getActiveSession() is None:
            # left in the environment by a process that spoke Spark Connect and started this one:
            # pyspark would ask for the remote's address instead of starting Spark
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        builder = SparkSession.Builder().appName("eo-pipeline")
        builder = builder.remote(remote) if remote else builder.master(self.master)
        for key, value in (self._local() if not remote else dict(self.config)).items():
            builder = builder.config(key, value)
        try:
            with _our_interrupts():
                return builder.getOrCreate()
        except PySparkException as error:
            raise SetupError(
                f"Spark did not start: {error}. It needs Java 17 (JAVA_HOME or java on the PATH)."
            ) from error

    def _local(self) -> dict[str, str]:
        settings = _DEFAULTS | {"spark.driver.memory": self.driver_memory} | _connector()
        if self.master.startswith("local"):
            settings |= _ON_THIS_MACHINE_ONLY
        return settings | dict(self.config)


def interruptible(spark: SparkSession, job: Callable[[], T]) -> T:
    """The result of ``job``, a Spark job of ``spark``; an interruption ends the job, too.

    The job runs in a thread of its own and this one waits for it. A thread that is interrupted
    while it speaks to Spark itself can do nothing more there: over py4j its connection is taken
    until the job ends, and the interruption may even come out as an error of the network.

    Raises:
        Exception: whatever ``job`` raises.
        BaseException: the interruption; the job has ended by then, or :data:`CANCEL_SECONDS` have.
    """
    tag = f"eo-{uuid.uuid4().hex}"
    done: Future[T] = Future()

    def tagged() -> T:
        spark.addTag(tag)  # of this thread only
        return job()

    # with the caller's scheduler pool and job group; no wrapper where py4j threads share them
    inheriting = inheritable_thread_target(spark)
    whole = inheriting(tagged) if callable(inheriting) else tagged
    threading.Thread(target=_settle, args=(done, whole), daemon=True).start()
    try:
        return done.result()
    except BaseException:
        if not done.done():
            _cancel(spark, tag, done)
        raise


def _settle(done: Future[T], job: Callable[[], T]) -> None:
    try:
        done.set_result(job())
    except BaseException as error:  # noqa: BLE001 - for the thread that waits
        done.set_exception(error)


def _cancel(spark: SparkSession, tag: str, done: Future[T]) -> None:
    """Again and again: a job has parts, and the next may begin just after one was cancelled."""

    def ask() -> None:
        with suppress(PySparkException, Py4JError):  # Spark is gone, and the job with it
            while not done.done():
                spark.interruptTag(tag)
                wait([done], CANCEL_AGAIN_SECONDS)

    # Spark may not answer: an interruption does not wait for that
    threading.Thread(target=ask, daemon=True).start()
    if wait([done], CANCEL_SECONDS).not_done:
        log.warning("interrupted, and Spark has not ended its job within %.0f s", CANCEL_SECONDS)


@contextmanager
def _our_interrupts() -> Iterator[None]:
    """Keep the handler of SIGINT that is there. A Spark that starts in the main thread puts one
    in its place which asks the JVM over the connection that the interrupted thread is using.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and handler is not None:  # None: of a host that is not Python
            signal.signal(signal.SIGINT, handler)


def _connector() -> dict[str, str]:
    folder = os.environ.get(JARS_VARIABLE)
    if not folder:
        return {"spark.jars.packages": CONNECTOR}
    jars = sorted(Path(folder).glob("*.jar"))
    if not jars:
        raise SetupError(f"{JARS_VARIABLE} names a folder without jars; run `make setup`.")
    return {"spark.jars": ",".join(str(jar.absolute()) for jar in jars)}

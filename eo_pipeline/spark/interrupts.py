"""An interruption (Ctrl-C, SIGTERM, Terminate in Dagster) while Spark works."""

from __future__ import annotations

import logging
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.failures import server_is_lost
from eo_pipeline.spark.tasks_done import telling_tasks

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds an interrupted job has to end; after them the interruption goes on without it.
CANCEL_SECONDS = 10.0
CANCEL_AGAIN_SECONDS = 0.5

#: Seconds between two looks at whether the Spark that works still answers, and after how many looks
#: without an answer it is given up.
LOOK_SECONDS = 30.0
LOOKS_MISSED_MAX = 2


def interruptible(spark: SparkSession, job: Callable[[], T], name: str | None = None) -> T:
    """The result of ``job``, a Spark job of ``spark``; an interruption ends the job, too.

    By its ``name`` another process can end it, should this one be killed:
    :mod:`eo_pipeline.spark.left_jobs`.

    The job runs in a thread of its own and this one waits for it. A thread that is interrupted
    while it speaks to Spark itself can do nothing more there: over py4j its connection is taken
    until the job ends, and the interruption may even come out as an error of the network.

    Raises:
        Exception: whatever ``job`` raises.
        ConnectionError: Spark does not answer any more.
        BaseException: the interruption; the job has ended by then, or :data:`CANCEL_SECONDS` have.
    """
    tag = tag_of(name or uuid.uuid4().hex)
    done: Future[T] = Future()

    def tagged() -> T:
        spark.addTag(tag)  # of this thread only
        return job()

    # with the caller's scheduler pool and job group; no wrapper where py4j threads share them
    inheriting = inheritable_thread_target(spark)
    whole = inheriting(tagged) if callable(inheriting) else tagged
    threading.Thread(target=_settle, args=(done, whole), daemon=True).start()
    try:
        with telling_tasks(spark, done):
            return _waited_for(done, spark)
    finally:
        if not done.done():  # so this thread was interrupted, or Spark is frozen
            _cancel(spark, tag, done)


def tag_of(name: str) -> str:
    """What Spark calls the job ``name``."""
    return f"eo-{name}"


def _waited_for(done: Future[T], spark: SparkSession) -> T:
    """The result, unless Spark does not answer any more: a frozen server ends no connection, and
    its client would wait for ever. A busy one may miss one look.
    """
    missed = 0
    while wait([done], LOOK_SECONDS).not_done:
        missed = missed + 1 if server_is_lost(spark) else 0
        if missed == LOOKS_MISSED_MAX:
            raise ConnectionError(f"Spark did not answer at {missed} looks while it had a job")
    return done.result()


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
                _cancel_now(spark, tag)
                wait([done], CANCEL_AGAIN_SECONDS)

    # Spark may not answer: an interruption does not wait for that
    threading.Thread(target=ask, daemon=True).start()
    if wait([done], CANCEL_SECONDS).not_done:
        log.warning("interrupted, and Spark has not ended its job within %.0f s", CANCEL_SECONDS)


def _cancel_now(spark: SparkSession, tag: str) -> None:
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        # here a tag is known only to the thread that added it, which is waiting for the job
        spark.interruptAll()


@contextmanager
def keeping_interrupts() -> Iterator[None]:
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

"""An interruption (Ctrl-C, SIGTERM, Terminate in Dagster) while Spark works."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Lock
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from eo_pipeline.progress import Phase, current
from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.errors import server_is_lost

T = TypeVar("T")
log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_UNIT = "Spark tasks done"


class _Stage(Protocol):
    """A stage as a Spark Connect server tells of it."""

    num_tasks: int
    num_completed_tasks: int


@contextmanager
def telling_tasks(spark: SparkSession, done: Future[Any]) -> Iterator[None]:
    """Within, the phase of this thread advances with the job that ``done`` waits for."""
    phase = current()
    if not is_connect(spark):
        # in a thread of its own: one that is interrupted while it speaks py4j cannot go on there
        threading.Thread(target=_watch, args=(spark, done, phase), daemon=True).start()
        yield
        return

    def hear(stages: Iterable[_Stage] | None, *_: Any, **__: Any) -> None:
        listed = list(stages or ())
        _advance(phase, [(each.num_completed_tasks, each.num_tasks) for each in listed])

    spark.registerProgressHandler(hear)
    try:
        yield
    finally:
        spark.removeProgressHandler(hear)


def _watch(spark: SparkSession, done: Future[Any], phase: Phase) -> None:
    with suppress(Py4JError, OSError):  # Spark is gone, and the job says so
        tracker = spark.sparkContext.statusTracker()
        while wait([done], _LOOK_SECONDS).not_done:
            jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
            stages = [tracker.getStageInfo(s) for job in jobs if job for s in job.stageIds]
            _advance(phase, [(s.numCompletedTasks, s.numTasks) for s in stages if s])


def _advance(phase: Phase, stages: list[tuple[int, int]]) -> None:
    total = sum(tasks for _, tasks in stages)
    if total:
        phase.advance(sum(completed for completed, _ in stages), total, _UNIT)


#: Seconds an interrupted job has to end; after them the interruption goes on without it.
CANCEL_SECONDS = 10.0
CANCEL_AGAIN_SECONDS = 0.5

#: Seconds between two looks at whether the Spark that works still answers, and after how many looks
#: without an answer it is given up.
LOOK_SECONDS = 30.0
LOOKS_MISSED_MAX = 2

#: Done when nobody wants the jobs of this context any more.
_UNWANTED: ContextVar[Future[None]] = ContextVar("eo_pipeline.spark.interrupts")


class UnwantedError(BaseException):
    """Nobody wants the job any more. As an interruption it is no :class:`Exception`."""


@contextmanager
def until(unwanted: Future[None]) -> Iterator[None]:
    """Within, jobs end when ``unwanted`` is done, and no further one begins: what an interruption
    is to the main thread, which alone can be interrupted.
    """
    token = _UNWANTED.set(unwanted)
    try:
        yield
    finally:
        _UNWANTED.reset(token)


def interruptible(spark: SparkSession, job: Callable[[], T], name: str | None = None) -> T:
    """The result of ``job``, a Spark job of ``spark``; an interruption ends the job, too.

    By its ``name`` another process can end it, should this one be killed:
    :mod:`eo_pipeline.spark.interrupts`.

    The job runs in a thread of its own and this one waits for it. A thread that is interrupted
    while it speaks to Spark itself can do nothing more there: over py4j its connection is taken
    until the job ends, and the interruption may even come out as an error of the network.

    Raises:
        Exception: whatever ``job`` raises.
        ConnectionError: Spark does not answer any more.
        BaseException: the interruption, or UnwantedError; the job has ended by then, or
            :data:`CANCEL_SECONDS` have.
    """
    if _unwanted().done():
        raise UnwantedError
    tag = tag_of(name or uuid.uuid4().hex)

    def tagged() -> T:
        _add_tag(spark, tag)
        return job()

    done = beside(spark, tagged)
    try:
        with telling_tasks(spark, done):
            return _waited_for(done, spark)
    finally:
        if not done.done():  # so this thread was interrupted, or Spark is frozen
            _cancel(spark, tag, done)


def _unwanted() -> Future[None]:
    return _UNWANTED.get(None) or Future()  # which is never done


def beside(spark: SparkSession, job: Callable[[], T]) -> Future[T]:
    """``job``, under way in a thread of its own, which no end of the process waits for."""
    done: Future[T] = Future()
    # with the caller's scheduler pool and job group; no wrapper where py4j threads share them
    inheriting = inheritable_thread_target(spark)
    whole = inheriting(job) if callable(inheriting) else job
    threading.Thread(target=_settle, args=(done, whole), daemon=True).start()
    return done


def tag_of(name: str) -> str:
    """What Spark calls the job ``name``."""
    return f"eo-{name}"


def _waited_for(done: Future[T], spark: SparkSession) -> T:
    """The result, unless nobody wants it or Spark does not answer any more: a frozen server ends no
    connection, and its client would wait for ever. A busy one may miss one look.
    """
    missed, either = 0, [cast(Future[object], done), cast(Future[object], _unwanted())]
    while not wait(either, LOOK_SECONDS, FIRST_COMPLETED).done:
        missed = missed + 1 if server_is_lost(spark) else 0
        if missed == LOOKS_MISSED_MAX:
            raise ConnectionError(f"Spark did not answer at {missed} looks while it had a job")
    if not done.done():
        raise UnwantedError
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


def _add_tag(spark: SparkSession, tag: str) -> None:
    """To the jobs of this thread only."""
    if is_connect(spark):
        spark.addTag(tag)
    else:
        # a classic session's own tags are known only to the thread that added them
        spark.sparkContext.addJobTag(tag)


def _cancel_now(spark: SparkSession, tag: str) -> None:
    """This job and no other: another pipeline may be at work in the same session."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


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


def session_on_server(spark: SparkSession) -> str | None:
    """The id of a session that outlives this process, because it lives on a server."""
    if not is_connect(spark):
        return None
    from eo_pipeline.spark.connect import session_id

    return session_id(spark)


def end_left_job(spark: SparkSession, session: str, name: str) -> None:
    """End the job ``name`` of a process that was killed, which ran in ``session`` on the server of
    ``spark``. A server that does not answer is not asked twice.
    """
    if not is_connect(spark):
        return
    from eo_pipeline.spark.connect import interrupt_elsewhere  # takes long to import

    interrupt_elsewhere(spark, session, tag_of(name))


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

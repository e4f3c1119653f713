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

_PROGRESS_INTERVAL_S = 1.0
_UNIT = "Spark tasks done"


class _Stage(Protocol):
    """Progress of a stage, as reported by a Spark Connect server."""

    num_tasks: int
    num_completed_tasks: int


@contextmanager
def reporting_progress(spark: SparkSession, done: Future[Any]) -> Iterator[None]:
    """Within the block, advance this thread's phase with the job of ``done``."""
    phase = current()
    if not is_connect(spark):
        # in a separate thread: one interrupted within a py4j call cannot use its connection again
        threading.Thread(target=_watch, args=(spark, done, phase), daemon=True).start()
        yield
        return

    def hear(stages: Iterable[_Stage] | None, *_: Any, **__: Any) -> None:
        counts = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
        _advance(phase, counts)

    spark.registerProgressHandler(hear)
    try:
        yield
    finally:
        spark.removeProgressHandler(hear)


def _watch(spark: SparkSession, done: Future[Any], phase: Phase) -> None:
    with suppress(Py4JError, OSError):  # Spark is lost; the job reports it
        tracker = spark.sparkContext.statusTracker()
        while wait([done], _PROGRESS_INTERVAL_S).not_done:
            jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
            stages = [tracker.getStageInfo(s) for job in jobs if job for s in job.stageIds]
            _advance(phase, [(s.numCompletedTasks, s.numTasks) for s in stages if s])


def _advance(phase: Phase, stages: list[tuple[int, int]]) -> None:
    total = sum(tasks for _, tasks in stages)
    if total:
        phase.advance(sum(completed for completed, _ in stages), total, _UNIT)


#: Seconds for an interrupted job to end; then the interruption proceeds without it.
CANCEL_SECONDS = 10.0
CANCEL_AGAIN_SECONDS = 0.5

#: Seconds between two liveness checks of Spark during a job, and the number of consecutive failed
#: checks after which the job is abandoned.
LIVENESS_INTERVAL_S = 30.0
_CHECKS_FAILED_MAX = 2

#: Done when the jobs of this context are to be cancelled.
_UNWANTED: ContextVar[Future[None]] = ContextVar("eo_pipeline.spark.interrupts")


class UnwantedError(BaseException):
    """The job was cancelled. Like KeyboardInterrupt it is no :class:`Exception`."""


@contextmanager
def until(unwanted: Future[None]) -> Iterator[None]:
    """Within the block, cancel jobs when ``unwanted`` is done, and start no further one. It stands
    for an interruption in other threads than the main one, which alone receives signals.
    """
    token = _UNWANTED.set(unwanted)
    try:
        yield
    finally:
        _UNWANTED.reset(token)


def interruptible(spark: SparkSession, job: Callable[[], T], name: str | None = None) -> T:
    """Run ``job``, a Spark job of ``spark``, and return its result; an interruption cancels the
    job, too.

    If this process is killed, another one can cancel the job by its ``name``:
    :func:`end_left_job`.

    The job runs in a separate thread, and this one waits. A thread interrupted within a call to
    Spark cannot use Spark any more: over py4j its connection is occupied until the job ends, and
    the interruption may surface as a network error.

    Raises:
        Exception: any error of ``job``.
        ConnectionError: Spark does not answer any more.
        BaseException: the interruption, or UnwantedError, once the job has ended or
            :data:`CANCEL_SECONDS` have passed.
    """
    if _unwanted().done():
        raise UnwantedError
    tag = job_tag(name or uuid.uuid4().hex)

    def tagged() -> T:
        _add_tag(spark, tag)
        return job()

    done = beside(spark, tagged)
    try:
        with reporting_progress(spark, done):
            return _waited_for(done, spark)
    finally:
        if not done.done():  # this thread was interrupted, or Spark is frozen
            _cancel(spark, tag, done)


def _unwanted() -> Future[None]:
    return _UNWANTED.get(None) or Future()  # which is never done


def beside(spark: SparkSession, job: Callable[[], T]) -> Future[T]:
    """Start ``job`` in a daemon thread; return its future."""
    done: Future[T] = Future()
    # with the caller's scheduler pool and job group; no wrapper where py4j threads share them
    inheriting = inheritable_thread_target(spark)
    target = inheriting(job) if callable(inheriting) else job
    threading.Thread(target=_settle, args=(done, target), daemon=True).start()
    return done


def job_tag(name: str) -> str:
    """Return Spark's tag of the job ``name``."""
    return f"eo-{name}"


def _waited_for(done: Future[T], spark: SparkSession) -> T:
    """Return the result, unless the job is cancelled or Spark stops answering: a frozen server
    closes no connection, and its client would wait for ever. A busy one may fail one check.
    """
    failed, either = 0, [cast(Future[object], done), cast(Future[object], _unwanted())]
    while not wait(either, LIVENESS_INTERVAL_S, FIRST_COMPLETED).done:
        failed = failed + 1 if server_is_lost(spark) else 0
        if failed == _CHECKS_FAILED_MAX:
            raise ConnectionError(f"Spark did not answer at {failed} looks while it had a job")
    if not done.done():
        raise UnwantedError
    return done.result()


def _settle(done: Future[T], job: Callable[[], T]) -> None:
    try:
        done.set_result(job())
    except BaseException as error:  # noqa: BLE001 - for the thread that waits
        done.set_exception(error)


def _cancel(spark: SparkSession, tag: str, done: Future[T]) -> None:
    """Cancel repeatedly: the next part of a job may begin just after one was cancelled."""

    def ask() -> None:
        with suppress(PySparkException, Py4JError):  # Spark is gone, and the job with it
            while not done.done():
                _cancel_now(spark, tag)
                wait([done], CANCEL_AGAIN_SECONDS)

    # in a thread: Spark may not answer, and an interruption must not wait for it
    threading.Thread(target=ask, daemon=True).start()
    if wait([done], CANCEL_SECONDS).not_done:
        log.warning("interrupted, and Spark has not ended its job within %.0f s", CANCEL_SECONDS)


def _add_tag(spark: SparkSession, tag: str) -> None:
    """Tag the jobs of this thread only."""
    if is_connect(spark):
        spark.addTag(tag)
    else:
        # a classic session's own tags are visible only to the thread that added them
        spark.sparkContext.addJobTag(tag)


def _cancel_now(spark: SparkSession, tag: str) -> None:
    """Cancel this job only: another pipeline may use the same session."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


@contextmanager
def restoring_sigint() -> Iterator[None]:
    """Restore SIGINT's handler after the block. A Spark that starts in the main thread replaces it
    by one that calls the JVM over the connection of the interrupted thread.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and handler is not None:  # None: set by a host that is not Python
            signal.signal(signal.SIGINT, handler)


def session_on_server(spark: SparkSession) -> str | None:
    """Return the id of a session on a server, where it outlives this process; else None."""
    if not is_connect(spark):
        return None
    from eo_pipeline.spark.connect import session_id

    return session_id(spark)


def end_left_job(spark: SparkSession, session: str, name: str) -> None:
    """Cancel the job ``name`` of a killed process, which ran in ``session`` on the server of
    ``spark``. Makes one attempt.
    """
    if not is_connect(spark):
        return
    from eo_pipeline.spark.connect import cancel_in_session  # takes long to import

    cancel_in_session(spark, session, job_tag(name))


#: Lifetime of a cached number of cores: a cluster may grow and shrink.
_CORES_LIFETIME_S = 60.0

#: Query whose plan has one partition for each core, Spark's default.
_EXPLAIN = "EXPLAIN SELECT id FROM range(1)"
_SPLITS = re.compile(r"\bsplits=(?:Some\()?(\d+)")

_cores: WeakKeyDictionary[SparkSession, tuple[float, int | None]] = WeakKeyDictionary()
_lock = Lock()


def cores(spark: SparkSession) -> int | None:
    """Return the cores of all executors; ``None`` if Spark's plan does not show them."""
    with _lock:
        counted_at, count = _cores.get(spark, (0.0, None))
    if counted_at and time.monotonic() - counted_at < _CORES_LIFETIME_S:
        return count
    count = _cores_in_plan(spark) if is_connect(spark) else spark.sparkContext.defaultParallelism
    with _lock:
        _cores[spark] = (time.monotonic(), count)
    return count


def _cores_in_plan(spark: SparkSession) -> int | None:
    """Read the cores from a plan. On a classic session this would be the first query, and take a
    second.
    """
    match = _SPLITS.search(interruptible(spark, lambda: str(spark.sql(_EXPLAIN).collect())))
    return int(match[1]) if match else None

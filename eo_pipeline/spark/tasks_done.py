"""How many of its tasks a Spark job has done, for whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from eo_pipeline.progress import Phase, current
from eo_pipeline.spark.clients import is_connect

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

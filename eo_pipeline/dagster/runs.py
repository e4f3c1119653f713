"""What Dagster's runs of a pipeline are doing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import dagster as dg

from eo_pipeline.dagster.names import MOVE_NOTHING, OPERATION_TAG, PIPELINE_TAG, DagsterPipeline

#: Whatever may be committing at this moment.
WORKING = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)

#: The wait after the first of several failures; each further one doubles it.
FIRST_PAUSE = timedelta(seconds=30)
FAILURES_COUNTED = 8  # the longest wait is a little over an hour
RUNS_LOOKED_AT = 30


def working_run(instance: dg.DagsterInstance, declared: DagsterPipeline) -> dg.DagsterRun | None:
    """A run of this pipeline that works, however it was started."""
    return _first(instance, _filter(declared, *WORKING))


def unfinished_run(instance: dg.DagsterInstance, declared: DagsterPipeline) -> dg.DagsterRun | None:
    """A run of this pipeline that waits or works.

    One that the UI's Materialize button queued is not found before it works: it gets its tag from
    its own step.
    """
    return _first(instance, _filter(declared, dg.DagsterRunStatus.QUEUED, *WORKING))


def unfinished_runs(
    instance: dg.DagsterInstance, pipelines: Iterable[str], *, working: bool = False
) -> dict[str, dg.DagsterRun]:
    """The same of many pipelines, by name, in one question; ``working``: only of those that do."""
    statuses = WORKING if working else (dg.DagsterRunStatus.QUEUED, *WORKING)
    wanted = dg.RunsFilter(statuses=statuses, tags={PIPELINE_TAG: [*pipelines]})
    found = [run for run in instance.get_runs(wanted) if _may_move(run)]
    return {run.tags[PIPELINE_TAG]: run for run in reversed(found)}  # the newest of each


def pause_after_failures(
    instance: dg.DagsterInstance, declared: DagsterPipeline, now: float
) -> timedelta | None:
    """How long a sensor should still wait because the last runs failed; None: not at all.

    A topic that was recreated, say, fails every run until a person decides. Without a growing
    pause a level-triggered sensor would start one after the other.
    """
    newest = instance.get_run_records(_filter(declared), limit=RUNS_LOOKED_AT)
    # a rewind that was refused says nothing of whether reading on works
    forward = [each for each in newest if OPERATION_TAG not in each.dagster_run.tags]
    records = forward[:FAILURES_COUNTED]
    failures = 0
    for record in records:
        if record.dagster_run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    if not failures or records[0].end_time is None:
        return None
    until = records[0].end_time + (FIRST_PAUSE * 2 ** (failures - 1)).total_seconds()
    return timedelta(seconds=round(until - now)) if until > now else None


def _first(instance: dg.DagsterInstance, wanted: dg.RunsFilter) -> dg.DagsterRun | None:
    """The newest such run that may move the ledger: an audit only looks."""
    runs = instance.get_runs(wanted)
    return next(filter(_may_move, runs), None)


def _may_move(run: dg.DagsterRun) -> bool:
    return run.tags.get(OPERATION_TAG) not in MOVE_NOTHING


def _filter(declared: DagsterPipeline, *statuses: dg.DagsterRunStatus) -> dg.RunsFilter:
    return dg.RunsFilter(statuses=statuses or None, tags=declared.known_by)

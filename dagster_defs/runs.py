"""What Dagster's runs of a pipeline are doing."""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

from dagster_defs.names import DagsterPipeline

#: Whatever may be committing at this moment.
WORKING = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)

#: The wait after the first of several failures; each further one doubles it.
FIRST_PAUSE = timedelta(seconds=30)
FAILURES_COUNTED = 8  # the longest wait is a little over an hour


def working_run(instance: dg.DagsterInstance, declared: DagsterPipeline) -> dg.DagsterRun | None:
    """A run of this pipeline that works, however it was started."""
    runs = instance.get_runs(_filter(declared, *WORKING), limit=1)
    return runs[0] if runs else None


def unfinished_run(instance: dg.DagsterInstance, declared: DagsterPipeline) -> dg.DagsterRun | None:
    """A run of this pipeline that waits or works.

    One that the UI's Materialize button queued is not found before it works: it gets its tag from
    its own step.
    """
    runs = instance.get_runs(_filter(declared, dg.DagsterRunStatus.QUEUED, *WORKING), limit=1)
    return runs[0] if runs else None


def pause_after_failures(
    instance: dg.DagsterInstance, declared: DagsterPipeline, now: float
) -> timedelta | None:
    """How long a sensor should still wait because the last runs failed; None: not at all.

    A topic that was recreated, say, fails every run until a person decides. Without a growing
    pause a level-triggered sensor would start one after the other.
    """
    records = instance.get_run_records(_filter(declared), limit=FAILURES_COUNTED)
    failures = 0
    for record in records:
        if record.dagster_run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    if not failures or records[0].end_time is None:
        return None
    until = records[0].end_time + (FIRST_PAUSE * 2 ** (failures - 1)).total_seconds()
    return timedelta(seconds=round(until - now)) if until > now else None


def _filter(declared: DagsterPipeline, *statuses: dg.DagsterRunStatus) -> dg.RunsFilter:
    return dg.RunsFilter(statuses=statuses or None, tags=declared.run_tags)

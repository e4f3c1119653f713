"""One Dagster run in this process, in the instance that DAGSTER_HOME names.

The job is the one that schedule, sensors and the UI start, and the UI shows the run like any
other. Started by :mod:`demo.materialize` as a process of its own:

    python -m demo.dagster_run RESULT-FILE --wait-for DESCRIPTOR [--bury-only]

It loads everything, and waits for a byte from the pipe before it begins the run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from pyspark.sql import SparkSession

from dagster_defs.definitions import defs
from demo.run_result import RunResult

JOB = "flights_job"

_RUNNING = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def bury_dead_runs(instance: dg.DagsterInstance) -> None:
    """End the runs whose process was killed together with Dagster itself.

    Nobody else does: the daemon only notices an hour later. Until then such a run keeps its place
    in the pool, and the sensors wait for it. Only for somebody who knows that no run is alive.
    """
    for run in instance.get_runs(dg.RunsFilter(statuses=_RUNNING)):
        # canceled, not failed: Dagster would start a failed run again, beside the one that follows
        instance.report_run_canceled(run, "The process of this run was killed.")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def execute(job: dg.JobDefinition, instance: dg.DagsterInstance) -> RunResult:
    """Run ``job`` to its end, whatever that is."""
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    return RunResult(
        run_id=result.run_id,
        success=result.success,
        error=None if result.success else _reason(result),
        spark_started=SparkSession.getActiveSession() is not None,
    )


def _reason(result: dg.ExecuteInProcessResult) -> str:
    """The error's own sentence, without Dagster's frame around it."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            told = data.user_failure_data
            if told is not None and told.description:
                return told.description
            if data.error is not None:
                return (data.error.cause or data.error).message.strip()
    return "the run was interrupted"


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if the run succeeded, or was never to begin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--wait-for", type=int, required=True)
    parser.add_argument("--bury-only", action="store_true")
    options = parser.parse_args(arguments)
    with dg.DagsterInstance.get() as instance:
        bury_dead_runs(instance)
        if options.bury_only:
            return 0
        job = defs().resolve_job_def(JOB)
        if not os.read(options.wait_for, 1):  # the other end is closed: the parent gave up
            return 0
        result = execute(job, instance)
    result.write(options.result)
    return 0 if result.success else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

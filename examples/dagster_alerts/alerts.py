"""Two sensors that tell somebody: a run failed, a table is no longer fresh.

Put this file beside your definitions and merge what it makes with them:

    dg.Definitions.merge(load_pipelines(here), alerts())

EO_ALERT_URL takes a POST of {"text": ...}, as Slack, Mattermost and most pagers do.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request

import dagster as dg


def tell(text: str) -> None:
    """One message. What goes wrong fails the tick, and Dagster tries the next one."""
    request = urllib.request.Request(
        os.environ["EO_ALERT_URL"],
        json.dumps({"text": text}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()


def told_of(event: dg.DagsterEvent) -> str:
    """Which kind of error ended a step, and the engine's sentence."""
    failure = event.step_failure_data.user_failure_data
    if failure is None:  # not one of the engine's: a resource, another asset of the job
        return str(event.step_failure_data.error_display_string)
    kind = failure.metadata["error"].value if "error" in failure.metadata else "Failure"
    return f"{kind}: {failure.description}"


@dg.run_failure_sensor(default_status=dg.DefaultSensorStatus.RUNNING)
def tell_of_failed_runs(context: dg.RunFailureSensorContext) -> None:
    """Of every run of this code location that failed, once its retries are over."""
    run = context.dagster_run
    steps = [told_of(event) for event in context.get_step_failure_events()]
    what = "; ".join(steps) or context.failure_event.message
    tell(f"{run.job_name} failed ({run.run_id[:8]}): {what}")


@dg.sensor(minimum_interval_seconds=60, default_status=dg.DefaultSensorStatus.RUNNING)
def tell_of_stale_tables(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Of every asset that is older than its freshness policy lets it be: once, and once again
    when it is fresh. The cursor remembers who was told of.
    """
    assert context.repository_def is not None
    graph = context.repository_def.asset_graph
    known = set(json.loads(context.cursor or "[]"))
    stale = {
        node.key.to_user_string()
        for node in graph.asset_nodes
        if (window := getattr(node.freshness_policy, "fail_window", None))
        and _age_s(context.instance, node.key) > window.to_timedelta().total_seconds()
    }
    for name in sorted(stale - known):
        tell(f"{name} is older than its freshness policy allows")
    for name in sorted(known - stale):
        tell(f"{name} is fresh again")
    context.update_cursor(json.dumps(sorted(stale)))
    return dg.SkipReason(f"{len(stale)} tables are stale")


def _age_s(instance: dg.DagsterInstance, key: dg.AssetKey) -> float:
    """0 for what was never there: nobody waits for it yet."""
    event = instance.get_latest_materialization_event(key)
    return time.time() - event.timestamp if event else 0.0


def alerts() -> dg.Definitions:
    """Both sensors."""
    return dg.Definitions(sensors=[tell_of_failed_runs, tell_of_stale_tables])

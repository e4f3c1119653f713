"""The job that materializes a pipeline's assets, and its schedule."""

from __future__ import annotations

import dagster as dg

from eo_pipeline.dagster.audit import audit_key
from eo_pipeline.dagster.names import DagsterPipeline


def build_job(declared: DagsterPipeline) -> dg.JobDefinition | dg.UnresolvedAssetJobDefinition:
    """Table, offsets and the checks of these, in one process, so that Spark starts once at most."""
    return dg.define_asset_job(
        declared.job,
        selection=dg.AssetSelection.assets(declared.table, declared.offsets)
        - dg.AssetSelection.checks(audit_key(declared)),
        description=f"Brings {declared.pipeline.name!r} up to what Kafka holds.",
        tags=declared.run_tags,
        executor_def=dg.in_process_executor,
    )


def build_schedule(declared: DagsterPipeline) -> dg.ScheduleDefinition | None:
    """The cadence, if one is declared. The lag sensor reacts faster; both may be on."""
    return scheduled(declared, declared.automation.schedule, "schedule", declared.job)


def scheduled(
    declared: DagsterPipeline, cron: str | None, name: str, job: str
) -> dg.ScheduleDefinition | None:
    """``<pipeline>_<name>``, which starts ``job``; ``None`` without a ``cron`` expression."""
    if cron is None:
        return None
    return dg.ScheduleDefinition(
        name=f"{declared.identifier}_{name}",
        job_name=job,
        cron_schedule=cron,
        execution_timezone=declared.automation.schedule_timezone,
        default_status=declared.automation.schedule_status,
    )

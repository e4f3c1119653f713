"""The job that materializes a pipeline's assets, and its schedule."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from eo_pipeline.dagster.audit import audit_key
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.resources import SparkDefinition


class _JobOfItsOwn(UnresolvedAssetJobDefinition):
    """What ``dg.define_asset_job`` makes, resolved among its own assets alone: Dagster goes through
    all assets of the code location for each job, so that 200 pipelines took as long as 40,000.

    Nor does it hold the other pipelines' Sparks: Dagster's daemon asks every minute for all jobs
    as they are declared, each with all its resources and their configuration.
    """

    def resolve(
        self,
        asset_graph: AssetGraph,
        default_executor_def: dg.ExecutorDefinition | None = None,
        resource_defs: Mapping[str, dg.ResourceDefinition] | None = None,
    ) -> dg.JobDefinition:
        """See the parent."""
        keys = self.selection.resolve(asset_graph)
        checks = {check for key in keys for check in asset_graph.get(key).check_keys}
        own = asset_graph.assets_defs_for_keys([*keys, *checks])
        needed = {key for each in own for key in each.required_resource_keys}
        kept = {
            key: made
            for key, made in (resource_defs or {}).items()
            if key in needed or not isinstance(made, SparkDefinition)
        }
        return super().resolve(AssetGraph.from_assets(own), default_executor_def, kept)


def build_job(declared: DagsterPipeline) -> UnresolvedAssetJobDefinition:
    """Table, offsets and the checks of these, in one process, so that Spark starts once at most."""
    return _JobOfItsOwn(
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
    declared: DagsterPipeline,
    cron: str | None,
    name: str,
    job: str,
    config: Mapping[str, str] | None = None,
) -> dg.ScheduleDefinition | None:
    """``<pipeline>_<name>``, which starts ``job``; ``None`` without a ``cron`` expression."""
    if cron is None:
        return None
    return dg.ScheduleDefinition(
        name=f"{declared.identifier}_{name}",
        job_name=job,
        run_config=config or None,
        tags=declared.run_tags,
        cron_schedule=cron,
        execution_timezone=declared.automation.schedule_timezone,
        default_status=declared.automation.schedule_status,
    )

"""One pipeline as Dagster definitions: what the YAML component and Python code both call."""

from __future__ import annotations

import dagster as dg

from eo_pipeline.dagster.assets import build_asset
from eo_pipeline.dagster.audit import build_audit_check
from eo_pipeline.dagster.automation import Automation
from eo_pipeline.dagster.checkpoints import build_checkpoints
from eo_pipeline.dagster.checks import build_checks, build_lag_checks
from eo_pipeline.dagster.jobs import build_job, build_schedule
from eo_pipeline.dagster.maintain import build_maintenance_schedule
from eo_pipeline.dagster.names import DagsterPipeline, Translation, topic_spec
from eo_pipeline.dagster.operations import build_operations
from eo_pipeline.dagster.resources import spark_definition
from eo_pipeline.dagster.sensors import build_sensors
from eo_pipeline.pipeline import Pipeline


def pipeline_definitions(
    pipeline: Pipeline,
    automation: Automation | None = None,
    *,
    translation: Translation | None = None,
) -> dg.Definitions:
    """Assets, checks, jobs, schedule, sensors and the Spark resource of one pipeline.

    Touches neither Kafka nor the sink. Merge the definitions of several pipelines, and set
    ``executor=dg.in_process_executor`` beside them: a run's checkpoints then share one Spark
    session, also when it was started by the UI's Materialize button.

    ``translation`` gets each asset's spec, and which it is (``"table"``, ``"offsets"``,
    ``"checkpoints"``), and returns what it shall be: ``lambda spec, _: spec.replace_attributes(
    key=spec.key.with_prefix("sales"))``. It makes the key of the key alone.
    """
    declared = DagsterPipeline(pipeline, automation or Automation(), translation)
    topics = dg.Definitions(assets=[topic_spec(key) for key in declared.topics])
    return dg.Definitions.merge(topics, without_topics(declared))


def without_topics(declared: DagsterPipeline) -> dg.Definitions:
    """The same, for the YAML component: see :mod:`eo_pipeline.dagster.loading`."""
    schedules = [build_schedule(declared), build_maintenance_schedule(declared)]
    return dg.Definitions(
        assets=[build_asset(declared), build_checkpoints(declared)],
        asset_checks=[
            *build_checks(declared),
            build_audit_check(declared),
            build_lag_checks(declared),
        ],
        jobs=[build_job(declared), *build_operations(declared)],
        schedules=[each for each in schedules if each],
        sensors=[] if declared.fleet else build_sensors(declared),
        resources={declared.spark: spark_definition(declared.pipeline.spark)},
    )

"""The result of an asset check, told by a step that is no check: a job, a sensor."""

from __future__ import annotations

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import DagsterEvent, DagsterEventType


def will_evaluate(context: dg.OpExecutionContext, key: dg.AssetCheckKey) -> None:
    """Show the check as being evaluated by this run; should the run end without a result, the
    check shows that its evaluation failed. A step of a check has Dagster do this.
    """
    planned = AssetCheckEvaluationPlanned(asset_key=key.asset_key, check_name=key.name)
    event = DagsterEvent(
        event_type_value=DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
        job_name=context.job_name,
        step_key=context.get_step_execution_context().step.key,
        message=f"evaluates the check {key.name!r} of {key.asset_key.to_user_string()}",
        event_specific_data=planned,
    )
    context.instance.report_dagster_event(event, context.run.run_id)


def evaluated(
    key: dg.AssetCheckKey, result: dg.AssetCheckResult, of: dg.EventLogRecord | None = None
) -> dg.AssetCheckEvaluation:
    """``result`` as an event that any step, or a sensor, may report.

    Args:
        of: the materialization that was looked at. Dagster shows a check as not evaluated once
            there is a newer one; without it, once there is one newer than the evaluation's start.
    """
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
        target_materialization_data=_target(of) if of else None,
    )


def _target(of: dg.EventLogRecord) -> AssetCheckEvaluationTargetMaterializationData:
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=of.storage_id, run_id=of.run_id, timestamp=of.timestamp
    )

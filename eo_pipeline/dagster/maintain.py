"""The job that keeps a lake table's files in order, by hand or by a schedule.

In no pool: it changes no row and moves no ledger, so runs go on beside it.
"""

# no `from __future__ import annotations`: Dagster reads the annotations of a step as they are

from typing import Any

import dagster as dg

from eo_pipeline.dagster.failures import retried
from eo_pipeline.dagster.jobs import scheduled
from eo_pipeline.dagster.names import MAINTAIN, DagsterPipeline
from eo_pipeline.dagster.one_step import LaunchpadJob
from eo_pipeline.dagster.requests import MaintainRequest
from eo_pipeline.dagster.tables import Columns, table
from eo_pipeline.run.maintain import MaintenanceReport

_COLUMNS: Columns = {
    "work": "string",
    "files": "int",
    "files_after": "int",
    "bytes": "int",
    "bytes_after": "int",
    "seconds": "float",
    "remark": "string",
}


def _maintain(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: MaintainRequest
) -> None:
    """See :meth:`eo_pipeline.pipeline.Pipeline.maintain`."""
    with retried(context, declared):
        report = declared.pipeline.maintain(dry_run=config.dry_run)
    for each in report.work:
        context.log.info(f"{each.work}: {each.remark}")
    context.add_output_metadata(_metadata(report))


MAINTAINING = LaunchpadJob(
    MAINTAIN,
    MaintainRequest,
    _maintain,
    "Puts small files of the table of {of} together, removes what it has no use for any more, and "
    "keeps its log short. Changes no row.",
    pooled=False,
)


def build_maintenance_schedule(declared: DagsterPipeline) -> dg.ScheduleDefinition | None:
    """Its cadence, if one is declared."""
    cron = declared.automation.maintenance_schedule
    return scheduled(
        declared, cron, f"{MAINTAIN}_schedule", declared.job_of(MAINTAIN), declared.chosen
    )


def _metadata(report: MaintenanceReport) -> dict[str, Any]:
    """What Dagster plots is the table's files and their bytes, as they are now."""
    rows = [each.to_json() for each in report.work]
    kept = next((each for each in report.work if each.work == "compact"), None)
    return {
        "work": table(_COLUMNS, rows),
        **({"files": kept.files_after, "bytes": kept.bytes_after} if kept else {}),
        **({"dry_run": True} if report.dry_run else {}),
    }

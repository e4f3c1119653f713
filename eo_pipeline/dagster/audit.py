"""The audit: an asset check over the newest checkpoints, and a job over as many as one likes.

It reads Kafka again and starts Spark, so it never runs beside a materialization: neither in the
forward job, which does not select it, nor after the Materialize button, which would.
"""

# no `from __future__ import annotations`: Dagster reads the annotations of a step as they are

from collections.abc import Iterator
from typing import Any

import dagster as dg

from eo_pipeline.audit import AuditReport, CheckpointAudit
from eo_pipeline.dagster.failures import failing, retried
from eo_pipeline.dagster.metadata import SHOWN_MAX
from eo_pipeline.dagster.names import AUDIT, DagsterPipeline
from eo_pipeline.dagster.one_step import one_step_job
from eo_pipeline.dagster.requests import NOT_GIVEN, AuditRequest

_PASSED = "every record is in the table once"


def audit_key(declared: DagsterPipeline) -> dg.AssetCheckKey:
    """The check of the table asset."""
    return dg.AssetCheckKey(declared.table, AUDIT)


def build_audit_check(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    """A check that may say nothing: that is what ``can_subset`` is for here."""
    last = declared.automation.audit_last

    @dg.multi_asset_check(
        name=f"{declared.op}_{AUDIT}_check",
        specs=[
            dg.AssetCheckSpec(
                AUDIT,
                asset=declared.table,
                description=(
                    f"Reads the ranges of the last {last:,} checkpoints in Kafka again, and "
                    "compares with the rows of the table: every record once. Run it by itself."
                ),
            )
        ],
        can_subset=True,
        required_resource_keys={declared.spark},
    )
    def audit(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        if context.run.asset_selection:
            context.log.info("not audited: this run materializes; run the check by itself")
            return
        with failing(context):
            yield check_result(declared, run_audit(declared, context, last))

    return audit


def build_audit_job(declared: DagsterPipeline) -> dg.JobDefinition:
    """Fails if the audit does, so that whoever watches runs is told."""

    def audit(context: dg.OpExecutionContext, config: AuditRequest) -> None:
        with retried(context, declared.automation):
            last = None if config.last == NOT_GIVEN else config.last
            report = run_audit(declared, context, last)
        context.log.info(str(report))
        if not report.passed:
            raise dg.Failure(summary(report), metadata(report), allow_retries=False)
        context.add_output_metadata(metadata(report))

    return one_step_job(
        declared,
        AUDIT,
        audit,
        f"Proves that the table of {declared.pipeline.name!r} holds every record of Kafka once, or "
        "says which checkpoints differ and what repairs them. Changes nothing.",
        resources=[declared.spark],
        pool=None,  # it only reads, and may take long: runs go on beside it
    )


def run_audit(
    declared: DagsterPipeline,
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext,
    last: int | None,
) -> AuditReport:
    """The engine's audit with the run's Spark."""
    return declared.pipeline.audit(
        last,
        spark=lambda: getattr(context.resources, declared.spark).spark_session,
    )


def check_result(declared: DagsterPipeline, report: AuditReport) -> dg.AssetCheckResult:
    """Pass, or fail with what differs and what repairs it."""
    return dg.AssetCheckResult(
        asset_key=declared.table,
        check_name=AUDIT,
        passed=report.passed,
        description=summary(report),
        metadata=metadata(report),
    )


def summary(report: AuditReport) -> str:
    """One line."""
    if report.passed:
        return f"version {report.head.version}: {_PASSED}"
    found = "; ".join(f"{each.kind.value}: {each.text}" for each in report.findings)
    repair = "".join(f". Repair: {each}" for each in report.repairs)
    return f"version {report.head.version}: {found}{repair}"


def metadata(report: AuditReport) -> dict[str, Any]:
    """Findings and their repair first, then what was looked at."""
    raw = report.to_json()
    texts = {
        "findings": [str(each) for each in report.findings],
        "repair": [str(each) for each in report.repairs],
        "remarks": [str(each) for each in report.remarks],
        "proves": list(report.proves),
        "cannot_prove": list(report.cannot_prove),
    }
    return {
        "version": report.head.version,
        **{name: dg.MetadataValue.md(_listed(lines)) for name, lines in texts.items() if lines},
        **{f"total_{name}": count for name, count in raw["totals"].items()},
        "checkpoints": _table(report.checkpoints[:SHOWN_MAX]),
        **{f"seconds_{phase}": spent for phase, spent in raw["seconds"].items()},
    }


def _listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(found: tuple[CheckpointAudit, ...]) -> dg.MetadataValue:
    counts = ["records", "rows_counted", "rows_expected", "rows_found"]
    shown = ["version", *counts, "missing", "duplicated", "foreign"]
    columns = [dg.TableColumn(name, "int") for name in shown]
    rows = [dg.TableRecord({name: getattr(each, name) for name in shown}) for each in found]
    return dg.MetadataValue.table(rows, schema=dg.TableSchema(columns=columns))

"""Asset checks. They run after and outside the commit: they ask the sink, they gate nothing."""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is

from collections.abc import Iterator
from typing import Any

import dagster as dg

from eo_pipeline.audit.report import AuditReport, CheckpointAudit, FindingKind, Repair
from eo_pipeline.dagster.assets import REPLAY
from eo_pipeline.dagster.launchpad import AuditRequest, LaunchpadJob
from eo_pipeline.dagster.metadata import SHOWN_MAX, in_dagster, job_filled_in, table_of
from eo_pipeline.dagster.mirror import reported_id
from eo_pipeline.dagster.naming import AUDIT, DagsterPipeline
from eo_pipeline.dagster.runs import ENTRIES_LOOKED_AT, failing, retried
from eo_pipeline.dagster.topics import (
    away_result,
    evaluated,
    lag_check,
    lag_result,
    topics_of,
    will_evaluate,
)
from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.ledger.history import contiguity_errors

#: Entries a check reads, so that its cost does not grow with the ledger.
ENTRIES_CHECKED = 1_000

#: Breaks named in a check's description before they are only counted.
BREAKS_NAMED = 10


def build_checks(declared: DagsterPipeline) -> list[dg.AssetChecksDefinition]:
    """Both checks of the offset asset; that of the table is the audit."""
    return [_contiguous(declared), _agrees(declared)]


def _contiguous(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.offsets,
        name="ledger_contiguous",
        description=(
            f"The last {ENTRIES_CHECKED:,} ledger entries follow each other: versions and parents "
            "without a gap, and every Kafka partition read on from exactly where it stood."
        ),
    )
    def ledger_contiguous() -> dg.AssetCheckResult:
        return contiguity_result(declared.pipeline.newest(ENTRIES_CHECKED))

    return ledger_contiguous


def contiguity_result(entries: list[LedgerEntry]) -> dg.AssetCheckResult:
    """Pass, or fail with the breaks in words."""
    found = contiguity_errors(entries)
    named = "; ".join(found[:BREAKS_NAMED])
    more = len(found) - BREAKS_NAMED
    span = f"versions {entries[0].version} to {entries[-1].version}" if entries else "no entries"
    return dg.AssetCheckResult(
        passed=not found,
        description=f"{named}; and {more} more" if more > 0 else named or f"{span}: no gap",
        metadata={"entries": len(entries), "breaks": len(found)},
    )


def _agrees(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.offsets,
        name="agrees_with_sink",
        description="The newest version Dagster shows is the head of the ledger in the sink.",
    )
    def agrees_with_sink(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        event = context.instance.get_latest_materialization_event(declared.offsets)
        shown = event.asset_materialization if event else None
        head = declared.pipeline.head()
        return agreement_result(reported_id(shown) if shown else None, head.id if head else None)

    return agrees_with_sink


def agreement_result(shown: EntryId | None, head: EntryId | None) -> dg.AssetCheckResult:
    """Behind is a warning, since the reconciler mends it; anything else needs a person."""
    behind = head is not None and (shown is None or shown.version < head.version)
    return dg.AssetCheckResult(
        passed=shown == head,
        severity=dg.AssetCheckSeverity.WARN if behind else dg.AssetCheckSeverity.ERROR,
        description=_agreement(shown, head),
        metadata={
            "version_in_dagster": shown.version if shown else -1,
            "version_in_sink": head.version if head else -1,
        },
    )


def _agreement(shown: EntryId | None, head: EntryId | None) -> str:
    if shown == head:
        return f"both at version {head.version}" if head else "both are empty"
    if head is None:
        return "Dagster shows versions and the ledger in the sink is empty: was the sink emptied?"
    if shown is None or shown.version < head.version:
        now = f"version {shown.version}" if shown else "nothing"
        return f"Dagster shows {now}, the sink holds version {head.version}; the reconciler is due"
    return (
        f"Dagster shows version {shown.version}, which the ledger (at version {head.version}) does "
        "not hold: the sink was restored from an older state, or replaced"
    )


def build_lag_checks(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    """Of each topic: whether Kafka answers, and how much waits. The lag sensor evaluates it."""
    keys = {topic: lag_check(declared, topic) for topic in declared.topics}
    limit = declared.automation.lag_limit
    below = "" if limit is None else f", and fewer than {limit:,} offsets wait"
    specs = [
        dg.AssetCheckSpec(
            key.name,
            asset=topic,
            description=f"Checks that Kafka is reachable for {declared.pipeline.name!r}{below}. "
            f"Evaluated on each tick of the sensor {declared.lag_sensor}.",
        )
        for topic, key in keys.items()
    ]

    @dg.multi_asset_check(name=f"{declared.op}_follows", specs=specs, can_subset=True)
    def follows(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with failing(context, declared):
            try:
                found = topics_of(declared, declared.pipeline.status())
            except SourceUnavailableError as error:
                results = dict.fromkeys(keys, away_result(declared, error))
            else:
                results = {topic: lag_result(declared, each) for topic, each in found.items()}
        for topic, key in keys.items():
            if key in context.selected_asset_check_keys:
                result = results.get(topic, _MISSING)
                yield result._replace(asset_key=key.asset_key, check_name=key.name)

    return follows


_MISSING = dg.AssetCheckResult(passed=False, description="Kafka has no such topic")

_PASSED = "no missing, duplicated or foreign rows"


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
                    f"Re-reads the last {last:,} checkpoints from Kafka and compares them with the "
                    "table, row by row. Runs only on demand (Execute), not as part of a "
                    "materialization."
                ),
            )
        ],
        can_subset=True,
        required_resource_keys={declared.spark},
    )
    def audit(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        if context.op_execution_context.job_def.has_node_named(declared.op):
            context.log.info("not audited: this run materializes; run the check by itself")
            return
        with failing(context, declared):
            yield check_result(declared, run_audit(declared, context, last), context.run)

    return audit


def _audit(declared: DagsterPipeline, context: dg.OpExecutionContext, config: AuditRequest) -> None:
    """The check over as many checkpoints as one likes. The run fails if the check does, so that
    whoever watches runs is told.
    """
    key = audit_key(declared)
    will_evaluate(context, key)
    with retried(context, declared):
        report = run_audit(declared, context, config.last)
    context.log.info(in_dagster(declared, str(report)))
    result = check_result(declared, report, context.run)
    looked_at = _materialization(declared, context.instance, report)
    context.log_event(evaluated(key, result, looked_at))  # type: ignore[arg-type]  # it takes these too
    if not report.passed:
        raise dg.Failure(result.description, result.metadata, allow_retries=False)
    context.add_output_metadata(result.metadata)


AUDITING = LaunchpadJob(
    AUDIT,
    AuditRequest,
    _audit,
    "Proves that the table of {of} holds every record of Kafka once, or says which checkpoints "
    "differ and what repairs them. Changes nothing.",
    spark=True,
    pooled=False,  # it only reads, and may take long: runs go on beside it
)


def _materialization(
    declared: DagsterPipeline, instance: dg.DagsterInstance, report: AuditReport
) -> dg.EventLogRecord | None:
    """The event of the table as it was audited: runs may have gone on beside the audit."""
    page = instance.fetch_materializations(declared.table, limit=ENTRIES_LOOKED_AT)
    for record in page.records:
        event = record.asset_materialization
        shown = reported_id(event) if event else None
        if shown and shown.version <= report.head.version:
            return record
    return None


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


def check_result(
    declared: DagsterPipeline, report: AuditReport, run: dg.DagsterRun
) -> dg.AssetCheckResult:
    """Pass, or fail with what differs and what repairs it."""
    return dg.AssetCheckResult(
        asset_key=declared.table,
        check_name=AUDIT,
        passed=report.passed,
        description=summary(declared, report),
        metadata={**_repair(declared, report, run), **metadata(declared, report)},
    )


def summary(declared: DagsterPipeline, report: AuditReport) -> str:
    """One line."""
    if report.passed:
        return f"version {report.head.version}: {_PASSED}"
    found = "; ".join(f"{each.kind.value}: {each.text}" for each in report.findings)
    repair = "".join(f". Repair: {each}" for each in report.repairs)
    return in_dagster(declared, f"version {report.head.version}: {found}{repair}")


def metadata(declared: DagsterPipeline, report: AuditReport) -> dict[str, Any]:
    """Findings and what they are about first, then what was looked at."""
    raw = report.to_json()
    texts = {
        "findings": [str(each) for each in report.findings],
        "repair": [str(each) for each in report.repairs],
        "remarks": [str(each) for each in report.remarks],
        "proves": list(report.proves),
        "cannot_prove": list(report.cannot_prove),
    }
    listed = {
        name: dg.MetadataValue.md(in_dagster(declared, _listed(lines)))
        for name, lines in texts.items()
        if lines
    }
    return {
        "version": str(report.head.version),
        **{f"{kind.value}_rows": _count(report, kind) for kind in _ROWS},
        **{f"{kind.value}_records": table for kind in _ROWS if (table := _records(report, kind))},
        **listed,
        "checkpoints": _table(report.checkpoints[:SHOWN_MAX]),
        "totals": dg.MetadataValue.json(raw["totals"]),
        "seconds": dg.MetadataValue.json(raw["seconds"]),
    }


#: What rows may be wrong in, as numbers that plot.
_ROWS = (FindingKind.MISSING, FindingKind.DUPLICATED, FindingKind.FOREIGN)


def _count(report: AuditReport, kind: FindingKind) -> int:
    return sum(each.count for each in report.findings if each.kind is kind)


def _records(report: AuditReport, kind: FindingKind) -> dg.MetadataValue | None:
    """Examples of the records whose rows differ; None if there are none."""
    columns = {"topic": "string"} | dict.fromkeys(
        ("partition", "offset", "checkpoint", "expected", "found"), "int"
    )
    examples = [
        example
        for finding in report.findings
        if finding.kind is kind
        for example in finding.examples
    ]
    return table_of(columns, examples) if examples else None


def _repair(
    declared: DagsterPipeline, report: AuditReport, run: dg.DagsterRun
) -> dict[str, dg.MetadataValue]:
    """The job that puts the table right, filled in; nothing where a job cannot."""
    versions = [
        each.version
        for each in report.checkpoints
        for repair in report.repairs
        if each.differs and repair.command and _within(each.version, repair)
    ]
    if not versions:
        return {}
    reason = f"audit of version {report.head.version}"
    config = declared.chosen | {"versions": sorted(set(versions)), "reason": reason}
    return job_filled_in(run, declared.job_of(REPLAY), config)


def _within(version: int, repair: Repair) -> bool:
    first, last = repair.first, repair.last
    return first is not None and last is not None and first <= version <= last


def _listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(found: tuple[CheckpointAudit, ...]) -> dg.MetadataValue:
    counts = ["records", "rows_counted", "rows_expected", "rows_found"]
    shown = ["version", *counts, "missing", "duplicated", "foreign"]
    return table_of(dict.fromkeys(shown, "int"), found)

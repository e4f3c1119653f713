"""Asset checks and the audit job. They run after the commit, read the sink and block nothing."""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is

from collections.abc import Iterator
from typing import Any

import dagster as dg

from eo_pipeline.audit.report import AuditReport, CheckpointAudit, FindingKind, Repair
from eo_pipeline.dagster.assets import REPLAY
from eo_pipeline.dagster.launchpad import AuditRequest, LaunchpadJob
from eo_pipeline.dagster.metadata import SHOWN_MAX, count_text, in_dagster, job_filled_in, table_of
from eo_pipeline.dagster.mirror import reported_id
from eo_pipeline.dagster.naming import AUDIT, DagsterPipeline
from eo_pipeline.dagster.runs import failing, retried
from eo_pipeline.dagster.topics import (
    evaluated,
    lag_check,
    lag_result,
    topics_of,
    unreachable_result,
    will_evaluate,
)
from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.ledger.history import contiguity_errors

#: Entries a check reads, so that its cost does not grow with the ledger.
ENTRIES_CHECKED = 1_000

#: Breaks named in a check's description; further ones are counted.
BREAKS_NAMED = 10


def build_checks(declared: DagsterPipeline) -> list[dg.AssetChecksDefinition]:
    """Build both checks of the offsets asset; the check of the table is the audit."""
    return [_contiguous(declared), _agrees(declared)]


def _contiguous(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.offsets,
        name="ledger_contiguous",
        description=(
            f"Checks that the last {ENTRIES_CHECKED:,} ledger entries are contiguous: no gap in "
            "versions and parents, and each Kafka partition continues at its previous end offset."
        ),
    )
    def ledger_contiguous() -> dg.AssetCheckResult:
        return contiguity_result(declared.pipeline.newest(ENTRIES_CHECKED))

    return ledger_contiguous


def contiguity_result(entries: list[LedgerEntry]) -> dg.AssetCheckResult:
    """Return the check result, with the breaks listed in its description."""
    breaks = contiguity_errors(entries)
    named = "; ".join(breaks[:BREAKS_NAMED])
    more = len(breaks) - BREAKS_NAMED
    span = f"versions {entries[0].version} to {entries[-1].version}" if entries else "no entries"
    return dg.AssetCheckResult(
        passed=not breaks,
        description=f"{named}; and {more} more" if more > 0 else named or f"{span}: no gap",
        metadata={"entries": len(entries), "breaks": len(breaks)},
    )


def _agrees(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.offsets,
        name="agrees_with_sink",
        description="Checks that the newest version in Dagster is the head of the sink's ledger.",
    )
    def agrees_with_sink(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        event = context.instance.get_latest_materialization_event(declared.offsets)
        shown = event.asset_materialization if event else None
        head = declared.pipeline.head()
        return agreement_result(reported_id(shown) if shown else None, head.id if head else None)

    return agrees_with_sink


def agreement_result(shown: EntryId | None, head: EntryId | None) -> dg.AssetCheckResult:
    """Warn if Dagster is behind, which the reconciler repairs; anything else is an error."""
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
        return "Dagster shows versions, but the ledger is empty: the sink was reset or replaced."
    if shown is None or shown.version < head.version:
        now = f"version {shown.version}" if shown else "nothing"
        return f"Dagster shows {now}, the sink has version {head.version}; wait for the reconciler"
    return (
        f"Dagster shows version {shown.version}, which the ledger (at version {head.version}) does "
        "not contain: the sink was restored or replaced. See `eo doctor`."
    )


def build_lag_checks(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    """Build the check of each topic: Kafka is reachable and the lag is below its limit. The lag
    sensor evaluates it.
    """
    keys = {topic: lag_check(declared, topic) for topic in declared.topics}
    limit = declared.automation.lag_limit
    keeping_up = "" if limit is None else f" and the lag is below {limit:,} offsets"
    specs = [
        dg.AssetCheckSpec(
            key.name,
            asset=topic,
            description="Checks that Kafka is reachable for "
            f"{declared.pipeline.name!r}{keeping_up}."
            f" Evaluated on each tick of the sensor {declared.lag_sensor}.",
        )
        for topic, key in keys.items()
    ]

    @dg.multi_asset_check(name=f"{declared.op}_follows", specs=specs, can_subset=True)
    def follows(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with failing(context, declared):
            try:
                topics = topics_of(declared, declared.pipeline.status())
            except SourceUnavailableError as error:
                results = dict.fromkeys(keys, unreachable_result(declared, error))
            else:
                results = {key: lag_result(declared, topic) for key, topic in topics.items()}
        for topic, key in keys.items():
            if key in context.selected_asset_check_keys:
                result = results.get(topic, _MISSING)
                yield result._replace(asset_key=key.asset_key, check_name=key.name)

    return follows


_MISSING = dg.AssetCheckResult(
    passed=False, description="The topic does not exist or is not visible to this user"
)


def audit_key(declared: DagsterPipeline) -> dg.AssetCheckKey:
    """Return the key of the table asset's audit check."""
    return dg.AssetCheckKey(declared.table, AUDIT)


def build_audit_check(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    """Build the audit check. ``can_subset`` lets it yield no result in a run that materializes."""
    last = declared.automation.audit_last

    @dg.multi_asset_check(
        name=f"{declared.op}_{AUDIT}_check",
        specs=[
            dg.AssetCheckSpec(
                AUDIT,
                asset=declared.table,
                description=(
                    f"Re-reads the last {last:,} checkpoints from Kafka and compares them row by "
                    "row with the table. Runs only on demand (Execute), not as part of a "
                    "materialization."
                ),
            )
        ],
        can_subset=True,
        required_resource_keys={declared.spark},
    )
    def audit(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        if context.op_execution_context.job_def.has_node_named(declared.op):
            context.log.info(
                "Audit skipped: this run materializes the table. To audit, run `eo audit` or "
                "execute the check alone."
            )
            return
        with failing(context, declared):
            yield check_result(declared, run_audit(declared, context, last), context.run)

    return audit


def _audit(declared: DagsterPipeline, context: dg.OpExecutionContext, config: AuditRequest) -> None:
    """Audit any number of checkpoints. The run fails if the check does, so that alerts on failed
    runs cover audits.
    """
    key = audit_key(declared)
    will_evaluate(context, key)
    with retried(context, declared):
        report = run_audit(declared, context, config.last)
    context.log.info(in_dagster(declared, str(report)))
    result = check_result(declared, report, context.run)
    newest = context.instance.fetch_materializations(declared.table, limit=1).records
    context.log_event(evaluated(key, result, newest[0] if newest else None))  # type: ignore[arg-type]  # it takes these too
    if not report.passed:
        raise dg.Failure(result.description, result.metadata, allow_retries=False)
    context.add_output_metadata(result.metadata)


AUDITING = LaunchpadJob(
    AUDIT,
    AuditRequest,
    _audit,
    "Verifies that the table of {of} contains every Kafka record exactly once; lists checkpoints "
    "that differ and how to repair them. Changes nothing.",
    spark=True,
    pooled=False,  # it only reads and may take long; runs continue meanwhile
)


def run_audit(
    declared: DagsterPipeline,
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext,
    last: int | None,
) -> AuditReport:
    """Run the audit with the Spark session of the Dagster run."""
    return declared.pipeline.audit(
        last,
        spark=lambda: getattr(context.resources, declared.spark).spark_session,
    )


def check_result(
    declared: DagsterPipeline, report: AuditReport, run: dg.DagsterRun
) -> dg.AssetCheckResult:
    """Return the check result, with findings and repairs."""
    return dg.AssetCheckResult(
        asset_key=declared.table,
        check_name=AUDIT,
        passed=report.passed,
        description=summary(declared, report),
        metadata={**_repair(declared, report, run), **metadata(declared, report)},
    )


def summary(declared: DagsterPipeline, report: AuditReport) -> str:
    """Return the result as one line."""
    if report.passed:
        return _passed(report)
    findings = "; ".join(f"{finding.kind.value}: {finding.text}" for finding in report.findings)
    repair = "".join(f". Repair: {repair}" for repair in report.repairs)
    return in_dagster(declared, f"version {report.head.version}: {findings}{repair}")


def _passed(report: AuditReport) -> str:
    totals, audited = report.totals, report.checkpoints
    if not totals["checkpoints"]:
        return f"version {report.head.version}: no checkpoint to audit"
    records, rows, dead = totals["records"], totals["rows_found"], totals["dead_letters"]
    if len(audited) < totals["checkpoints"]:  # only differing ones are listed
        audits = f"{totals['checkpoints']:,} checkpoints up to version {report.head.version}"
    elif len(audited) == 1:
        audits = f"checkpoint {audited[0].version}"
    else:
        audits = f"checkpoints {audited[0].version} to {audited[-1].version}"
    each = (
        f"each of {records:,} records is a row or a dead letter"
        if records == rows + dead
        else f"{records:,} records; each has exactly the rows that the transform makes of it"
    )
    gone = totals["unreadable"]
    return (
        f"{audits}: {each} ({rows:,} rows, {dead:,} dead letters)"
        + f"; {gone:,} offsets are no longer in Kafka and were not compared" * bool(gone)
    )


def metadata(declared: DagsterPipeline, report: AuditReport) -> dict[str, Any]:
    """Return the metadata: differences first, then counts and the audited checkpoints."""
    raw = report.to_json()
    texts = {
        "findings": [str(finding) for finding in report.findings],
        "repair": [str(repair) for repair in report.repairs],
        "remarks": [str(remark) for remark in report.remarks],
        "proves": list(report.proves),
        "cannot_prove": list(report.cannot_prove),
    }
    listed = {
        name: dg.MetadataValue.md(in_dagster(declared, _listed(lines)))
        for name, lines in texts.items()
        if lines
    }
    return {
        **{f"{kind.value}_rows": _count(report, kind) for kind in _ROWS},
        **{name: count_text(report.totals[name]) for name in _SHOWN_TOTALS},
        **{f"{kind.value}_records": table for kind in _ROWS if (table := _records(report, kind))},
        **listed,
        "audited": _table(report.checkpoints[:SHOWN_MAX]),
        "version": str(report.head.version),
        "totals": dg.MetadataValue.json(raw["totals"]),
        "seconds": dg.MetadataValue.json(raw["seconds"]),
    }


#: Totals shown beside the differences.
_SHOWN_TOTALS = ("checkpoints", "records", "rows_expected", "rows_found", "dead_letters")

#: Kinds of findings about rows, shown as numbers that Dagster can plot.
_ROWS = (FindingKind.MISSING, FindingKind.DUPLICATED, FindingKind.FOREIGN)


def _count(report: AuditReport, kind: FindingKind) -> int:
    return sum(finding.count for finding in report.findings if finding.kind is kind)


def _records(report: AuditReport, kind: FindingKind) -> dg.MetadataValue | None:
    """Return examples of the records whose rows differ; None if there are none."""
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
    """Return a link to the pre-filled repair job; empty if no job can repair the table."""
    versions = [
        checkpoint.version
        for checkpoint in report.checkpoints
        for repair in report.repairs
        if checkpoint.differs and repair.command and _within(checkpoint.version, repair)
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


def _table(audits: tuple[CheckpointAudit, ...]) -> dg.MetadataValue:
    counts = ["records", "rows_counted", "rows_expected", "rows_found"]
    shown = ["version", *counts, "missing", "duplicated", "foreign"]
    return table_of(dict.fromkeys(shown, "int"), audits)

"""Audit of a pipeline that fills several tables: each is audited as the only one, then the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from eo_pipeline.audit.audit import Audit
from eo_pipeline.audit.report import (
    CHECKPOINTS_LISTED_MAX,
    AuditReport,
    CheckpointAudit,
    Finding,
    FindingKind,
    Repair,
)
from eo_pipeline.batch.tables import TablesStager
from eo_pipeline.errors import NothingToDoError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.history import Checkpoint, checkpoints, spans
from eo_pipeline.runs.checkpoint import RunContext
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.storage.paths import Place


def audit_tables(
    context: RunContext, staging: Place, progress: Callable[[str], None], last: int | None
) -> AuditReport:
    """See :meth:`eo_pipeline.pipeline.Pipeline.audit`. The report has that of each table in
    ``tables``; ``checkpoints`` and ``totals`` are sums over them.
    """
    if not context.tables:
        raise NothingToDoError(
            f"Pipeline {context.pipeline!r}: no table has appeared yet, there is nothing to audit."
        )
    context = replace(context, session=cast("SinkSession", _ReadOnce(context.session)))
    reports = {}
    for name in context.tables:
        audit = Audit(context.of_table(name), staging, progress)
        audit.say(f"looking at table {name}")
        reports[name] = audit.run(last)
    findings, proved, not_proved = _rest(context, reports, progress)
    first = next(iter(reports.values()))
    merged = _merged(reports.values())
    return replace(
        first,
        table=context.sink.table_name,
        findings=(*_named(reports, "findings"), *findings),
        remarks=_named(reports, "remarks"),
        checkpoints=tuple(merged[:CHECKPOINTS_LISTED_MAX]),
        totals=_totals(reports.values()),
        repairs=_repairs(reports),
        proves=(*_texts(reports, "proves"), *proved),
        cannot_prove=(*_texts(reports, "cannot_prove"), *not_proved),
        seconds=_sums(report.seconds for report in reports.values()),
        tables=reports,
    )


class _ReadOnce:
    """A session whose history is read once for all tables, as long as its head stays."""

    def __init__(self, session: SinkSession) -> None:
        self._session = session
        self._entries: dict[Any, list[LedgerEntry]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        head = self._session.head()
        key = since, head and head.id
        if key not in self._entries:
            self._entries[key] = [*self._session.history(since)]
        return iter(self._entries[key])


def _rest(
    context: RunContext, reports: Mapping[str, AuditReport], progress: Callable[[str], None]
) -> tuple[tuple[Finding, ...], tuple[str, ...], tuple[str, ...]]:
    """Compare the number of records that no table takes with the ledger's. Returns findings, and
    what is proved and not proved.
    """
    head = next(iter(reports.values())).head
    versions = {c.version for report in reports.values() for c in report.checkpoints}
    audited = [c for c in _checkpoints(context, versions) if c.version <= head.version]
    counted = sum(checkpoint.counts.rest or 0 for checkpoint in audited)
    stager = context.current_stager()
    assert isinstance(stager, TablesStager)
    with_rows = [table for table in stager.tables.values() if not table.refuses_all]
    if not audited or (not counted and all(table.where is None for table in with_rows)):
        return (), (), ()
    if any(c.unreadable for report in reports.values() for c in report.checkpoints):
        return (), (), ("how many records no table takes: Kafka no longer holds all of them",)
    progress("counting the records that no table takes")
    ranges, topic_ids = spans(audited), audited[-1].entry.topic_ids
    totals = stager.count(context.spark(), context.pipeline, ranges, topic_ids)
    if totals.rest == counted:
        return (), (f"{counted:,} records are those that no table takes",), ()
    text = f"no table takes {totals.rest:,} records, the ledger says {counted:,}"
    return (Finding(FindingKind.LEDGER, text, abs(totals.rest - counted)),), (), ()


def _checkpoints(context: RunContext, versions: set[int]) -> list[Checkpoint]:
    if not versions:
        return []
    history = context.session.history(min(versions))
    return [c for c in checkpoints([*history]) if c.version in versions]


def _named(reports: Mapping[str, AuditReport], name: str) -> tuple[Finding, ...]:
    return tuple(
        replace(finding, text=f"{table}: {finding.text}")
        for table, report in reports.items()
        for finding in getattr(report, name)
    )


def _texts(reports: Mapping[str, AuditReport], name: str) -> tuple[str, ...]:
    return tuple(
        f"{table}: {text}" for table, report in reports.items() for text in getattr(report, name)
    )


def _repairs(reports: Mapping[str, AuditReport]) -> tuple[Repair, ...]:
    """Return the repairs, each replay once: it replaces the rows of all tables."""
    found: dict[Any, Repair] = {}
    for table, report in reports.items():
        for repair in report.repairs:
            named = replace(repair, table=table) if repair.condition is not None else repair
            found.setdefault(named, named)
    return tuple(found.values())


#: Numbers that are those of the checkpoint, whatever table it fills.
_SAME = frozenset({"version", "written_by", "offsets", "unreadable", "holes"})


def _merged(reports: Iterable[AuditReport]) -> list[CheckpointAudit]:
    """Return each checkpoint with the sums over its tables; unknown if one of them is unknown."""
    of_version: dict[int, list[CheckpointAudit]] = {}
    for report in reports:
        for checkpoint in report.checkpoints:
            of_version.setdefault(checkpoint.version, []).append(checkpoint)
    return [_sum(parts) for _, parts in sorted(of_version.items())]


def _sum(parts: Sequence[CheckpointAudit]) -> CheckpointAudit:
    sums: dict[str, Any] = {}
    for name in (f.name for f in fields(CheckpointAudit) if f.name not in _SAME):
        values = [getattr(part, name) for part in parts]
        if name == "differs":
            sums[name] = any(values)
        elif name == "as_committed":
            sums[name] = False if False in values else (None if None in values else True)
        else:
            sums[name] = None if None in values else sum(values)
    largest = max(parts, key=lambda part: part.offsets)
    return replace(largest, **sums)


def _totals(reports: Collection[AuditReport]) -> dict[str, int]:
    totals = _sums(report.totals for report in reports)
    return {**totals, "checkpoints": max(report.totals["checkpoints"] for report in reports)}


def _sums(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for mapping in mappings:
        total.update(mapping)
    return dict(total)

"""`eo audit`: Kafka read again and compared with the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eo_pipeline.cli.options import AsJson, DryRun, Files, Name, choose
from eo_pipeline.cli.output import ExitCode, Output, duration, number, size

if TYPE_CHECKING:
    from eo_pipeline.audit import AuditReport, CheckpointAudit
    from eo_pipeline.sinks.capabilities import Upkeep

_Last = Annotated[
    int | None, typer.Option("--last", "-n", min=1, help="Audit only the newest N checkpoints.")
]
_Repair = Annotated[
    bool, typer.Option("--repair", help="Show the repair commands. Changes nothing.")
]


def audit(
    last: _Last = None,
    repair: _Repair = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Verify against Kafka that the table contains every record exactly once.

    Reads Kafka and the table again and compares them; changes nothing. Exit code 3 if they differ.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    with output.nothing_else_on_stdout(), output.busy(f"audit of {pipeline.name}"):
        report = pipeline.audit(last)
    if as_json:
        output.document(report.to_json())
    _show(output, report, repair=repair)
    if not report.passed:
        raise typer.Exit(ExitCode.DIFFERENCES)


_COLUMNS = (
    *("checkpoint", "records", "rows", "missing", "duplicated", "foreign", "unproved"),
    *("values", ""),
)

_VALUES = {True: "as committed", False: "differ", None: "-"}

#: Checkpoints in the table; those that differ come first.
_ROWS_MAX = 50


def _show(output: Output, report: AuditReport, *, repair: bool) -> None:
    listed = sorted(report.checkpoints, key=lambda each: (not each.differs, -each.version))
    shown = sorted(listed[:_ROWS_MAX], key=lambda each: each.version)
    output.table(_COLUMNS, [_row(each) for each in shown])
    rest = report.totals["checkpoints"] - len(shown)
    if rest > 0:
        output.say(f"... and {number(rest)} more; --json has up to 1,000 of them")
    for finding in report.findings:
        output.say(str(finding), "red")
    for remark in report.remarks:
        output.say(str(remark), "yellow")
    _show_repairs(output, report, named=repair)
    for sentence in report.proves:
        output.say(f"proved: {sentence}")
    for sentence in report.cannot_prove:
        output.say(f"not proved: {sentence}")
    verdict, style = ("passed", "bold green") if report.passed else ("FAILED", "bold red")
    output.say(
        f"{report.pipeline} at version {report.head.version}: {verdict}, in "
        f"{duration(sum(report.seconds.values()))}",
        style,
    )


def _show_repairs(output: Output, report: AuditReport, *, named: bool) -> None:
    if report.repairs and not named:
        output.say("To see the repair commands: eo audit --repair")
    for each in report.repairs if named else ():
        output.say(f"repair: {each}")


def _row(each: CheckpointAudit) -> list[str]:
    counts = (each.missing, each.duplicated, each.foreign, each.unproved)
    return [
        str(each.version),
        "-" if each.records is None else number(each.records),
        "-" if each.rows_found is None else number(each.rows_found),
        *map(number, counts),
        _VALUES[each.as_committed],
        "differs" if each.differs else "",
    ]


_MAINTENANCE_COLUMNS = ("work", "files", "files after", "size", "size after", "took", "")


def maintain(
    dry_run: DryRun = False, files: Files = None, name: Name = None, as_json: AsJson = False
) -> None:
    """Compact small files, delete unreferenced ones, checkpoint the log.

    Changes no row, and the ledger stays where it is; safe beside runs, readers and a second one.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    with output.busy(f"maintenance of {pipeline.name}"):
        report = pipeline.maintain(dry_run=dry_run)
    if as_json:
        output.document(report.to_json())
    output.table(_MAINTENANCE_COLUMNS, [_maintenance_row(each) for each in report.work])
    if dry_run:
        output.say("Nothing was changed: --dry-run")


def _maintenance_row(each: Upkeep) -> list[str]:
    counted = each.files or each.files_after
    sized = each.bytes or each.bytes_after
    return [
        each.work,
        *([number(each.files), number(each.files_after)] if counted else ["", ""]),
        *([size(each.bytes), size(each.bytes_after)] if sized else ["", ""]),
        duration(each.seconds) if each.seconds else "",
        each.remark,
    ]

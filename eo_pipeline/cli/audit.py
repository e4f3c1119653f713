"""`eo audit` and `eo maintain`."""

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
    listed = sorted(report.checkpoints, key=lambda c: (not c.differs, -c.version))
    shown = sorted(listed[:_ROWS_MAX], key=lambda checkpoint: checkpoint.version)
    output.table(_COLUMNS, [_row(checkpoint) for checkpoint in shown])
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
    for instruction in report.repairs if named else ():
        output.say(f"repair: {instruction}")


def _row(checkpoint: CheckpointAudit) -> list[str]:
    counts = (checkpoint.missing, checkpoint.duplicated, checkpoint.foreign, checkpoint.unproved)
    return [
        str(checkpoint.version),
        "-" if checkpoint.records is None else number(checkpoint.records),
        "-" if checkpoint.rows_found is None else number(checkpoint.rows_found),
        *map(number, counts),
        _VALUES[checkpoint.as_committed],
        "differs" if checkpoint.differs else "",
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
    output.table(_MAINTENANCE_COLUMNS, [_maintenance_row(task) for task in report.work])
    if dry_run:
        output.say("Nothing was changed: --dry-run")


def _maintenance_row(task: Upkeep) -> list[str]:
    has_files = task.files or task.files_after
    has_bytes = task.bytes or task.bytes_after
    return [
        task.work,
        *([number(task.files), number(task.files_after)] if has_files else ["", ""]),
        *([size(task.bytes), size(task.bytes_after)] if has_bytes else ["", ""]),
        duration(task.seconds) if task.seconds else "",
        task.remark,
    ]

"""`eo maintain`: a lake table's files kept in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eo_pipeline.cli.options import AsJson, DryRun, Files, Name
from eo_pipeline.cli.output import Output, duration, number, size
from eo_pipeline.cli.selection import choose

if TYPE_CHECKING:
    from eo_pipeline.sinks.maintenance import Upkeep

_COLUMNS = ("work", "files", "files after", "size", "size after", "took", "")


def maintain(
    dry_run: DryRun = False, files: Files = None, name: Name = None, as_json: AsJson = False
) -> None:
    """Put small files of the table together, remove what it has no use for, keep its log short.

    Changes no row, and the ledger stays where it is; safe beside runs, readers and a second one.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    with output.busy(f"maintenance of {pipeline.name}"):
        report = pipeline.maintain(dry_run=dry_run)
    if as_json:
        output.document(report.to_json())
    output.table(_COLUMNS, [_row(each) for each in report.work])
    if dry_run:
        output.say("Nothing was changed: --dry-run")


def _row(each: Upkeep) -> list[str]:
    counted = each.files or each.files_after
    sized = each.bytes or each.bytes_after
    return [
        each.work,
        *([number(each.files), number(each.files_after)] if counted else ["", ""]),
        *([size(each.bytes), size(each.bytes_after)] if sized else ["", ""]),
        duration(each.seconds) if each.seconds else "",
        each.remark,
    ]

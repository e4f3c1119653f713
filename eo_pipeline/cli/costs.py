"""``eo costs``: what pipelines took, by their ledgers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from eo_pipeline.cli.options import AsJson, Files, Name, version_or_time
from eo_pipeline.cli.output import Cell, Output, duration, number, size
from eo_pipeline.cli.selection import documents, load
from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.spending import Spent, day_of
from eo_pipeline.pipeline import Pipeline

#: Ledger entries one request takes.
_PER_REQUEST = 1_000


class By(StrEnum):
    """What a line sums up."""

    OPERATION = "operation"
    DAY = "day"
    RUN = "run"


_KEYS: dict[By, Callable[[LedgerEntry], str]] = {
    By.OPERATION: lambda entry: entry.operation.value,
    By.DAY: day_of,
    By.RUN: lambda entry: entry.run_id,
}
_COLUMNS = (
    *("versions", "records", "rows", "bytes in", "bytes out"),
    *("wall", "cpu", "spark cpu"),
)
_TOTAL = "total"

_By = Annotated[By, typer.Option("--by", help="What a line sums up.")]
_Since = Annotated[
    str | None,
    typer.Option(help="Only what was committed since then, such as 2026-01-31T12:00Z."),
]


def costs(
    by: _By = By.OPERATION,
    since: _Since = None,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """What each pipeline took: records, bytes, wall and CPU time; by operation, day or run.

    From the ledger: what was rewound since was paid for all the same.
    """
    output, after = Output(as_json), _moment(since)
    found = {
        document.name: _spent(load(document), _KEYS[by], after)
        for document in documents(files, name)
    }
    if as_json:
        output.document([_json(pipeline, by, sums) for pipeline, sums in found.items()])
        return
    rows = [
        (pipeline, key, *_row(spent))
        for pipeline, sums in found.items()
        for key, spent in sums.items()
    ]
    output.table(("pipeline", by.value, *_COLUMNS), rows)
    if any(spent.measured < spent.versions for sums in found.values() for spent in sums.values()):
        output.say("\n-, ≥: not all of these versions say it; see docs/monitoring.md, Costs")


def _moment(text: str | None) -> datetime | None:
    found = None if text is None else version_or_time(text)
    if isinstance(found, int):
        raise ConfigError(f"--since takes a time such as 2026-01-31T12:00Z, not {text}")
    return found


def _spent(
    pipeline: Pipeline, key: Callable[[LedgerEntry], str], since: datetime | None
) -> dict[str, Spent]:
    """Sums by ``key`` in the order they come in the ledger, the total last."""
    sums: defaultdict[str, Spent] = defaultdict(Spent)
    total = Spent()
    for entry in _entries(pipeline):
        if since is None or (entry.committed_at or entry.started_at) >= since:
            sums[key(entry)].add(entry)
            total.add(entry)
    return {**sums, _TOTAL: total}


def _entries(pipeline: Pipeline) -> Iterator[LedgerEntry]:
    known = None
    while fresh := pipeline.following(known, _PER_REQUEST):
        yield from fresh
        known = fresh[-1].id


def _json(pipeline: str, by: By, sums: dict[str, Spent]) -> dict[str, Any]:
    parts = [{by.value: key, **spent.to_json()} for key, spent in sums.items()]
    total = parts.pop()
    del total[by.value]
    return {"pipeline": pipeline, "by": by.value, "parts": parts, "total": total}


def _row(spent: Spent) -> list[Cell]:
    """One row below :data:`_COLUMNS`."""
    return [
        number(spent.versions),
        number(spent.records),
        number(spent.rows),
        size(spent.bytes_in),
        size(spent.bytes_out) if spent.measured else "-",
        duration(spent.wall),
        _known(spent.cpu.total_seconds(), spent.measured, spent.versions),
        _known(spent.spark_cpu.total_seconds(), spent.spark_measured, spent.versions),
    ]


def _known(seconds: float, measured: int, versions: int) -> str:
    if not measured:
        return "-"
    return f"{'' if measured == versions else '≥ '}{duration(seconds)}"

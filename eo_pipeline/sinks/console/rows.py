"""Staged rows as a table on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eo_pipeline.scrubbing import printable
from eo_pipeline.staging.rows import StagedTable


def show(console: Console, title: str, staged: StagedTable, rows_max: int) -> None:
    """Print a table of at most ``rows_max`` rows of ``staged`` below ``title``; count the rest."""
    table = Table(*map(escape, staged.schema.names), highlight=True)
    for row in islice(_rows(staged, rows_max), rows_max):
        table.add_row(*map(_text, row))
    console.print(title, table, sep="\n")
    if staged.rows > rows_max:
        console.print(f"... and {staged.rows - rows_max} more")


def _rows(staged: StagedTable, rows_max: int) -> Iterator[list[Any]]:
    for batch in staged.batches():
        for row in batch.slice(0, rows_max).to_pylist():
            yield list(row.values())


def _text(value: Any) -> str:
    return "" if value is None else escape(printable(str(value)))

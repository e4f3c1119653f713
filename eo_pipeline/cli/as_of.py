"""``eo as-of``: the table as it stood at a version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from eo_pipeline.cli.options import AsJson, Files, Name, version_or_time
from eo_pipeline.cli.output import Output, counted, instant
from eo_pipeline.cli.selection import choose
from eo_pipeline.cli.telling import note
from eo_pipeline.cli.writing import Format, format_of, text_of, write_rows
from eo_pipeline.errors import PastGoneError
from eo_pipeline.run.as_of import AsOf

#: Characters of a value that a table on a terminal shows.
_SHOWN_MAX = 40

_At = Annotated[str, typer.Argument(help="A version, or a time: 2026-01-31T12:00Z.")]
_First = Annotated[int, typer.Option("--first", "-n", min=1, help="How many rows are shown.")]
_Count = Annotated[bool, typer.Option("--count", help="Only how many rows there were.")]
_Sql = Annotated[bool, typer.Option("--sql", help="Only the SQL that shows them.")]
_Format = Annotated[
    Format | None, typer.Option("--format", help="Write all rows, to stdout or --output.")
]
_Out = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write all rows into this file, or none.")
]
_Left = Annotated[
    bool,
    typer.Option("--what-is-left", help="Also if rows of then are gone: those that are there."),
]


def as_of(
    at: _At,
    first: _First = 10,
    count: _Count = False,
    sql: _Sql = False,
    form: _Format = None,
    file: _Out = None,
    what_is_left: _Left = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """The table as it stood when a version was the newest, also one that a rewind left behind.

    Nothing is changed. Refused if the rows of then cannot be told or had any more.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    writes = form is not None or file is not None
    wanted = format_of(form, file) if writes else None
    with pipeline.as_of(version_or_time(at), what_is_left=what_is_left) as found:
        for sentence in found.missing:
            note(f"not all of it is left: {sentence}")
        if sql:
            _show_sql(output, found)
        elif wanted is not None:
            rows = write_rows(found.batches(), wanted, file)
            note(f"{_said(found, rows)}, into {file or 'stdout'}")
        elif count:
            _show_count(output, found)
        else:
            _show_rows(output, found, first)


def _said(found: AsOf, rows: int) -> str:
    when = instant(found.entry.committed_at)
    return (
        f"{found.pipeline} as of version {found.version} ({when}): {counted(rows, 'row')}; "
        f"{found.how}"
    )


def _show_sql(output: Output, found: AsOf) -> None:
    if not found.queries:
        raise PastGoneError(found.pipeline, found.version, "there is no SQL for this store", "")
    if output.as_json:
        output.document(found.to_json())
    for engine, query in found.queries.items():
        output.say(f"-- {engine}: {found.pipeline} as of version {found.version}; {found.how};")
        output.say(f"-- as the ledger was at version {found.head.version}")
        output.say(f"{query};")


def _show_count(output: Output, found: AsOf) -> None:
    rows = found.count()
    if output.as_json:
        output.document(found.to_json() | {"rows": rows})
    output.say(_said(found, rows))


def _show_rows(output: Output, found: AsOf, first: int) -> None:
    """Some of them, after all were counted: part of a table must not be taken for it."""
    rows = found.count()
    shown = found.first(first)
    if output.as_json:
        plain = [{name: _plain(value) for name, value in row.items()} for row in shown]
        output.document(found.to_json() | {"rows": rows, "first": plain})
    elif shown:
        names = list(shown[0])
        output.table(names, [_cells(row, names) for row in shown])
        output.say()
    some = f"; {len(shown):,} of them shown" if len(shown) < rows else ""
    output.say(_said(found, rows) + some)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else text_of(value)


def _cells(row: Mapping[str, Any], names: list[str]) -> list[str]:
    texts = ("" if row.get(n) is None else str(_plain(row.get(n))) for n in names)
    return [t if len(t) <= _SHOWN_MAX else f"{t[: _SHOWN_MAX - 1]}…" for t in texts]

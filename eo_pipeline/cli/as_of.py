"""``eo as-of``: the table as it stood at a version."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from eo_pipeline.cli.options import AsJson, Files, Name, choose, version_or_time
from eo_pipeline.cli.output import Output, counted, instant, note
from eo_pipeline.errors import ConfigError, PastGoneError, SetupError, printable, printable_json
from eo_pipeline.operations.as_of import AsOf

if TYPE_CHECKING:
    import pyarrow as pa


class Format(StrEnum):
    """What rows are written as."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def format_of(asked: Format | None, file: Path | None) -> Format:
    """What was ``asked`` for, or what the file's name says.

    Raises:
        ConfigError: neither says it; or Parquet is to go into a pipe.
    """
    suffix = file.suffix.removeprefix(".") if file else ""
    named = {"jsonl": "json", "ndjson": "json"}.get(suffix, suffix)
    if asked is None and named not in set(Format):
        raise ConfigError("--format csv, json or parquet: the file's name does not say which")
    found = asked or Format(named)
    if found is Format.PARQUET and file is None:
        raise ConfigError("--format parquet needs a file: --output FILE")
    return found


def write_rows(batches: Iterable[pa.RecordBatch], form: Format, file: Path | None) -> int:
    """Write all of ``batches`` into ``file``, or to stdout. A file is there whole or not at all.
    Returns the number of rows.

    Raises:
        SetupError: the file cannot be written.
    """
    if file is None:
        return _written(batches, form, sys.stdout.buffer)
    try:
        with _whole_or_not_at_all(file) as opened:
            return _written(batches, form, opened)
    except OSError as error:
        raise SetupError(f"{file} cannot be written: {error}") from error


@contextmanager
def _whole_or_not_at_all(file: Path) -> Iterator[IO[bytes]]:
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with aside.open("wb") as opened:
            yield opened
        aside.replace(file)
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()


def _written(batches: Iterable[pa.RecordBatch], form: Format, file: IO[bytes]) -> int:
    write: dict[Format, Callable[[Iterable[pa.RecordBatch], IO[bytes]], int]] = {
        Format.CSV: _csv,
        Format.JSON: _json_lines,
        Format.PARQUET: _parquet,
    }
    return write[form](batches, file)


def _json_lines(batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    rows = 0
    for batch in batches:
        for row in batch.to_pylist():
            file.write(_as_json(row).encode() + b"\n")
        rows += batch.num_rows
    file.flush()
    return rows


def _csv(batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    # here, because a command that writes nothing need not wait for it
    from pyarrow import csv

    rows, writer = 0, None
    for batch in _alike(batches):
        flat = _flat(batch, shown=file.isatty())
        writer = writer or csv.CSVWriter(file, flat.schema)
        writer.write_batch(flat)
        rows += batch.num_rows
    if writer is not None:
        writer.close()
    return rows


def _parquet(batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, writer = 0, None
    for batch in _alike(batches):
        writer = writer or pq.ParquetWriter(file, batch.schema)
        writer.write_batch(batch)
        rows += batch.num_rows
    if writer is None:
        writer = pq.ParquetWriter(file, pa.schema([]))  # no rows, and no columns to tell
    writer.close()
    return rows


def _alike(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All in the columns of the first.

    Raises:
        ConfigError: there are others.
    """
    first: pa.Schema | None = None
    for batch in batches:
        first = first if first is not None else batch.schema
        if batch.schema != first:
            raise ConfigError(
                "the rows have not all the same columns (the table was widened since): "
                "--format json writes each row with its own"
            )
        yield batch


def _flat(batch: pa.RecordBatch, *, shown: bool) -> pa.RecordBatch:
    """With what CSV has no form for as text: nested values and bytes. ``shown`` on a terminal it
    has nothing that the terminal obeys; anybody else gets the values.
    """
    import pyarrow as pa

    arrays, names = [], []
    for field, values in zip(batch.schema, batch.columns, strict=True):
        plain = not (pa.types.is_nested(field.type) or pa.types.is_binary(field.type))
        if not plain:
            values = pa.array(map(_as_text, values.to_pylist()), pa.string())
        if shown and values.type in (pa.string(), pa.large_string()):
            texts = (None if v is None else printable(v) for v in values.to_pylist())
            values = pa.array(texts, pa.string())
        arrays.append(values)
        names.append(field.name)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, bytes):
        return value.hex() if value is not None else None
    return _as_json(value)


def _as_json(value: Any) -> str:
    return printable_json(json.dumps(value, default=text_of, ensure_ascii=False))


def text_of(value: Any) -> str:
    """A value that JSON has nothing for: times as ISO 8601, bytes in hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


#: Characters of a value that a table on a terminal shows.
_SHOWN_MAX = 40

_At = Annotated[str, typer.Argument(help="A version, or a time: 2026-01-31T12:00Z.")]
_First = Annotated[int, typer.Option("--first", "-n", min=1, help="Number of rows to show.")]
_Count = Annotated[bool, typer.Option("--count", help="Show only the number of rows.")]
_Sql = Annotated[bool, typer.Option("--sql", help="Show only the SQL that selects them.")]
_Format = Annotated[
    Format | None, typer.Option("--format", help="Write all rows, to stdout or --output.")
]
_Out = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write all rows to this file, atomically.")
]
_Left = Annotated[
    bool,
    typer.Option(
        "--what-is-left", help="Show the remaining rows if some of that version are gone."
    ),
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
    """Show the table as of a version, including versions undone by a rewind.

    Changes nothing. Refused if the rows of that version cannot be reconstructed.
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

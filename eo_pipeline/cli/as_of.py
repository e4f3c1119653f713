"""``eo as-of``: the table as of a version."""

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
    """Output format of rows."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def format_of(option: Format | None, file: Path | None) -> Format:
    """Return the format of ``option``, or else of the file's suffix.

    Raises:
        ConfigError: neither selects one; or Parquet is to go into a pipe.
    """
    suffix = file.suffix.removeprefix(".") if file else ""
    suffix_format = {"jsonl": "json", "ndjson": "json"}.get(suffix, suffix)
    if option is None and suffix_format not in set(Format):
        raise ConfigError("--format csv, json or parquet: the file's name does not say which")
    chosen = option or Format(suffix_format)
    if chosen is Format.PARQUET and file is None:
        raise ConfigError("--format parquet needs a file: --output FILE")
    return chosen


def write_rows(batches: Iterable[pa.RecordBatch], form: Format, file: Path | None) -> int:
    """Write all of ``batches`` into ``file``, atomically, or to stdout. Return the number of rows.

    Raises:
        SetupError: the file cannot be written.
    """
    if file is None:
        return _write(batches, form, sys.stdout.buffer)
    try:
        with _atomic_file(file) as opened:
            return _write(batches, form, opened)
    except OSError as error:
        raise SetupError(f"{file} cannot be written: {error}") from error


@contextmanager
def _atomic_file(file: Path) -> Iterator[IO[bytes]]:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as opened:
            yield opened
        temporary.replace(file)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _write(batches: Iterable[pa.RecordBatch], form: Format, file: IO[bytes]) -> int:
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
    # here, because only commands that write rows need it
    from pyarrow import csv

    rows, writer = 0, None
    for batch in _with_equal_columns(batches):
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
    for batch in _with_equal_columns(batches):
        writer = writer or pq.ParquetWriter(file, batch.schema)
        writer.write_batch(batch)
        rows += batch.num_rows
    if writer is None:
        writer = pq.ParquetWriter(file, pa.schema([]))  # without rows the columns are unknown
    writer.close()
    return rows


def _with_equal_columns(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and check that all have the columns of the first.

    Raises:
        ConfigError: a batch has other columns.
    """
    first: pa.Schema | None = None
    for batch in batches:
        first = first if first is not None else batch.schema
        if batch.schema != first:
            raise ConfigError(
                "the rows do not all have the same columns (some were added later): "
                "use --format json, which writes each row with its own columns"
            )
        yield batch


def _flat(batch: pa.RecordBatch, *, shown: bool) -> pa.RecordBatch:
    """Replace nested values and bytes by texts, which CSV can hold. ``shown`` on a terminal, texts
    are escaped too; elsewhere they are unchanged.
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
    """Return a value without a JSON form as text: times as ISO 8601, bytes as hexadecimal
    digits.
    """
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


#: Maximum number of characters of a value in a table on a terminal.
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
_Table = Annotated[
    str | None, typer.Option("--table", help="Show this table, of a pipeline with several.")
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
    table: _Table = None,
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
    row_format = format_of(form, file) if writes else None
    with pipeline.as_of(version_or_time(at), what_is_left=what_is_left, table=table) as view:
        for reason in view.missing:
            note(f"not all of it is left: {reason}")
        if sql:
            _show_sql(output, view)
        elif row_format is not None:
            rows = write_rows(view.batches(), row_format, file)
            note(f"{_summary(view, rows)}, into {file or 'stdout'}")
        elif count:
            _show_count(output, view)
        else:
            _show_rows(output, view, first)


def _summary(view: AsOf, rows: int) -> str:
    when = instant(view.entry.committed_at)
    return (
        f"{view.pipeline} as of version {view.version} ({when}): {counted(rows, 'row')}; {view.how}"
    )


def _show_sql(output: Output, view: AsOf) -> None:
    if not view.queries:
        raise PastGoneError(view.pipeline, view.version, "there is no SQL for this store", "")
    if output.as_json:
        output.document(view.to_json())
    for engine, query in view.queries.items():
        output.say(f"-- {engine}: {view.pipeline} as of version {view.version}; {view.how};")
        output.say(f"-- as the ledger was at version {view.head.version}")
        output.say(f"{query};")


def _show_count(output: Output, view: AsOf) -> None:
    rows = view.count()
    if output.as_json:
        output.document(view.to_json() | {"rows": rows})
    output.say(_summary(view, rows))


def _show_rows(output: Output, view: AsOf, first: int) -> None:
    """Show the first rows, and the number of all: part of a table must not be taken for all
    of it.
    """
    rows = view.count()
    shown = view.first(first)
    if output.as_json:
        values = [{name: _plain(value) for name, value in row.items()} for row in shown]
        output.document(view.to_json() | {"rows": rows, "first": values})
    elif shown:
        names = list(shown[0])
        output.table(names, [_cells(row, names) for row in shown])
        output.say()
    some = f"; {len(shown):,} of them shown" if len(shown) < rows else ""
    output.say(_summary(view, rows) + some)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else text_of(value)


def _cells(row: Mapping[str, Any], names: list[str]) -> list[str]:
    texts = ("" if row.get(n) is None else str(_plain(row.get(n))) for n in names)
    return [t if len(t) <= _SHOWN_MAX else f"{t[: _SHOWN_MAX - 1]}…" for t in texts]

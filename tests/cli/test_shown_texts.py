"""What a record holds is shown, and never obeyed: on a terminal and in a pipe."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rich.console import Console
from rich.text import Text

from eo_pipeline.cli import output
from eo_pipeline.cli.as_of import Format, write_rows
from eo_pipeline.cli.output import Output, note
from eo_pipeline.cli.views import entry_line
from eo_pipeline.errors import printable, printable_json
from eo_pipeline.ledger.entry import Counts
from eo_pipeline.sinks.console.session import show
from eo_pipeline.staging.rows import StagedTable
from eo_pipeline.testing import first_entry

#: Renames the window, clears the screen; the same in one character; turned around; no character.
ODD = "\x1b]0;x\x07 \x1b[2J \x9b2J \r \x7f \u202e \u2028 \ud83d"
OBEYED = set("\x1b\x07\x9b\r\x7f\u202e\u2028\ud83d")
SHOWN = r"\x1b]0;x\x07 \x1b[2J \x9b2J \r \x7f \u202e \u2028 \ud83d"


def test_what_a_terminal_obeys_is_written_out_and_nothing_else() -> None:
    assert printable(ODD) == SHOWN
    same = "naïve \U0001f600 日本 \n\t é"
    assert printable(same) == same


def test_a_field_that_one_of_several_tables_does_not_know_is_shown_with_its_table() -> None:
    tables = {
        "orders": Counts(records=2, rows=2, unknown=2, unknown_fields=("lines",)),
        "lines": Counts(records=2, rows=4, unknown=1, unknown_fields=("customer",)),
        "other": Counts(),
    }
    several = Counts(
        records=2, rows=6, unknown=3, unknown_fields=("customer", "lines"), tables=tables
    )
    line = entry_line(replace(first_entry("shop"), counts=several))
    assert (
        "orders: 2 records with unknown fields (lines); "
        "lines: 1 record with unknown fields (customer)"
    ) in line


def test_json_stays_json_of_the_same_value() -> None:
    value = {"a": ODD, "ü": ["\x9b"]}
    text = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert OBEYED.isdisjoint(text)
    assert "ü" in text


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, _Terminal])
def test_tables_sentences_and_notes(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]
) -> None:
    out, err = stream(), stream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(
        output, "_console", lambda: Console(file=out, width=300, color_system=None, markup=False)
    )
    shown = Output()
    shown.table(["a", ODD], [(ODD, Text(ODD, "red")), ("two\nlines", "")])
    shown.say(ODD)
    shown.styled(Text.assemble("x", (ODD, "red")))
    note(ODD)
    assert OBEYED.isdisjoint(out.getvalue() + err.getvalue())
    assert out.getvalue().count(SHOWN) == 3  # a Text of rich's has dropped some of it before
    assert out.getvalue().count(r"\x1b]0;x") == 5
    assert SHOWN in err.getvalue()
    assert r"two\nlines" in out.getvalue()


def test_the_console_sink(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.table({"a": [ODD[:-2], "[bold]b[/]"]})
    show(Console(file=sys.stdout, width=200), "title", StagedTable.in_memory(rows), 10)
    printed = capsys.readouterr().out
    assert OBEYED.isdisjoint(printed)
    assert "[bold]b[/]" in printed


@pytest.mark.parametrize("is_terminal", [False, True])
def test_rows_of_a_past_version_on_stdout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_terminal: bool
) -> None:
    """A pipe gets the values of CSV as they are, which has nothing to write them otherwise."""
    odd = ODD[:-2]
    batch = pa.RecordBatch.from_pylist([{"a": odd, "n": [odd], "i": 1}])

    class Buffer(io.BytesIO):
        def isatty(self) -> bool:
            return is_terminal

    def written(form: Format) -> str:
        buffer = Buffer()
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=buffer))
        write_rows([batch], form, None)
        return buffer.getvalue().decode()

    lines = written(Format.JSON)
    assert json.loads(lines) == {"a": odd, "n": [odd], "i": 1}
    assert OBEYED.isdisjoint(lines)
    text = written(Format.CSV)
    _, row = csv.reader(io.StringIO(text, newline=""))
    assert row[0] == (printable(odd) if is_terminal else odd)
    file = tmp_path / "rows.csv"
    write_rows([batch], Format.CSV, file)
    assert odd in file.read_bytes().decode()

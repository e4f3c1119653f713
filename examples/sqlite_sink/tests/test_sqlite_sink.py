"""The sink against the contract that every sink keeps, and against its own limits."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlite_sink import SqliteSink

from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.sinks.config import Sink
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.odd import RARELY_KEPT

_FROM_TEXT: dict[str, Callable[[Any], Any]] = {
    "BOOLEAN_INT": bool,
    "DECIMAL_TEXT": Decimal,
    "DATE_TEXT": date.fromisoformat,
    "TIMESTAMP_TEXT": datetime.fromisoformat,
}


class TestSqlite(GoingBackContract):
    #: it holds a NaN, which SQLite would turn into NULL
    unstorable: ClassVar[frozenset[str]] = frozenset({"double"})
    keeps_negative_zero: ClassVar[bool] = False
    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT
    refused_names: ClassVar[frozenset[str]] = frozenset(
        {"no character", "the character of no character"}
    )

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return SqliteSink(path=tmp_path / "eo.db", table="flights", lock_timeout=5)

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return _table(sink, "flights")

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        return _table(sink, "flights_dead_letters")

    def test_a_file_that_is_no_database_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("not a database, and long enough to look like one")
        with pytest.raises(SinkUnavailableError, match=r"notes\.txt"):
            SqliteSink(path=tmp_path / "notes.txt", table="t").open("p")


def _table(sink: Sink, name: str) -> list[dict[str, Any]]:
    """What another connection sees of ``name``; nothing if it is not there."""
    assert isinstance(sink, SqliteSink)
    connection = sqlite3.connect(sink.path)
    try:
        connection.execute("BEGIN")  # one snapshot for the columns and the rows
        described = connection.execute("SELECT name, type FROM pragma_table_info(?)", (name,))
        types = dict(described.fetchall())
        rows = connection.execute(f'SELECT * FROM "{name}"').fetchall() if types else []
    finally:
        connection.close()
    return [
        {column: _value(column, types[column], v) for column, v in zip(types, row, strict=True)}
        for row in rows
    ]


def _value(column: str, declared: str, value: Any) -> Any:
    if value is None:
        return None
    if declared == "JSON_TEXT":
        nested = json.loads(value, parse_float=Decimal)
        if column != "instants":
            return nested
        return [element and datetime.fromisoformat(element) for element in nested]
    return _FROM_TEXT.get(declared, lambda same: same)(value)

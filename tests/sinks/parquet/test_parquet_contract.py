"""Parquet folders against the contract."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eo_pipeline.errors import LedgerDamagedError
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.parquet import ParquetSink
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.odd import rows_of


def read(sink: Sink, pattern: str) -> list[dict[str, Any]]:
    """Every row of the files that match, as a reader without our code finds them: it lists, then it
    reads. If a file it listed is gone, rows were taken back meanwhile: it knows, and begins again.
    """
    assert isinstance(sink, ParquetSink)
    tables = None
    while tables is None:
        with suppress(FileNotFoundError):
            tables = [pq.ParquetFile(path).read() for path in sorted(sink.root.glob(pattern))]
    whole = pa.concat_tables([pa.table({}), *tables], promote_options="default")
    return rows_of(whole)


class TestParquet(GoingBackContract):
    refused_names: ClassVar[frozenset[str]] = frozenset({"the character of no character"})

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return ParquetSink(path=str(tmp_path / "flights"))

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return read(sink, "checkpoint=*/*.parquet")

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        return read(sink, "checkpoint=*/_eo_dead_letters/*.parquet")

    def test_rows_whose_ledger_file_is_gone_are_missed_as_an_entry(
        self, sink: Sink, session: SinkSession
    ) -> None:
        """Found before: "was not made by this pipeline; the next run tries again", for ever."""
        assert isinstance(sink, ParquetSink)
        self.forward(session, self.forward(session, self.start(session)))
        assert not session.has_later_rows(thorough=True)
        (sink.root / "checkpoint=2" / "_eo_ledger.json").unlink()
        with pytest.raises(LedgerDamagedError, match="version 2 is missing"):
            session.refuse_later_rows(session.head(), thorough=False)

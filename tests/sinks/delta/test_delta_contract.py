"""Delta Lake against the contract, in the ways its rows can travel."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.testing.exactly_once import ExactlyOnceContract
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.odd import RARELY_KEPT, rows_of
from eo_pipeline.testing.upsert import UpsertContract

#: No writer of Delta takes these without column mapping.
NOT_IN_DELTA = frozenset(
    {
        "a space",
        "a double quote",
        "a percent sign",
        "a comma",
        "a semicolon",
        "braces",
        "an equals sign",
        "a line break",
        "a tab",
        "only spaces",
        "no character",
        "the character of no character",
    }
)


class OnDelta(ExactlyOnceContract):
    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT
    refused_names: ClassVar[frozenset[str]] = NOT_IN_DELTA

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DeltaSink(path=str(tmp_path / "flights"))

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        """As any reader of Delta sees it, without the engine."""
        assert isinstance(sink, DeltaSink)
        if not DeltaTable.is_deltatable(str(sink.root)):
            return []
        return rows_of(DeltaTable(str(sink.root)).to_pyarrow_table())

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        assert isinstance(sink, DeltaSink)
        letters: list[dict[str, Any]] = sink.dead_letters(self.pipeline).to_pylist()
        return letters


class TestAppend(GoingBackContract, OnDelta):
    """Staged files become the table."""


class TestUpsert(UpsertContract, GoingBackContract, OnDelta):
    """Rows by way of a merge; back by way of Delta's time travel."""

    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND,)
    refused_names: ClassVar[frozenset[str]] = NOT_IN_DELTA | {"a backtick"}

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DeltaSink(
            path=str(tmp_path / "flights"),
            mode="upsert",
            key=("id",),
            sequence_by=("_eo_checkpoint",),
        )


class TestTableThatIsThereAlready(OnDelta):
    """Somebody else made the table, and a folder with a space in its name, given as a URL."""

    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND, Operation.REPLAY)

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        root = tmp_path / "my lake" / "flights"
        columns = pa.schema([("id", pa.int64()), (CHECKPOINT_COLUMN, pa.int64())])
        DeltaTable.create(str(root), Schema.from_arrow(columns))
        return DeltaSink(path=root.as_uri())


class TestPartitioned(GoingBackContract, OnDelta):
    """A table laid out by a column of its rows, which is in the files too."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        root = tmp_path / "flights"
        columns = pa.schema([("id", pa.int64()), (CHECKPOINT_COLUMN, pa.int64())])
        DeltaTable.create(str(root), Schema.from_arrow(columns), partition_by=[CHECKPOINT_COLUMN])
        return DeltaSink(path=str(root), partition_by=(CHECKPOINT_COLUMN,))

"""Delta Lake against the contract, in the ways its rows can travel."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from eo_pipeline.errors import ConfigError, TableReplacedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.testing.exactly_once import ExactlyOnceContract
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.identity import MannerContract
from eo_pipeline.testing.odd import RARELY_KEPT, rows_of
from eo_pipeline.testing.pruning import PruningContract
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


def root_of(sink: Sink) -> Path:
    assert isinstance(sink, DeltaSink)
    assert isinstance(sink.root, Path)
    return sink.root


class OnDelta(ExactlyOnceContract):
    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT
    refused_names: ClassVar[frozenset[str]] = NOT_IN_DELTA

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DeltaSink(path=str(tmp_path / "flights"))

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        """As any reader of Delta sees it, without the engine."""
        assert isinstance(sink, DeltaSink)
        options = self.options()
        if not DeltaTable.is_deltatable(str(sink.root), options):
            return []
        return rows_of(DeltaTable(str(sink.root), storage_options=options).to_pyarrow_table())

    def options(self) -> dict[str, str]:
        """An observer's, to get to the table."""
        return {}

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        assert isinstance(sink, DeltaSink)
        letters: list[dict[str, Any]] = sink.dead_letters(self.pipeline).to_pylist()
        return letters


class TestAppend(MannerContract, PruningContract, GoingBackContract, OnDelta):
    """Staged files become the table."""

    def lose_ledger(self, sink: Sink) -> None:
        """As ``delta.setTransactionRetentionDuration`` makes it vanish with the next checkpoint."""
        for log in sorted((root_of(sink) / "_delta_log").glob("*.json")):
            actions = log.read_text().splitlines()
            kept = [action for action in actions if "txn" not in json.loads(action)]
            log.write_text("\n".join(kept))

    def lose_table(self, sink: Sink) -> None:
        shutil.rmtree(root_of(sink) / "_delta_log")

    def in_another_manner(self, sink: Sink) -> Sink:
        return DeltaSink(path=str(root_of(sink)), mode="upsert", key=("id",))

    def test_a_table_that_forgets_where_the_ledger_stands_is_refused(self, sink: Sink) -> None:
        """Found before: the head vanished, and after an adopt everything was written again."""
        with sink.open(self.pipeline) as session:
            self.written(session)
        table = DeltaTable(str(root_of(sink)))
        forgets = "delta.setTransactionRetentionDuration"
        table.alter.set_table_properties({forgets: "interval 1 days"}, raise_if_not_exists=False)
        with pytest.raises(ConfigError, match=forgets):
            self.look(sink)

    def test_a_table_made_anew_is_another(self, sink: Sink) -> None:
        """The one that replaced it says that the ledger stands where it stood."""
        with sink.open(self.pipeline) as session:
            self.written(session)
        for log in (root_of(sink) / "_delta_log").glob("*.json"):
            id_ = DeltaTable(str(root_of(sink))).metadata().id
            log.write_text(log.read_text().replace(str(id_), str(uuid.uuid4())))
        with pytest.raises(TableReplacedError, match="made anew"):
            self.look(sink)


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


@pytest.mark.slow
class TestTableThatIsThereAlready(OnDelta):
    """Somebody else made the table, and a folder with a space in its name, given as a URL."""

    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND, Operation.REPLAY)

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        root = tmp_path / "my lake" / "flights"
        columns = pa.schema([("id", pa.int64()), (CHECKPOINT_COLUMN, pa.int64())])
        DeltaTable.create(str(root), Schema.from_arrow(columns))
        return DeltaSink(path=root.as_uri())


@pytest.mark.slow
class TestPartitioned(GoingBackContract, OnDelta):
    """A table laid out by a column of its rows, which is in the files too."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        root = tmp_path / "flights"
        columns = pa.schema([("id", pa.int64()), (CHECKPOINT_COLUMN, pa.int64())])
        DeltaTable.create(str(root), Schema.from_arrow(columns), partition_by=[CHECKPOINT_COLUMN])
        return DeltaSink(path=str(root), partition_by=(CHECKPOINT_COLUMN,))

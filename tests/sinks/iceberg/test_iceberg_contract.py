"""Iceberg tables against the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from eo_pipeline.errors import TableReplacedError
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.identity import IdentityContract


def catalog_of(sink: Sink) -> Catalog:
    """A reader's own catalog, as :class:`IcebergSink` documents the embedded one."""
    assert isinstance(sink, IcebergSink)
    folder = sink.warehouse
    return load_catalog("eo", type="sql", uri=f"sqlite:///{folder}/catalog.db")


def read(sink: Sink) -> list[dict[str, Any]]:
    assert isinstance(sink, IcebergSink)
    try:
        table = catalog_of(sink).load_table(sink.table)
    except NoSuchTableError:
        return []
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return rows


class TestAppend(IdentityContract, GoingBackContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return IcebergSink(table="ops.flights", warehouse=tmp_path / "warehouse")

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return read(sink)

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        assert isinstance(sink, IcebergSink)
        rows: list[dict[str, Any]] = sink.dead_letters(self.pipeline).to_pylist()
        return rows

    def lose_ledger(self, sink: Sink) -> None:
        """As by ``ALTER TABLE ... UNSET TBLPROPERTIES``."""
        assert isinstance(sink, IcebergSink)
        table = catalog_of(sink).load_table(sink.table)
        with table.transaction() as transaction:
            transaction.remove_properties(f"eo.head.{self.pipeline}")

    def lose_table(self, sink: Sink) -> None:
        assert isinstance(sink, IcebergSink)
        catalog_of(sink).drop_table(sink.table)

    def test_a_table_made_anew_is_another(self, sink: Sink) -> None:
        """The one that replaced it says that the ledger stands where it stood."""
        assert isinstance(sink, IcebergSink)
        with sink.open(self.pipeline) as session:
            self.written(session)
        catalog = catalog_of(sink)
        old = catalog.load_table(sink.table)
        catalog.drop_table(sink.table)
        catalog.create_table(
            sink.table, old.schema(), location=old.location(), properties=dict(old.properties)
        )
        with pytest.raises(TableReplacedError, match="made anew"):
            self.look(sink)

"""Iceberg tables against the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from eo_pipeline.errors import TableReplacedError
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.storage.paths import RemotePath
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.identity import IdentityContract
from eo_pipeline.testing.odd import RARELY_KEPT, rows_of
from eo_pipeline.testing.pruning import PruningContract


def catalog_of(sink: Sink) -> Catalog:
    """A reader's own catalog, as :class:`IcebergSink` documents the embedded one."""
    assert isinstance(sink, IcebergSink)
    if sink.catalog is not None:
        reached = sink.root.bucket.iceberg if isinstance(sink.root, RemotePath) else {}
        return load_catalog(sink.catalog.name, **{**reached, **sink.catalog.values()})
    folder = sink.warehouse
    return load_catalog("eo", type="sql", uri=f"sqlite:///{folder}/catalog.db")


def folder_of(sink: Sink) -> Path:
    """Of a table that is not in a bucket."""
    assert isinstance(sink, IcebergSink)
    assert isinstance(sink.root, Path)
    return sink.root


def read(sink: Sink) -> list[dict[str, Any]]:
    assert isinstance(sink, IcebergSink)
    try:
        table = catalog_of(sink).load_table(sink.table)
    except NoSuchTableError:
        return []
    # PyIceberg's own reader makes an empty list of structs where there is none
    tables = [
        pq.ParquetFile(table.io.new_input(task.file.file_path).open()).read()
        for task in table.scan().plan_files()
    ]
    return rows_of(pa.concat_tables([pa.table({}), *tables], promote_options="permissive"))


class OnIceberg(IdentityContract, GoingBackContract):
    """Of a sink in whatever catalog, wherever its files are."""

    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT
    refused_names: ClassVar[frozenset[str]] = frozenset({"the character of no character"})

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


class TestAppend(PruningContract, OnIceberg):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return IcebergSink(table="ops.flights", warehouse=tmp_path / "warehouse")

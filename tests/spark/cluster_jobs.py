"""A pipeline whose rows wait in a bucket, and observers of its table who use no engine code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as IcebergTable

from eo_pipeline.storage.paths import RemotePath, files_below
from tests.support.engine import Bench, Coordinates, Table
from tests.support.stores import Bucket

LINEAGE = ["_eo_topic", "_eo_partition", "_eo_offset"]
TRANSFORMS = "tests.spark.cluster_transforms"


@dataclass(frozen=True)
class DeltaTableInABucket:
    """An observer with delta-rs, no engine code."""

    uri: str
    bucket: Bucket

    def frame(self) -> pl.DataFrame:
        return pl.read_delta(self.uri, storage_options=self.bucket.options())

    def coordinates(self) -> Counter[Coordinates]:
        """How often each record is in the table."""
        if not DeltaTable.is_deltatable(self.uri, self.bucket.options()):
            return Counter()
        return Counter((t, p, o) for t, p, o in self.frame().select(LINEAGE).iter_rows())

    def assert_holds_once(self, written: Iterable[Coordinates]) -> None:
        assert self.coordinates() == Counter(set(written))

    def names(self) -> list[str]:
        return self.frame()["name"].to_list()

    def files(self) -> list[str]:
        """URIs of those that are the table."""
        return DeltaTable(self.uri, storage_options=self.bucket.options()).file_uris()


@dataclass(frozen=True)
class IcebergTableInABucket(DeltaTableInABucket):
    """The same with PyIceberg; the catalog is a file that only the driver sees."""

    catalog: dict[str, Any]
    name: str = "ops.events"

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self._table().scan().to_arrow())

    def coordinates(self) -> Counter[Coordinates]:
        try:
            frame = self.frame()
        except NoSuchTableError:
            return Counter()
        return Counter((t, p, o) for t, p, o in frame.select(LINEAGE).iter_rows())

    def files(self) -> list[str]:
        return [task.file.file_path for task in self._table().scan().plan_files()]

    def _table(self) -> IcebergTable:
        place = self.bucket.storage.place(self.uri)
        assert isinstance(place, RemotePath)
        catalog = load_catalog("eo", **self.catalog["properties"], **place.bucket.iceberg)
        return catalog.load_table(self.name)


class PostgresTable(Table):
    def names(self) -> list[str]:
        return [name for (name,) in self.query(f"select name from {self.name}")]


@dataclass(frozen=True)
class Job:
    """A pipeline whose rows wait in a bucket, and an observer of its table."""

    bench: Bench
    table: DeltaTableInABucket | PostgresTable
    bucket: Bucket

    def staged(self) -> list[str]:
        """What lies in the bucket where attempts do, but for what the next runs need to know, and
        the table. Of what tasks write, what was not taken lies in folders of the table, too.
        """
        found = (str(place) for place, _ in files_below(self.bucket.storage.place(self.bucket.uri)))
        kept = ("_witness", "_lost", "_delta_log", "_eo_ledger", "eo_rows", "/metadata/")
        return [
            name for name in found if "_temporary" in name or not any(each in name for each in kept)
        ]

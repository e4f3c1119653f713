"""The two kinds of table, as an observer opens them, who is not the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

#: PyIceberg's name of the embedded catalog, and Spark's for the same one.
CATALOG = "eo"
NAMESPACE = "ns"


@dataclass(frozen=True)
class Delta:
    """A table in a folder."""

    name: str
    root: Path

    store: ClassVar[str] = "delta"

    @property
    def path(self) -> Path:
        return self.root / self.name

    @property
    def in_spark(self) -> str:
        return f"delta.`{self.path}`"

    def sink(self, **settings: Any) -> dict[str, Any]:
        return {"type": "delta", "path": str(self.path), **settings}

    def open(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(str(self.path))

    def state(self) -> int:
        """What the format calls the table as it is now."""
        return int(self.open().version())


@dataclass(frozen=True)
class Iceberg:
    """A table in the embedded catalog of a warehouse."""

    name: str
    root: Path

    store: ClassVar[str] = "iceberg"

    @property
    def in_spark(self) -> str:
        return f"{CATALOG}.{NAMESPACE}.{self.name}"

    def sink(self, **settings: Any) -> dict[str, Any]:
        table = f"{NAMESPACE}.{self.name}"
        return {"type": "iceberg", "table": table, "warehouse": str(self.root), **settings}

    def catalog(self) -> Catalog:
        return load_catalog(CATALOG, type="sql", uri=f"sqlite:///{self.root}/catalog.db")

    def open(self) -> Table:
        catalog = self.catalog()
        try:
            return catalog.load_table(f"{NAMESPACE}.{self.name}")
        finally:
            catalog.close()

    def exists(self) -> bool:
        try:
            self.open()
        except (NoSuchTableError, NoSuchNamespaceError):
            return False
        return True

    def state(self) -> int:
        snapshot = self.open().current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id


Lake = Delta | Iceberg

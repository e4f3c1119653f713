"""One story on every sink that takes rows back: audited, damaged by others, repaired, rewound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from eo_pipeline import FindingKind
from eo_pipeline.embedded.spark import EmbeddedSpark
from tests.support.chaos import rest_is_chaos
from tests.support.engine import TABLE, Bench, Table, Topic
from tests.support.stores import MySqlDatabase

#: What somebody else deletes: 25 rows, or in files one file.
DAMAGE = "_eo_checkpoint = 1 AND _eo_partition = 0"


@dataclass(frozen=True)
class Store:
    """A sink's configuration, and how another program deletes what :data:`DAMAGE` says."""

    sink: dict[str, Any]
    damage: Callable[[], object]


def delta(folder: Path, _: MySqlDatabase) -> Store:
    return Store(
        {"type": "delta", "path": str(folder)},
        lambda: DeltaTable(str(folder)).delete(DAMAGE),
    )


def iceberg(folder: Path, _: MySqlDatabase) -> Store:
    def damage() -> None:
        catalog = load_catalog("eo", type="sql", uri=f"sqlite:///{folder}/catalog.db")
        catalog.load_table("ops.events").delete(DAMAGE)

    return Store({"type": "iceberg", "table": "ops.events", "warehouse": str(folder)}, damage)


def parquet(folder: Path, _: MySqlDatabase) -> Store:
    def damage() -> None:
        first, *_ = sorted((folder / "checkpoint=1").glob("*.parquet"))
        first.unlink()

    return Store({"type": "parquet", "path": str(folder)}, damage)


def mysql(_: Path, database: MySqlDatabase) -> Store:
    def damage() -> None:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {TABLE} WHERE {DAMAGE}")
            connection.commit()

    return Store(database.settings(table=TABLE), damage)


@pytest.mark.parametrize(
    "store",
    # of all four, values that others change are found and replayed: test_audit_of_values.py
    rest_is_chaos([delta, iceberg, parquet, mysql], but=[parquet, mysql]),
)
def test_what_others_delete_is_found_replayed_and_the_table_still_goes_back(
    store: Callable[[Path, MySqlDatabase], Store],
    spark_server: EmbeddedSpark,
    events: Topic,
    mysql_database: MySqlDatabase,
    tmp_path: Path,
) -> None:
    used = store(tmp_path / "lake", mysql_database)
    config: dict[str, Any] = {
        "name": "events",
        "source": events.source(max_records=100),
        "sink": used.sink,
        "staging": str(tmp_path / "staging"),
    }
    pipeline = Bench(events, Table(""), config).pipeline()
    events.write(200, partitions=range(4))
    pipeline.run()
    used.damage()
    report = pipeline.audit()
    assert [(f.kind, f.checkpoints) for f in report.findings if f.count] == [
        (FindingKind.MISSING, (1,))
    ], str(report)
    assert [(repair.first, repair.last) for repair in report.repairs] == [(1, 1)]

    pipeline.replay(1, 1)
    report = pipeline.audit()
    assert report.passed, str(report)

    pipeline.rewind(1)
    pipeline.run()
    report = pipeline.audit()
    assert report.passed, str(report)
    assert report.totals["rows_found"] == 200

"""An Iceberg table in an embedded catalog, and somebody else who reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.iceberg.session import IcebergSession
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.iceberg.test_iceberg_contract import catalog_of
from tests.support.stores import Bucket

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED


def rows(checkpoint: int, **columns: Any) -> StagedTable:
    """Two rows of ``checkpoint``."""
    values: dict[str, Any] = {"id": [checkpoint * 10, checkpoint * 10 + 1], **columns}
    table = pa.table({**values, CHECKPOINT_COLUMN: pa.array([checkpoint] * 2, pa.int64())})
    return StagedTable.in_memory(table)


def staged(checkpoint: int, **columns: Any) -> StagedOutput:
    return StagedOutput(rows=rows(checkpoint, **columns))


@pytest.fixture
def sink(tmp_path: Path) -> IcebergSink:
    return IcebergSink(table="ops.flights", warehouse=tmp_path / "warehouse")


def catalog_in(folder: Path, warehouse: str, **more: str) -> dict[str, Any]:
    """An SQL catalog in a file, as a document has it; its tables lie in ``warehouse``."""
    uri = f"sqlite:///{folder}/catalog.db"
    return {"name": "eo", "properties": {"type": "sql", "uri": uri, "warehouse": warehouse, **more}}


def sink_in(bucket: Bucket, folder: Path, **more: Any) -> IcebergSink:
    """A table in a bucket, whose catalog is a file in ``folder``."""
    values = {
        "table": "ops.flights",
        "catalog": catalog_in(folder, f"{bucket.uri}/warehouse"),
        "storage": bucket.storage,
        **more,
    }
    return IcebergSink.model_validate(values)


def rows_in(sink: IcebergSink) -> pa.Table:
    """All rows of the table, none where there is no table: by PyIceberg."""
    try:
        return table_of(sink).scan().to_arrow()
    except NoSuchTableError:
        return pa.table({})


def files_in(sink: IcebergSink) -> set[str]:
    """The files that the table's newest snapshot holds."""
    return {task.file.file_path for task in table_of(sink).scan().plan_files()}


@pytest.fixture
def session(sink: IcebergSink) -> IcebergSession:
    opened = sink.open("events")
    assert isinstance(opened, IcebergSession)
    return opened


def publish(
    session: SinkSession, count: int, head: LedgerEntry | None = None, **columns: Any
) -> LedgerEntry:
    """``count`` more checkpoints; a new ledger gets its first entry."""
    if head is None:
        head = first_entry(session.pipeline)
        assert session.publish(head, StagedOutput()) is COMMITTED
    for _ in range(count):
        head = child_of(head, 2)
        assert session.publish(head, staged(head.version, **columns)) is COMMITTED
    return head


def table_of(sink: IcebergSink) -> Table:
    return catalog_of(sink).load_table(sink.table)


def ids(sink: IcebergSink) -> list[int]:
    found: list[int] = sorted(table_of(sink).scan().to_arrow()["id"].to_pylist())
    return found


def of(*checkpoints: int) -> list[int]:
    return [number for c in checkpoints for number in (c * 10, c * 10 + 1)]

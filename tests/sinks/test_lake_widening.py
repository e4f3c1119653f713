"""Lake tables that follow what comes: wider types and nested fields, or the remedy in words."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, to_files
from tests.sinks.iceberg.test_iceberg_contract import catalog_of, folder_of

NARROW = pa.schema(
    [("q", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(5, 2)),
     ("s", pa.struct([("a", pa.int32())])), ("l", pa.list_(pa.struct([("a", pa.int32())])))]
)  # fmt: skip
WIDE = pa.schema(
    [("q", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(12, 2)),
     ("s", pa.struct([("a", pa.int64()), ("b", pa.string())])),
     ("l", pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])))]
)  # fmt: skip
FEW = {"q": 7, "f": 0.5, "d": Decimal("1.25"), "s": {"a": 1}, "l": [{"a": 1}]}
MANY = {"q": 2**40, "f": 0.1, "d": Decimal("1234567.25"),
        "s": {"a": 2**40, "b": "x"}, "l": [{"a": 2**40, "b": "x"}]}  # fmt: skip
FEW_IN_WIDE = {**FEW, "s": {"a": 1, "b": None}, "l": [{"a": 1, "b": None}]}

Read = Callable[[], list[dict[str, Any]]]


def batch(checkpoint: int, schema: pa.Schema, row: dict[str, Any]) -> StagedTable:
    table = pa.Table.from_pylist([row], schema)
    number = pa.array([checkpoint], pa.int64())
    return StagedTable.in_memory(table.append_column(CHECKPOINT_COLUMN, number))


class Lake:
    """A table, published to as a run does: from memory, or from files that were staged."""

    def __init__(self, sink: Sink, read: Read, folder: Path, *, files: bool) -> None:
        self.sink, self._read, self.folder, self._files = sink, read, folder, files

    def publish(self, head: LedgerEntry, rows: StagedTable, **going_back: Any) -> LedgerEntry:
        entry = child_of(head, rows.rows, **going_back)
        if self._files:
            rows = to_files(rows, self.folder / entry.transaction_id, files=1)
        with self.sink.open("p") as session:
            session.publish(entry, StagedOutput(rows=rows))
        return entry

    def rewind(self, head: LedgerEntry, target: int) -> None:
        entry = child_of(head, operation=Operation.REWIND, target=target)
        with self.sink.open("p") as session:
            session.publish(entry, StagedOutput())

    def start(self) -> LedgerEntry:
        first = first_entry("p")
        with self.sink.open("p") as session:
            session.publish(first, StagedOutput())
        return first

    def rows(self) -> list[dict[str, Any]]:
        found = sorted(self._read(), key=lambda row: row[CHECKPOINT_COLUMN])
        return [{k: v for k, v in row.items() if k != CHECKPOINT_COLUMN} for row in found]


@pytest.fixture(params=[False, True], ids=["memory", "files"])
def iceberg(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    sink = IcebergSink(table="ops.t", warehouse=tmp_path / "warehouse")

    def read() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            catalog_of(sink).load_table("ops.t").scan().to_arrow().to_pylist()
        )
        return found

    return Lake(sink, read, folder_of(sink) / "eo_rows" / "p", files=request.param)


@pytest.fixture(params=[False, True], ids=["memory", "files"])
def delta(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    root = tmp_path / "t"

    def read() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(str(root)).to_pyarrow_table().to_pylist()
        return found

    sink = DeltaSink(path=str(root))
    return Lake(sink, read, root / "eo_rows" / "p", files=request.param)


def test_an_iceberg_table_follows_wider_types_and_nested_fields(iceberg: Lake) -> None:
    """And goes behind them again: a replay of what was narrow, a rewind."""
    first = iceberg.publish(iceberg.start(), batch(1, NARROW, FEW))
    second = iceberg.publish(first, batch(2, WIDE, MANY))
    assert iceberg.rows() == [FEW_IN_WIDE, MANY]
    again = iceberg.publish(second, batch(1, NARROW, FEW), operation=Operation.REPLAY, target=1)
    assert iceberg.rows() == [FEW_IN_WIDE, MANY]
    iceberg.rewind(again, 1)
    assert iceberg.rows() == [FEW_IN_WIDE]


def test_a_delta_table_gets_nested_fields(delta: Lake) -> None:
    narrow, nested = NARROW.field("s"), pa.struct([("a", pa.int32()), ("b", pa.string())])
    first = delta.publish(delta.start(), batch(1, pa.schema([narrow]), {"s": {"a": 1}}))
    row = {"s": {"a": 2, "b": "x"}}
    second = delta.publish(first, batch(2, pa.schema([("s", nested)]), row))
    delta.publish(second, batch(3, pa.schema([narrow]), {"s": {"a": 3}}))
    assert [each["s"] for each in delta.rows()] == [
        {"a": 1, "b": None},
        {"a": 2, "b": "x"},
        {"a": 3, "b": None},
    ]


def test_a_delta_table_that_is_upserted_gets_nested_fields(tmp_path: Path) -> None:
    sink = DeltaSink(path=str(tmp_path / "t"), mode="upsert", key=["id"], sequence_by=["id"])
    id_, nested = ("id", pa.int64()), pa.struct([("a", pa.int32()), ("b", pa.string())])
    narrow = pa.schema([id_, NARROW.field("s")])
    lake = Lake(sink, list, tmp_path, files=False)
    first = lake.publish(lake.start(), batch(1, narrow, {"id": 1, "s": {"a": 1}}))
    row = {"id": 2, "s": {"a": 2, "b": "x"}}
    second = lake.publish(first, batch(2, pa.schema([id_, ("s", nested)]), row))
    lake.publish(second, batch(3, narrow, {"id": 1, "s": {"a": 3}}))
    found = DeltaTable(sink.path).to_pyarrow_table().sort_by("id")["s"].to_pylist()
    assert found == [{"a": 3, "b": None}, {"a": 2, "b": "x"}]


def test_a_delta_column_that_is_too_narrow_is_refused_and_the_remedy_helps(delta: Lake) -> None:
    """Also behind it: what is read again as it was narrow goes into the wide column."""
    first = delta.publish(delta.start(), batch(1, NARROW, FEW))
    with pytest.raises(SchemaChangeError, match="typeWidening") as raised:
        delta.publish(first, batch(2, pa.schema([("q", pa.int64())]), {"q": 2**40}))
    assert delta.rows() == [FEW]
    assert "int32, the result int64" in str(raised.value)
    remedy = str(raised.value).partition("under way: ")[2].rstrip(".")
    exec(
        remedy,
        {
            "DeltaTable": DeltaTable,
            "write_deltalake": write_deltalake,
            "type": "int64",
            "path": str(delta.folder.parents[1]),
            "column": "q",
        },
    )
    second = delta.publish(first, batch(2, pa.schema([("q", pa.int64())]), {"q": 2**40}))
    again = delta.publish(second, batch(1, NARROW, FEW), operation=Operation.REPLAY, target=1)
    assert [row["q"] for row in delta.rows()] == [7, 2**40]
    delta.rewind(again, 1)
    assert delta.rows() == [FEW]


@pytest.mark.parametrize("now", [pa.string(), pa.float64(), pa.bool_()], ids=str)
def test_a_type_that_is_another_one_is_refused_by_iceberg(iceberg: Lake, now: pa.DataType) -> None:
    first = iceberg.publish(iceberg.start(), batch(1, NARROW, FEW))
    changed = pa.schema([("q", now)])
    with pytest.raises(SchemaChangeError, match="column 'q'"):
        iceberg.publish(first, batch(2, changed, {"q": None}))
    assert iceberg.rows() == [FEW]

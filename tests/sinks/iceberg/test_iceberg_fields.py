"""What others do to a table's columns: rows from before and after keep their values, and a column
that was renamed or dropped does not come back in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import DecimalType, LongType, StringType

from eo_pipeline._lazy import pt
from eo_pipeline.errors import RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.iceberg.fields import following, ids_in, ids_of, with_ids
from eo_pipeline.sinks.iceberg.session import IcebergSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.paths import size_of
from eo_pipeline.testing import child_of, first_entry, to_files
from tests.sinks.iceberg.iceberg_world import session, sink, table_of
from tests.sinks.iceberg.test_iceberg_contract import catalog_of, folder_of

__all__ = ["session", "sink"]

KINDS = {
    "a": pa.int32(),
    "b": pa.int32(),
    "name": pa.string(),
    "d": pa.decimal128(5, 2),
    "s": pa.struct([("x", pa.int32()), ("y", pa.string())]),
    "l": pa.list_(pa.struct([("k", pa.int32())])),
    "m": pa.map_(pa.string(), pa.int32()),
}
OLD: dict[str, Any] = {
    "a": 1, "b": 2, "name": "n", "d": Decimal("1.25"),
    "s": {"x": 3, "y": "y"}, "l": [{"k": 4}], "m": [("key", 5)],
}  # fmt: skip

Change = Callable[[UpdateSchema], object]
_SWAPPED = (("a", "tmp"), ("b", "a"), ("tmp", "b"))


class Lake:
    """A table that a run fills: from memory, or from files that were staged, with ids or without
    as an earlier release staged them.
    """

    def __init__(self, sink: IcebergSink, session: IcebergSession, folder: Path, way: str) -> None:
        self.sink, self.session, self.folder, self.way = sink, session, folder, way
        self.head = first_entry("events")
        session.publish(self.head, StagedOutput())

    def batch(self, row: dict[str, Any], kinds: dict[str, pa.DataType]) -> StagedTable:
        own = {name: kinds.get(name) or KINDS[name] for name in row}
        table = pa.Table.from_pylist([row], pa.schema([*own.items()]))
        number = pa.array([self.head.version + 1], pa.int64())
        return StagedTable.in_memory(table.append_column(CHECKPOINT_COLUMN, number))

    def staged(self, row: dict[str, Any], **kinds: pa.DataType) -> StagedTable:
        rows = self.batch(row, kinds)
        if self.way == "memory":
            return rows
        assert rows.table is not None
        if self.way == "files":
            ids = ids_of(following(self.session.open_table(), rows.schema))
            marked = rows.table.cast(with_ids(rows.schema, ids))
            rows = StagedTable.in_memory(marked)
        made = to_files(rows, self.folder / str(self.head.version), files=1)
        # as Spark writes decimals of few digits
        (path,), (file,) = made.paths(), made.files
        pq.write_table(rows.table, path, store_decimal_as_integer=True)
        return replace(made, files=(replace(file, size=size_of(path) or 0),))

    def publish(self, rows: StagedTable) -> LedgerEntry:
        entry = child_of(self.head, rows.rows)
        self.session.publish(entry, StagedOutput(rows=rows))
        self.head = entry
        return entry

    def put(self, row: dict[str, Any], **kinds: pa.DataType) -> None:
        self.publish(self.staged(row, **kinds))

    def change(self, *changes: Change) -> None:
        for change in changes:
            with table_of(self.sink).update_schema() as update:
                change(update)

    def rename(self, *names: tuple[str, str]) -> None:
        self.change(*(lambda u, n=name: u.rename_column(*n) for name in names))

    def rows(self) -> list[dict[str, Any]]:
        """By PyIceberg, oldest first; another reader finds the same in plain columns."""
        table = table_of(self.sink)
        found = table.scan().to_arrow().sort_by(CHECKPOINT_COLUMN)
        plain = [f.name for f in found.schema if not pt.is_nested(f.type)]
        other = polars.scan_iceberg(table).select(plain).collect().sort(CHECKPOINT_COLUMN)
        assert other.to_dicts() == found.select(plain).to_pylist()
        rows: list[dict[str, Any]] = found.drop_columns(CHECKPOINT_COLUMN).to_pylist()
        return rows


@pytest.fixture(params=["memory", "files", "files without ids"])
def lake(
    sink: IcebergSink,
    session: IcebergSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Lake:
    # a faster planner, which says that it is not installed
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    return Lake(sink, session, tmp_path / "staged", request.param)


def _only(way: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("lake", way.split(", "), indirect=True)


def other(row: dict[str, Any], **renamed: str) -> dict[str, Any]:
    return {renamed.get(name, name): value for name, value in row.items()}


def test_a_renamed_column_keeps_its_values_and_its_old_name_is_refused(lake: Lake) -> None:
    lake.put(OLD)
    lake.rename(("name", "full_name"))
    with pytest.raises(SchemaChangeError, match=r"'name'.*renamed.*'full_name'"):
        lake.put(OLD)
    assert lake.rows() == [other(OLD, name="full_name")]
    lake.way = "memory"
    lake.put(other(OLD, name="full_name"), full_name=pa.string())
    assert lake.rows() == [other(OLD, name="full_name")] * 2


def test_a_dropped_column_is_refused_until_somebody_adds_it_and_comes_back_empty(
    lake: Lake,
) -> None:
    lake.put(OLD)
    lake.change(lambda update: update.delete_column("name"))
    with pytest.raises(SchemaChangeError, match=r"'name': somebody dropped it"):
        lake.put(OLD)
    left = {name: value for name, value in OLD.items() if name != "name"}
    lake.put(left)
    if lake.way == "files without ids":
        return  # whoever adds it gives the name in such files another meaning
    lake.change(lambda update: update.add_column("name", StringType()))
    lake.put(OLD)
    assert lake.rows() == [{**left, "name": None}, {**left, "name": None}, {**left, "name": "n"}]


@_only("memory, files")
def test_swapped_names_are_swapped_for_rows_from_before(lake: Lake) -> None:
    lake.put(OLD)
    lake.rename(*_SWAPPED)
    lake.put(OLD)
    assert [(row["a"], row["b"]) for row in lake.rows()] == [(2, 1), (1, 2)]


@_only("memory, files")
def test_what_is_within_a_column_is_found_by_its_id_too(lake: Lake) -> None:
    lake.put(OLD)
    lake.change(
        lambda update: update.rename_column(("s", "x"), "xx"),
        lambda update: update.rename_column(("l", "element", "k"), "kk"),
    )
    with pytest.raises(SchemaChangeError, match=r"'s\.x'.*'s\.xx'"):
        lake.put({"a": 1, "s": {"x": 3, "y": "y"}})
    with pytest.raises(SchemaChangeError, match=r"'l\.element\.k'.*'l\.element\.kk'"):
        lake.put({"a": 1, "l": [{"k": 4}]})
    row = {**OLD, "s": {"xx": 3, "y": "y"}, "l": [{"kk": 4}]}
    struct = pa.struct([("xx", pa.int32()), ("y", pa.string())])
    lake.put(row, s=struct, l=pa.list_(pa.struct([("kk", pa.int32())])))
    assert lake.rows() == [row, row]


def test_reordered_and_widened_columns_are_followed(lake: Lake) -> None:
    lake.put(OLD)
    lake.change(
        lambda update: update.move_first("name"),
        lambda update: update.update_column("a", LongType()),
        lambda update: update.update_column("d", DecimalType(25, 2)),
        lambda update: update.update_column(("s", "x"), LongType()),
    )
    lake.put(OLD)
    lake.put({**OLD, "b": 2**40, "new": 1}, b=pa.int64(), new=pa.int32())
    first, second, third = lake.rows()
    assert first == second == {**OLD, "new": None}
    assert third == {**OLD, "b": 2**40, "new": 1}


@_only("files without ids")
def test_the_name_of_a_new_column_is_not_taken_from_files_without_ids(lake: Lake) -> None:
    """The name mapping stays: by PyIceberg's own a new column has the values of a dropped one."""
    lake.put(OLD)
    mapping = table_of(lake.sink).properties["schema.name-mapping.default"]
    lake.way = "files"
    lake.put({**OLD, "new": 7}, new=pa.int32())
    assert table_of(lake.sink).properties["schema.name-mapping.default"] == mapping
    assert [row["new"] for row in lake.rows()] == [None, 7]
    lake.rename(("name", "full_name"))
    assert [row["full_name"] for row in lake.rows()] == ["n", "n"]


@_only("memory")
def test_every_column_of_a_new_file_has_an_id(lake: Lake) -> None:
    lake.put(OLD)
    assert "schema.name-mapping.default" not in table_of(lake.sink).properties
    (path,) = (folder_of(lake.sink) / "data/eo_rows").rglob("*.parquet")
    found = dict(ids_in(pq.read_schema(path)))
    assert found == ids_of(table_of(lake.sink).schema())
    assert ("m", "value") in found
    assert ("l", "element", "k") in found


@_only("files")
def test_ids_that_are_others_by_the_commit_are_refused(lake: Lake) -> None:
    lake.put(OLD)
    row, new = {**OLD, "new": 7}, {"new": pa.int32()}
    rows = lake.staged(row, **new)
    lake.change(lambda update: update.add_column("foreign", LongType()))
    with pytest.raises(RefusedError, match=r"'new'.*reads the ranges again"):
        lake.publish(rows)
    lake.put(row, **new)
    assert [each["new"] for each in lake.rows()] == [None, 7]


@_only("files, files without ids")
def test_files_that_were_staged_before_a_rename_are_refused(lake: Lake) -> None:
    lake.put(OLD)
    rows = lake.staged(OLD)
    lake.rename(("name", "full_name"))
    with pytest.raises(SchemaChangeError, match="renamed"):
        lake.publish(rows)
    assert [row["full_name"] for row in lake.rows()] == ["n"]


@_only("files")
def test_files_that_were_staged_before_a_swap_are_refused(lake: Lake) -> None:
    """Their names are columns of the table, and their ids those of others now."""
    lake.put(OLD)
    rows = lake.staged(OLD)
    lake.rename(*_SWAPPED)
    with pytest.raises(RefusedError, match=r"'a', 'b'"):
        lake.publish(rows)


class TestRequired:
    """A table that somebody else made, whose columns take no null."""

    @pytest.fixture
    def made(self, sink: IcebergSink) -> Callable[[pa.Schema], Table]:
        def make(schema: pa.Schema) -> Table:
            with sink.open("events"):
                catalog = catalog_of(sink)
            catalog.create_namespace("ops")
            return catalog.create_table(sink.table, schema, location=f"file://{sink.root}")

        return make

    def test_a_column_that_takes_no_null_is_told_and_filled(
        self, sink: IcebergSink, made: Callable[[pa.Schema], Table], tmp_path: Path
    ) -> None:
        made(pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]))
        with sink.open("events") as session:
            assert isinstance(session, IcebergSession)
            assert session.never_null() == {"id"}
            lake = Lake(sink, session, tmp_path, "memory")
            lake.put({"id": 7, "name": "n"}, id=pa.int64())
            with pytest.raises(RefusedError, match="null in 'id'"):
                lake.put({"id": None, "name": "n"}, id=pa.int64())
        assert table_of(sink).scan().to_arrow()["id"].to_pylist() == [7]

    def test_one_that_the_rows_lack_is_refused_in_words(
        self, sink: IcebergSink, made: Callable[[pa.Schema], Table], tmp_path: Path
    ) -> None:
        made(pa.schema([("id", pa.int64()), pa.field("must", pa.string(), nullable=False)]))
        with sink.open("events") as session:
            assert isinstance(session, IcebergSession)
            lake = Lake(sink, session, tmp_path, "memory")
            with pytest.raises(SchemaChangeError, match=r"no null in 'must'.*DROP NOT NULL"):
                lake.put({"id": 7}, id=pa.int64())

    def test_one_within_a_column_is_refused_in_words(
        self, sink: IcebergSink, made: Callable[[pa.Schema], Table], tmp_path: Path
    ) -> None:
        within = pa.struct([pa.field("x", pa.int32(), nullable=False)])
        made(pa.schema([("id", pa.int64()), ("s", within)]))
        with sink.open("events") as session:
            assert isinstance(session, IcebergSession)
            lake = Lake(sink, session, tmp_path, "memory")
            lake.put({"id": 7}, id=pa.int64())
            with pytest.raises(SchemaChangeError, match=r"no null in 's\.x'"):
                lake.put(
                    {"id": 7, "s": {"x": None}}, id=pa.int64(), s=pa.struct([("x", pa.int32())])
                )

"""What readers cannot do, each with its release: a test that fails is a line less in docs/sinks.md
and in :data:`tests.lakes.readers.INABILITIES`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyiceberg.table import Table

from tests.lakes.columns import plain_scalar
from tests.lakes.duck import Duck, install
from tests.lakes.lakes import Iceberg
from tests.shared import STATE

LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


@pytest.fixture
def int96(tmp_path: Path) -> str:
    """A Delta table with a file as Spark writes times unless it is told otherwise."""
    rows = pa.table({"at": pa.array([LONG_AGO], pa.timestamp("us", "UTC"))})
    old = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    pq.write_table(rows, tmp_path / "a.parquet", **old)
    size, now = (tmp_path / "a.parquet").stat().st_size, int(time.time() * 1000)
    added = AddAction("a.parquet", size, {}, now, True, '{"numRecords": 1}')
    schema = Schema.from_arrow(rows.schema)
    create_table_with_add_actions(str(tmp_path), schema, [added], mode="error", partition_by=[])
    return str(tmp_path)


def test_polars_reads_other_times_of_int96_beyond_nanoseconds(int96: str) -> None:
    assert pl.read_delta(int96)["at"].to_list() != [LONG_AGO]


def test_datafusion_behind_delta_rs_reads_yet_others(int96: str) -> None:
    found = QueryBuilder().register("t", DeltaTable(int96)).execute("SELECT * FROM t")
    assert pa.RecordBatchReader.from_stream(found).read_all()["at"].to_pylist() != [LONG_AGO]


def test_pyarrow_behind_delta_rs_reads_no_table_with_such_times(int96: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match="would lose data"):
        DeltaTable(int96).to_pyarrow_table()


def iceberg(folder: Path, rows: pa.Table, by: str | None = None) -> tuple[Iceberg, Table]:
    lake = Iceberg("t", folder)
    catalog = lake.catalog()
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", rows.schema, location=f"file://{folder}/t")
    if by:
        with table.update_spec() as spec:
            spec.add_identity(by)
    pq.write_table(rows, folder / "rows.parquet")
    table.add_files([f"file://{folder}/rows.parquet"])
    return lake, table


def test_pyiceberg_makes_an_empty_array_of_structs_of_one_that_is_null(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("x", pa.int32())]))
    nothing: list[Any] = [None]
    _, table = iceberg(tmp_path, pa.table({"c": pa.array(nothing, kind)}))
    assert table.scan().to_arrow()["c"].to_pylist() == [[]]


@pytest.fixture
def duck() -> Iterator[Duck]:
    try:
        made = Duck(install(STATE))
    except subprocess.CalledProcessError:
        pytest.skip("the wheels of DuckDB's extensions cannot be had")
    yield made
    made.close()


@pytest.mark.slow
def test_duckdb_reads_such_times_and_tables_of_both_formats(
    duck: Duck, int96: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = duck.read(f"SELECT epoch_us(t.at) AS us FROM delta_scan('file://{int96}') t")
    assert found["us"].to_pylist() == [plain_scalar(LONG_AGO)]
    rows = pa.table({"p": pa.array([Decimal("1.10")], pa.decimal128(10, 2))})
    lake, table = iceberg(tmp_path_factory.mktemp("lake"), rows, "p")
    found = duck.read(f"SELECT * FROM iceberg_scan('{table.metadata_location}')")
    assert found.to_pylist() == rows.to_pylist()
    assert lake.exists()

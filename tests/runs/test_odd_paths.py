"""Folders of any name: every row staged there arrives, or the folder is refused before a row is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from eo_pipeline import ConfigError
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import SetupError
from eo_pipeline.pipeline import Pipeline
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench
from tests.support.servers import MakeTopic

#: What a URL escapes, a pattern of names is made of, or begins something else.
ODD = ["a b é日本", "a#b?c", "a%b", "a%41b", "a[b]*{c,d}", "a\\b", "a:b=c"]

RECORDS = 20


def parquet(folder: Path) -> tuple[dict[str, Any], Callable[[], int]]:
    root = folder / "table"

    def rows() -> int:
        return sum(pl.read_parquet(p, glob=False).height for p in root.rglob("part-*.parquet"))

    return {"type": "parquet", "path": str(root)}, rows


def delta(folder: Path) -> tuple[dict[str, Any], Callable[[], int]]:
    root = folder / "table"
    return {"type": "delta", "path": str(root)}, lambda: _delta_rows(root)


def delta_laid_out(folder: Path) -> tuple[dict[str, Any], Callable[[], int]]:
    root = folder / "table"
    return {"type": "delta", "path": str(root), "partition_by": ["name"]}, lambda: _delta_rows(root)


def _delta_rows(root: Path) -> int:
    return int(DeltaTable(str(root)).to_pyarrow_table().num_rows)


def iceberg(folder: Path) -> tuple[dict[str, Any], Callable[[], int]]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder.parents[1]}/catalog.db"}
    properties = {**catalog, "warehouse": str(folder / "warehouse")}
    sink = {"type": "iceberg", "table": "n.t", "catalog": {"name": "c", "properties": properties}}
    return sink, lambda: load_catalog("c", **catalog).load_table("n.t").scan().to_arrow().num_rows


def embedded_iceberg(folder: Path) -> tuple[dict[str, Any], Callable[[], int]]:
    warehouse = folder / "warehouse"

    def rows() -> int:
        files = [str(path) for path in warehouse.rglob("data/**/*.parquet")]
        return sum(pl.read_parquet(path, glob=False).height for path in files)

    return {"type": "iceberg", "table": "n.t", "warehouse": str(warehouse)}, rows


TABLES = [parquet, delta, delta_laid_out, iceberg, embedded_iceberg]


def run(bench: Bench, sink: dict[str, Any], staging: Path) -> int:
    """Rows that a run says it committed."""
    bench.topic.write(RECORDS, partitions=range(4))
    config = {**bench.config, "sink": sink, "staging": str(staging)}
    return Pipeline.from_config(config).run().rows


@pytest.mark.parametrize("name", ODD)
def test_a_staging_folder_may_have_any_name(bench: Bench, tmp_path: Path, name: str) -> None:
    assert run(bench, bench.config["sink"], tmp_path / name) == RECORDS
    bench.table.assert_holds_once(bench.topic.written)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name], "nothing beside it"


def test_an_audit_reads_what_it_writes_beside_them(bench: Bench, tmp_path: Path) -> None:
    """Spark looks for patterns in the name of what it is to read."""
    name = "a b[c]*{d,e}?#%41\\f"
    assert run(bench, bench.config["sink"], tmp_path / name) == RECORDS
    report = bench.pipeline(staging=str(tmp_path / name)).audit()
    assert report.passed, str(report)
    assert report.totals["rows_found"] == RECORDS


@pytest.mark.core(only=["kafka-a b", "console-a%41b#?"])
@pytest.mark.parametrize("name", ["a b", "a%41b#?"])
@pytest.mark.parametrize("kind", ["console", "kafka"])
def test_so_it_may_for_sinks_without_folders_of_their_own(
    bench: Bench, make_topic: MakeTopic, kafka: EmbeddedKafka, tmp_path: Path, kind: str, name: str
) -> None:
    console = {"type": "console", "ledger": str(tmp_path / name / "ledger")}
    servers = {"bootstrap_servers": kafka.bootstrap_servers, "topic": make_topic(partitions=1)}
    sink = {"console": console, "kafka": {"type": "kafka", **servers}}[kind]
    assert run(bench, sink, tmp_path / name / "staging") == RECORDS


@pytest.mark.core(only=["embedded_iceberg-a%b"])
@pytest.mark.parametrize(
    ("table", "name"),
    rest_is_chaos(
        [(table, name) for table in TABLES for name in ODD],
        but=[(table, name) for table in (delta_laid_out, embedded_iceberg) for name in ODD],
    ),
)
def test_a_tables_folder_may_have_any_name_or_is_refused_at_once(
    bench: Bench,
    tmp_path: Path,
    table: Callable[[Path], tuple[dict[str, Any], Callable[[], int]]],
    name: str,
) -> None:
    folder = tmp_path / "tables" / name
    sink, rows = table(folder)
    if any(letter in name for letter in _REFUSED.get(table.__name__, ())):
        with pytest.raises(ConfigError, match=r"sink\.[\w.]+: .* cannot be used .* folder"):
            run(bench, sink, tmp_path / "staging")
        assert not folder.exists()
        return
    assert run(bench, sink, tmp_path / "staging") == RECORDS
    assert rows() == RECORDS
    assert [p.name for p in folder.parent.iterdir()] == [name], "nothing beside it"


#: The library of these stores takes them for something else.
_REFUSED = {
    **dict.fromkeys(("delta", "delta_laid_out"), ("%41", "\\")),
    **dict.fromkeys(("iceberg", "embedded_iceberg"), ("#", "?")),
}


@pytest.mark.parametrize(
    ("writer", "transform"),
    [
        ("native_decode", None),
        ("native_decode", "tests.runs.transforms:as_it_is"),
        ("output", "tests.runs.transforms:as_it_is"),
    ],
)
def test_executors_that_write_into_another_folder_are_told_so(
    bench: Bench,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
    transform: str | None,
) -> None:
    """Scenario: Spark's file system is not this process's: what is written in one is not there in
    the other. Outcome: refused, with both numbers; nothing is committed.
    """
    if writer == "output":
        request.getfixturevalue("by_plan")
    theirs = f"file://{tmp_path}/of another machine"
    written = f"eo_pipeline.batch.{writer}.path_to_write"
    monkeypatch.setattr(written, lambda path: theirs + str(path))
    bench.topic.write(RECORDS)
    with pytest.raises(SetupError, match=f"made {RECORDS} rows, and 0 are .* same staging folder"):
        bench.pipeline(transform=transform).run()
    assert bench.table.versions() == [0]


def test_a_partitioned_table_takes_a_first_checkpoint_without_rows(
    bench: Bench, tmp_path: Path
) -> None:
    """Files are laid out by columns, so that no rows make no file: the frame has a schema."""
    sink, rows = delta_laid_out(tmp_path / "lake")
    bench.topic.write(RECORDS)
    config = {**bench.config, "sink": sink}
    nothing = {**config, "transform": "tests.runs.transforms:nothing"}
    assert Pipeline.from_config(nothing).run().head.counts.records == RECORDS
    assert rows() == 0
    bench.topic.write(RECORDS)
    Pipeline.from_config(config).run()
    assert rows() == RECORDS
    assert DeltaTable(str(tmp_path / "lake" / "table")).metadata().partition_columns == ["name"]

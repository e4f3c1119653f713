"""What rows and dead letters hold is proved by checksums: what others change there is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from eo_pipeline import AuditReport, FindingKind, Pipeline
from eo_pipeline.embedded.spark import EmbeddedSpark
from tests.support.chaos import rest_is_chaos
from tests.support.engine import SCHEMA, TABLE, Bench, Table, Topic
from tests.support.topics import delete_records

Change = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Store:
    """A sink's configuration, and what another program does to values of checkpoint 1."""

    sink: dict[str, Any]
    another_name: Callable[[], object]
    names_swapped: Callable[[], object]
    letter_gone: Callable[[], object]
    letter_changed: Callable[[], object]


def of_files(sink: dict[str, Any], folder: Path, change: Callable[[Change], object]) -> Store:
    """A store whose rows of checkpoint 1 are replaced by ``change``, and that keeps dead letters
    in one file below ``folder``.
    """
    return Store(
        sink,
        lambda: change(another_name),
        lambda: change(names_swapped),
        lambda: change_dead_letters(folder, without_the_first),
        lambda: change_dead_letters(folder, with_another_error),
    )


def delta(folder: Path, _: str) -> Store:
    def change(change: Change) -> None:
        rows = DeltaTable(str(folder)).to_pyarrow_dataset().to_table()
        mine = rows.filter(pc.equal(rows["_eo_checkpoint"], 1))
        write_deltalake(str(folder), change(mine), mode="overwrite", predicate="_eo_checkpoint = 1")

    return of_files({"type": "delta", "path": str(folder)}, folder, change)


def iceberg(folder: Path, _: str) -> Store:
    def change(change: Change) -> None:
        catalog = load_catalog("eo", type="sql", uri=f"sqlite:///{folder}/catalog.db")
        table, mine = catalog.load_table("ops.events"), "_eo_checkpoint = 1"
        table.overwrite(change(table.scan(mine).to_arrow()), overwrite_filter=mine)

    sink = {"type": "iceberg", "table": "ops.events", "warehouse": str(folder)}
    return of_files(sink, folder, change)


def parquet(folder: Path, _: str) -> Store:
    def change(change: Change) -> None:
        first, *others = sorted((folder / "checkpoint=1").glob("*.parquet"))
        rows = pa.concat_tables(pq.ParquetFile(each).read() for each in (first, *others))
        for each in (first, *others):
            each.unlink()
        pq.write_table(change(rows), first)

    return of_files({"type": "parquet", "path": str(folder)}, folder, change)


def postgres(_: Path, dsn: str) -> Store:
    def run(sql: str) -> Callable[[], object]:
        return lambda: Table(dsn).execute(sql)

    return Store(
        {"type": "postgres", "dsn": dsn, "table": TABLE},
        run("update events set name = 'another' where id = 0"),
        run(
            "update events one set name = other.name from events other "
            "where (one.id, other.id) in ((0, 1), (1, 0))"
        ),
        run("delete from events_dead_letters where value = 'not json'"),
        run("update events_dead_letters set error = 'fine' where value = 'not json'"),
    )


def another_name(rows: pa.Table) -> pa.Table:
    return with_names(rows, ["another", *rows["name"].to_pylist()[1:]])


def names_swapped(rows: pa.Table) -> pa.Table:
    first, second, *others = rows["name"].to_pylist()
    assert first != second
    return with_names(rows, [second, first, *others])


def with_names(rows: pa.Table, names: list[str]) -> pa.Table:
    field = rows.schema.field("name")
    return rows.set_column(rows.schema.get_field_index("name"), field, pa.array(names, field.type))


def change_dead_letters(folder: Path, change: Change) -> None:
    """The same, of the newest file of dead letters below ``folder``: a replay leaves others."""
    files = [each for each in folder.rglob("*.parquet") if "dead_letters" in str(each.parent)]
    path = max(files, key=lambda each: each.name)
    rows = pq.ParquetFile(path).read()
    path.unlink()  # staging may know it by another name
    pq.write_table(change(rows), path)


def without_the_first(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def with_another_error(rows: pa.Table) -> pa.Table:
    where = rows.schema.get_field_index("error")
    return rows.set_column(where, rows.schema.field("error"), pa.array(["fine"] * rows.num_rows))


def found(report: AuditReport) -> list[tuple[FindingKind, int, tuple[int, ...]]]:
    return [(each.kind, each.count, each.checkpoints) for each in report.findings]


def repaired(pipeline: Pipeline, report: AuditReport) -> None:
    """By the replay that the report names."""
    assert [str(each.command) for each in report.repairs] == ["eo replay 1 1"], str(report)
    pipeline.replay(1, 1)
    assert_proved(pipeline.audit(), 2)


def assert_proved(report: AuditReport, checkpoints: int) -> None:
    assert report.passed, str(report)
    assert report.totals["as_committed"] == checkpoints, str(report)
    assert [each.kind for each in report.remarks] == []


MakeStore = Callable[[Path, str], Store]
ALL_STORES: list[MakeStore] = [delta, iceberg, parquet, postgres]


@pytest.fixture
def store(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Store:
    made: Store = request.param(tmp_path / "lake", database)
    return made


@pytest.fixture
def pipeline(store: Store, spark_server: EmbeddedSpark, events: Topic, tmp_path: Path) -> Pipeline:
    """Two checkpoints, with two dead letters in the first, of rows with values of every type."""
    config: dict[str, Any] = {
        "name": "events",
        "source": {
            "bootstrap_servers": events.bootstrap_servers,
            "topics": [events.name],
            "value_schema": SCHEMA,
            "max_records": 100,
            "on_bad_record": "dead_letter",
        },
        "transform": "tests.audit.audit_transforms:of_every_type",
        "sink": store.sink,
        "staging": str(tmp_path / "staging"),
        "inline_records": 50,
    }
    made = Bench(events, Table(""), config).pipeline()
    events.write_value(b"not json")
    events.write_value(b"not json either")
    events.write(130, partitions=range(4))
    made.run()
    return made


#: Rows and dead letters of one store are changed in one way each, of each way by two stores.
ONE_WAY_EACH = [
    (delta, "another_name", "letter_gone"),
    (iceberg, "names_swapped", "letter_changed"),
    (parquet, "another_name", "letter_changed"),
    (postgres, "names_swapped", "letter_gone"),
]


@pytest.mark.core(only=["postgres-names_swapped-letter_gone"])
@pytest.mark.parametrize(
    ("store", "change_rows", "change_letters"), ONE_WAY_EACH, indirect=["store"]
)
def test_what_others_change_is_found_and_repaired(
    pipeline: Pipeline, store: Store, change_rows: str, change_letters: str
) -> None:
    """Values of every type are read back as they were staged, from files and from memory."""
    assert_proved(pipeline.audit(), 2)

    getattr(store, change_rows)()
    getattr(store, change_letters)()
    report = pipeline.audit()
    assert found(report) == [
        (FindingKind.CHANGED, 1, (1,)),
        (FindingKind.DEAD_LETTERS, 1, (1,)),
    ], str(report)
    repaired(pipeline, report)


@pytest.mark.chaos
@pytest.mark.parametrize("store", ALL_STORES, indirect=True)
def test_each_change_by_itself_is_found_and_repaired(pipeline: Pipeline, store: Store) -> None:
    """Also in rows that a replay has written."""
    store.another_name()
    report = pipeline.audit()
    assert found(report) == [(FindingKind.CHANGED, 1, (1,))], str(report)
    repaired(pipeline, report)

    store.names_swapped()
    store.letter_gone()
    report = pipeline.audit()
    assert found(report) == [
        (FindingKind.CHANGED, 1, (1,)),
        (FindingKind.DEAD_LETTERS, 1, (1,)),
    ], str(report)
    repaired(pipeline, report)

    store.letter_changed()
    report = pipeline.audit()
    assert found(report) == [(FindingKind.DEAD_LETTERS, 1, (1,))], str(report)


@pytest.mark.parametrize("store", rest_is_chaos(ALL_STORES, but=[delta]), indirect=True)
def test_values_are_proved_when_kafka_has_forgotten_the_records(
    pipeline: Pipeline, store: Store, events: Topic
) -> None:
    admin = AdminClient({"bootstrap.servers": events.bootstrap_servers, "log_level": 0})
    for partition in range(4):
        delete_records(admin, events.name, partition, -1)
    assert_proved(pipeline.audit(), 2)

    store.another_name()
    report = pipeline.audit()
    assert found(report) == [(FindingKind.CHANGED, 1, (1,))], str(report)
    (repair,) = report.repairs
    assert "Kafka no longer holds" in str(repair)

"""The table as it stood at a version, against what another program saw at that moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import PastGoneError, UnknownCheckpointError
from eo_pipeline.pipeline import Pipeline
from tests.support.chaos import rest_is_chaos
from tests.support.engine import TABLE, Bench, Table, Topic
from tests.support.servers import wait_until
from tests.support.stores import MySqlDatabase

#: How often each (id, name) is in the table.
Rows = Counter[tuple[int, str]]


@dataclass(frozen=True)
class Store:
    """A sink's configuration; how another program reads the table, whether it keeps earlier
    states, and how it answers an SQL query.
    """

    sink: dict[str, Any]
    look: Callable[[], list[tuple[int, str]]]
    keeps_states: bool = False
    ask: Callable[[str], list[tuple[Any, ...]]] | None = None
    engine: str = ""


def postgres(_: Path, __: MySqlDatabase, dsn: str) -> Store:
    table = Table(dsn)
    return Store(
        {"type": "postgres", "dsn": dsn, "table": TABLE},
        lambda: (
            [(a, b) for a, b in table.query(f"select id, name from {TABLE}")]
            if table.exists()
            else []
        ),
        ask=table.query,
        engine="PostgreSQL",
    )


def mysql(_: Path, database: MySqlDatabase, __: str) -> Store:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def look() -> list[tuple[int, str]]:
        there = ask(f"SHOW TABLES LIKE '{TABLE}'")
        return [(a, b) for a, b in ask(f"SELECT id, name FROM {TABLE}")] if there else []

    return Store(database.settings(table=TABLE), look, ask=ask, engine="MySQL")


def parquet(folder: Path, _: MySqlDatabase, __: str) -> Store:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with duckdb.connect() as reader:
            return reader.execute(query).fetchall()

    def look() -> list[tuple[int, str]]:
        files = list(folder.glob("checkpoint=*/*.parquet"))
        query = f"select id, name from read_parquet({list(map(str, files))})"
        return [(a, b) for a, b in ask(query)] if files else []

    return Store({"type": "parquet", "path": str(folder)}, look, ask=ask, engine="DuckDB")


def delta(folder: Path, _: MySqlDatabase, __: str) -> Store:
    def look() -> list[tuple[int, str]]:
        if not DeltaTable.is_deltatable(str(folder)):
            return []
        rows = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
        return [(row["id"], row["name"]) for row in rows]

    return Store({"type": "delta", "path": str(folder)}, look, keeps_states=True)


def iceberg(folder: Path, _: MySqlDatabase, __: str) -> Store:
    def look() -> list[tuple[int, str]]:
        catalog = load_catalog("eo", type="sql", uri=f"sqlite:///{folder}/catalog.db")
        with suppress(NoSuchTableError):
            rows = catalog.load_table("ops.events").scan().to_arrow().to_pylist()
            return [(row["id"], row["name"]) for row in rows]
        return []

    sink = {"type": "iceberg", "table": "ops.events", "warehouse": str(folder)}
    return Store(sink, look, keeps_states=True)


def pipeline_of(topic: Topic, sink: dict[str, Any], folder: Path, **more: Any) -> Pipeline:
    config: dict[str, Any] = {
        "name": "events",
        "source": topic.source(max_records=20),
        "sink": sink,
        "staging": str(folder / "staging"),
    }
    return Bench(topic, Table(""), config).pipeline(**more)


def shown(pipeline: Pipeline, version: int) -> Rows | str:
    """The table as of ``version``, or why not; counted and read in two ways."""
    try:
        with pipeline.as_of(version) as found:
            rows = [row for batch in found.batches() for row in batch.to_pylist()]
            assert found.count() == len(rows)
            assert len(found.first(3)) == min(3, len(rows))
    except PastGoneError as error:
        return str(error)
    return Rows((row["id"], row["name"]) for row in rows)


@pytest.mark.core(only=["delta"])
@pytest.mark.parametrize(
    "store",
    # what the others have of their own: test_past_of_lakes.py, test_sql_reading.py
    rest_is_chaos([postgres, mysql, parquet, delta, iceberg], but=[postgres, parquet, delta]),
)
def test_every_version_is_shown_as_it_was_or_refused_with_the_reason(
    store: Callable[[Path, MySqlDatabase, str], Store],
    spark_server: EmbeddedSpark,
    events: Topic,
    mysql_database: MySqlDatabase,
    database: str,
    tmp_path: Path,
) -> None:
    used = store(tmp_path / "lake", mysql_database, database)
    pipeline = pipeline_of(events, used.sink, tmp_path)
    saw: dict[int, Rows] = {0: Rows()}

    def note() -> None:
        head = pipeline.head()
        assert head is not None
        saw[head.version] = Rows(used.look())

    for _ in range(3):
        events.write(20, partitions=range(4))
        pipeline.run()
        note()
    pipeline.rewind(2)
    note()
    pipeline.run()
    note()

    assert [shown(pipeline, v) == saw[v] for v in (0, 1, 2, 4, 5)] == [True] * 5
    if used.keeps_states:
        assert shown(pipeline, 3) == saw[3]
    else:
        assert "version 4 rewound to 2 and removed checkpoint 3" in str(shown(pipeline, 3))
    if used.ask is not None:  # the SQL that is told, run by the store itself
        with pipeline.as_of(2) as found:
            query = found.queries[used.engine]
            in_spark = found.queries.get("Spark")
        assert used.ask(f"SELECT count(*) FROM ({query}) AS past") == [(40,)]
        assert in_spark is None or pipeline.spark.session().sql(in_spark).count() == 40

    shouting = pipeline_of(events, used.sink, tmp_path, transform="tests.runs.transforms:shouting")
    shouting.replay(1)
    note()
    assert shown(pipeline, 6) == saw[6]
    for version in range(1, 6):
        if used.keeps_states:
            assert shown(pipeline, version) == saw[version]
        else:
            assert "version 6 replayed checkpoint 1" in str(shown(pipeline, version))

    with pytest.raises(UnknownCheckpointError, match="versions 0 to 6"):
        shown(pipeline, 7)
    assert Rows(used.look()) == saw[6], "looking changes nothing"


@pytest.mark.core
def test_rows_that_somebody_else_took_out_are_missed(bench: Bench) -> None:
    bench.topic.write(200, partitions=range(4))
    pipeline = bench.pipeline()
    pipeline.run()
    bench.table.execute(f"delete from {TABLE} where _eo_checkpoint = 1 and id < 30")
    gone = len(bench.table.query(f"select from {TABLE} where _eo_checkpoint = 1"))
    assert f"checkpoint 1 has {gone} rows and had 100" in str(shown(pipeline, 1))
    with (
        pytest.raises(PastGoneError, match="somebody else changed"),
        pipeline.as_of(1) as found,
    ):
        list(found.batches())
    with pipeline.as_of(1, what_is_left=True) as found:
        assert found.count() == gone


@pytest.mark.core
def test_what_is_left_of_a_version_is_shown_if_it_is_asked_for(bench: Bench) -> None:
    bench.topic.write(300, partitions=range(4))
    pipeline = bench.pipeline()
    pipeline.run()
    pipeline.rewind(1)
    with pipeline.as_of(3, what_is_left=True) as found:
        assert found.missing == ("version 4 rewound to 1 and removed checkpoint 2, 3",)
        assert found.count() == 100
        assert sum(batch.num_rows for batch in found.batches()) == 100


def test_a_moment_names_the_newest_version_committed_by_then(bench: Bench) -> None:
    bench.topic.write(200, partitions=range(4))
    pipeline = bench.pipeline()
    pipeline.run()
    [_, first, second] = pipeline.history()
    assert first.committed_at is not None
    assert second.committed_at is not None
    with pipeline.as_of(first.committed_at) as found:
        assert (found.version, found.count()) == (1, 100)


@pytest.mark.core
def test_what_an_upsert_overwrote_is_not_shown_as_if_it_were_there(bench: Bench) -> None:
    bench.topic.write(100)
    pipeline = bench.pipeline(sink={"mode": "upsert", "key": ["id"]})
    pipeline.run()
    assert isinstance(shown(pipeline, 1), Counter)
    bench.topic.write(100)
    pipeline.run()
    assert "replace each other by key" in str(shown(pipeline, 1))
    assert isinstance(shown(pipeline, 2), Counter)


def test_rows_that_are_taken_back_while_they_are_read_are_no_answer(bench: Bench) -> None:
    bench.topic.write(300, partitions=range(4))
    pipeline = bench.pipeline()
    pipeline.run()
    with pipeline.as_of(3) as found:
        reading = found.batches()
        next(reading)
        bench.pipeline().rewind(1)
        with pytest.raises(PastGoneError, match="while it was read"):
            list(reading)


def test_reading_leaves_no_connection_and_no_lock(bench: Bench) -> None:
    bench.topic.write(100)
    pipeline = bench.pipeline()
    pipeline.run()
    with pipeline.as_of(1) as found:
        next(found.batches()).num_rows  # noqa: B018 - the rest is not asked for
    with psycopg.connect(bench.table.dsn, autocommit=True) as connection:
        query = "select count(*) from pg_stat_activity where application_name like 'eo-pipeline%'"
        # a server's process ends a moment after its client has
        wait_until(lambda: connection.execute(query).fetchall() == [(0,)])

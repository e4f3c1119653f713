"""Tables that appear: one for each value of an expression, or for each topic."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyiceberg.table import StaticTable

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import BadRecordError, ConfigError, EoPipelineError, NothingToDoError
from eo_pipeline.pipeline import Pipeline
from tests.support.engine import Table
from tests.support.servers import MakeTopic
from tests.support.stores import MySqlDatabase
from tests.tables.shop import killed
from tests.tables.test_kafka_tables import committed_values

SCHEMA = "id BIGINT NOT NULL"
KIND = "headers['kind']"

Headers = list[tuple[str, str | bytes | None]]


class Events:
    """One topic with events of some kinds, each into a table of its kind."""

    def __init__(self, kafka: str, topic: str, sink: Mapping[str, Any], staging: Path) -> None:
        self.kafka, self.topic, self.sent = kafka, topic, Counter[str | None]()
        self.config: dict[str, Any] = {
            "name": "events",
            "source": {"bootstrap_servers": kafka, "topics": topic, "max_records": 100},
            "sink": dict(sink),
            "tables": {"each": KIND, "name": "raw_{value}", "value_schema": SCHEMA},
            "staging": str(staging),
            "overlap": False,
        }

    def pipeline(self, **changes: Any) -> Pipeline:
        return Pipeline.from_config({**self.config, **changes})

    def tables(self, **changes: Any) -> dict[str, Any]:
        return {**self.config["tables"], **changes}

    def write(self, kinds: Mapping[str | None, int]) -> None:
        """So many events of each kind, in turn; a kind of None is no header."""
        producer = Producer({"bootstrap.servers": self.kafka})
        for number in range(max(kinds.values())):
            for kind, count in kinds.items():
                if number < count:
                    headers: Headers = [] if kind is None else [("kind", kind.encode())]
                    value = json.dumps({"id": self.sent[kind]}).encode()
                    producer.produce(self.topic, value, headers=headers, partition=number % 2)
                    self.sent[kind] += 1
        assert producer.flush(60) == 0


Query = Callable[[str], list[tuple[Any, ...]]]


def holds(query: Query, tables: Mapping[str, int]) -> None:
    """Each of ``tables`` has so many ids from 0 on, each once."""
    for table, count in tables.items():
        ids = sorted(row[0] for row in query(f"select id from {table}"))
        assert ids == [*range(count)], table


@pytest.fixture
def table(database: str) -> Table:
    table = Table(database)
    table.execute("create schema sales")
    return table


@pytest.fixture
def events(
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    database: str,
    table: Table,
    tmp_path: Path,
) -> Events:
    sink = {"type": "postgres", "dsn": database, "schema": "sales"}
    topic = make_topic(partitions=2)
    return Events(kafka.bootstrap_servers, topic, sink, tmp_path / "staging")


def rows_by_table(pipeline: Pipeline) -> dict[str, int]:
    head = pipeline.head()
    assert head is not None
    return {name: counts.rows_total for name, counts in head.counts.tables.items()}


@pytest.mark.core
def test_a_table_appears_with_its_first_record_and_goes_back_with_all(
    events: Events, table: Table
) -> None:
    pipeline = events.pipeline()
    pipeline.run()
    with pytest.raises(NothingToDoError, match="no table has appeared"):
        pipeline.audit()
    events.write({"order": 150, "note": 20})
    pipeline.run()
    holds(table.query, {"sales.raw_order": 150, "sales.raw_note": 20})
    events.write({"order": 10, 'it\'s \\ a "Übel"\n': 5})
    first = pipeline.head()
    assert first is not None
    # another object, as another process has it
    report = events.pipeline().run()
    [checkpoint] = report.checkpoints
    assert checkpoint.entry.parent == first.id
    odd = 'sales."raw_it_s___a__Übel__"'
    holds(table.query, {"sales.raw_order": 160, "sales.raw_note": 20, odd: 5})
    assert rows_by_table(pipeline) == {
        "raw_order": 160,
        "raw_note": 20,
        "raw_it_s___a__Übel__": 5,
    }
    audited = events.pipeline().audit()
    assert audited.passed, str(audited)
    assert len(audited.tables) == 3
    pipeline.rewind(first.version)
    holds(table.query, {"sales.raw_order": 150, "sales.raw_note": 20, odd: 0})
    pipeline.run()
    holds(table.query, {"sales.raw_order": 160, "sales.raw_note": 20, odd: 5})
    assert pipeline.ledger_damages() == []
    with pipeline.as_of(first.version, table="raw_order") as view:
        assert view.count() == 150


@pytest.mark.parametrize("inline_records", [0, 10_000])
@pytest.mark.parametrize(
    "point", [CrashPoint.STAGED, CrashPoint.PRE_COMMITTED, CrashPoint.ENTRY_SENT]
)
def test_killed_while_a_table_appears_it_is_there_with_all_or_not_at_all(
    events: Events, table: Table, point: CrashPoint, inline_records: int
) -> None:
    config = {**events.config, "inline_records": inline_records}
    events.write({"order": 20})
    events.pipeline(inline_records=inline_records).run()
    events.write({"order": 30, "note": 40})
    killed(config, "--crash-at", point, "1")
    holds(table.query, {"sales.raw_order": 20})
    assert table.query("select to_regclass('sales.raw_note')") == [(None,)]
    report = events.pipeline(inline_records=inline_records).run()
    holds(table.query, {"sales.raw_order": 50, "sales.raw_note": 40})
    promised = point is not CrashPoint.STAGED and inline_records == 0
    assert any(checkpoint.recovered for checkpoint in report.checkpoints) == promised


def test_topics_of_a_pattern_get_tables(
    spark_server: EmbeddedSpark, events: Events, make_topic: MakeTopic, table: Table
) -> None:
    others = [make_topic(partitions=2) for _ in range(2)]
    named = "|".join((events.topic, *others))
    source = {"bootstrap_servers": events.kafka, "topic_pattern": named, "start": "earliest"}
    pipeline = events.pipeline(source=source, tables=events.tables(each="topic", name="{value}"))
    events.write({None: 30})
    pipeline.run()
    tables = [f"sales.{topic.replace('-', '_')}" for topic in (events.topic, *others)]
    holds(table.query, {tables[0]: 30})
    assert table.query(f"select to_regclass('{tables[1]}')") == [(None,)]
    for topic, count in zip(others, (5, 7), strict=True):
        Events(events.kafka, topic, {}, Path()).write({None: count})
    pipeline.run()
    holds(table.query, dict(zip(tables, (30, 5, 7), strict=True)))
    assert pipeline.audit().passed


def test_records_without_a_value_are_the_rest(events: Events, table: Table) -> None:
    events.write({"order": 20, None: 3})
    with pytest.raises(BadRecordError, match="no table takes 3 records"):
        events.pipeline().run()
    assert table.query("select to_regclass('sales.raw_order')") == [(None,)]
    lenient = events.pipeline(rest="dead_letter")
    lenient.run()
    events.write({None: 2, "note": 1})
    lenient.run()
    holds(table.query, {"sales.raw_order": 20, "sales.raw_note": 1})
    letters = [letter.to_json() for letter in lenient.dead_letter_rows()]
    assert [letter["table"] for letter in letters] == ["events_rest"] * 5
    head = lenient.head()
    assert head is not None
    assert (head.counts.records, head.counts.rest) == (3, 2)
    report = lenient.audit()
    assert report.passed, str(report)
    # the value they get later on moves them, in one transaction
    tables = events.tables(each=f"coalesce({KIND}, 'order')")
    events.pipeline(rest="dead_letter", tables=tables).plan_redrive().apply()
    assert table.query("select count(*) from sales.raw_order") == [(25,)]


def test_a_replay_makes_the_tables_that_its_records_need(events: Events, table: Table) -> None:
    events.write({"order": 20, "note": 10})
    events.pipeline().run()
    tables = events.tables(each=f"concat({KIND}, cast(get_json_object(value, '$.id') % 2 as int))")
    replayed = events.pipeline(tables=tables)
    replayed.replay(1)
    for name, count in {"order0": 10, "order1": 10, "note0": 5, "note1": 5}.items():
        assert table.query(f"select count(*) from sales.raw_{name}") == [(count,)]
    holds(table.query, {"sales.raw_order": 0, "sales.raw_note": 0})
    assert replayed.audit().passed


def test_more_tables_than_the_limit_stop_the_run_with_their_names(
    events: Events, table: Table
) -> None:
    events.write({"a": 1, "b": 1})
    few = events.tables(limit=2)
    events.pipeline(tables=few).run()
    events.write({"a": 1, "c": 1, "d": 1})
    with pytest.raises(ConfigError, match=r"4 values .*limit is 2: a, b, c, d") as refused:
        events.pipeline(tables=few).run()
    assert not refused.value.retryable
    holds(table.query, {"sales.raw_a": 1, "sales.raw_b": 1})
    events.write({"a.b": 1, "a-b": 1})
    with pytest.raises(ConfigError, match=r"'a-b' and 'a\.b'.* are both named raw_a_b"):
        events.pipeline().run()


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ({"name": "all"}, r"with \{value\}"),
        ({"mode": "upsert"}, "key"),
        ({"value_schema": "id BIGNT"}, "value_schema"),
        ({"topics": "another"}, "takes another, which source.topics does not name"),
        ({"each": ""}, "each"),
        ({"sink": {"dsn": "postgresql://elsewhere"}}, "dsn is the same for all tables"),
    ],
)
def test_a_wrong_field_is_an_error_before_a_table_appears(
    field: dict[str, Any], text: str, tmp_path: Path
) -> None:
    sink = {"type": "postgres", "dsn": "postgresql://nowhere"}
    events = Events("nowhere:1", "events", sink, tmp_path)
    with pytest.raises(ConfigError, match=text):
        events.pipeline(tables=events.tables(**field))


def test_a_topic_that_is_read_no_more_keeps_its_table(
    events: Events, make_topic: MakeTopic, table: Table
) -> None:
    source = {**events.config["source"], "topics": [events.topic, make_topic(partitions=2)]}
    tables = events.tables(each="topic", name="{value}")
    for topic in source["topics"]:
        Events(events.kafka, topic, {}, Path()).write({None: 5})
    events.pipeline(source=source, tables=tables).run()
    for topic in source["topics"]:
        Events(events.kafka, topic, {}, Path()).write({None: 7})
    fewer = events.pipeline(source={**source, "topics": events.topic}, tables=tables)
    fewer.run()
    counts = [
        table.query(f"select count(*) from sales.{topic.replace('-', '_')}")[0][0]
        for topic in source["topics"]
    ]
    assert counts == [12, 5]
    assert rows_by_table(fewer) == dict(
        zip((topic.replace("-", "_") for topic in source["topics"]), (12, 5), strict=True)
    )


def test_the_ledger_is_no_table_of_a_value(events: Events) -> None:
    events.write({"eo_ledger": 1})
    with pytest.raises(ConfigError, match="eo_ledger"):
        events.pipeline(tables=events.tables(name="{value}")).run()
    assert events.pipeline().history()[-1].version == 0


@pytest.mark.parametrize("value", ["rest", "each"])
def test_a_value_whose_table_is_the_pipelines_own_stops_the_run(events: Events, value: str) -> None:
    events.write({value: 1, None: 1})
    pipeline = events.pipeline(tables=events.tables(name="events_{value}"), rest="dead_letter")
    with pytest.raises(ConfigError, match=f"two tables have the name events_{value}"):
        pipeline.run()
    assert pipeline.history()[-1].version == 0


@pytest.mark.parametrize("each", ["value.kind", "cast(value as int)", "no_such(value)"])
def test_an_expression_that_fails_is_named(events: Events, each: str) -> None:
    events.write({"order": 20})
    with pytest.raises(ConfigError, match=r"each \(or where\) of tables fails"):
        events.pipeline(tables=events.tables(each=each)).run()


def test_a_row_that_a_new_table_refuses_stops_all(events: Events, table: Table) -> None:
    events.write({"order": 20})
    events.pipeline().run()
    table.execute("create table sales.raw_note (id smallint, extra int not null)")
    events.write({"order": 5, "note": 5})
    with pytest.raises(EoPipelineError, match="raw_note"):
        events.pipeline().run()
    holds(table.query, {"sales.raw_order": 20})


def test_tables_appear_in_mysql(
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    mysql_database: MySqlDatabase,
    tmp_path: Path,
) -> None:
    def query(text: str) -> list[tuple[Any, ...]]:
        with mysql_database.connect() as reader, reader.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())

    topic = make_topic(partitions=2)
    settings = mysql_database.settings()
    events = Events(kafka.bootstrap_servers, topic, settings, tmp_path / "staging")
    events.write({"order": 20})
    events.pipeline().run()
    events.write({"order": 5, "note": 120})
    config = {**events.config, "inline_records": 0}
    killed(config, "--crash-at", CrashPoint.PRE_COMMITTED, "1")
    holds(query, {"raw_order": 20})
    events.pipeline().run()
    holds(query, {"raw_order": 25, "raw_note": 120})
    assert events.pipeline().audit().passed


def test_tables_appear_in_iceberg(
    spark_server: EmbeddedSpark, kafka: EmbeddedKafka, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Scenario: staged inside tables that are not there yet. Outcome: another process finds it."""

    def rows(name: str) -> list[int]:
        with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as catalog:
            found = catalog.execute(
                "select metadata_location from iceberg_tables where table_name = ?", [name]
            ).fetchall()
        tables = [StaticTable.from_metadata(place).scan().to_arrow() for (place,) in found]
        return sorted(row for table in tables for row in table["id"].to_pylist())

    topic = make_topic(partitions=2)
    sink = {"type": "iceberg", "namespace": "raw", "warehouse": str(tmp_path)}
    events = Events(kafka.bootstrap_servers, topic, sink, tmp_path / "staging")
    events.write({"order": 20})
    events.pipeline().run()
    events.write({"order": 5, "note": 60})
    killed({**events.config, "inline_records": 0}, "--crash-at", CrashPoint.PRE_COMMITTED, "1")
    assert (rows("raw_order"), rows("raw_note")) == ([*range(20)], [])
    report = events.pipeline().run()
    assert any(checkpoint.recovered for checkpoint in report.checkpoints)
    assert (rows("raw_order"), rows("raw_note")) == ([*range(25)], [*range(60)])
    assert events.pipeline().audit().passed
    assert {*(tmp_path / "raw").iterdir()} == {
        tmp_path / "raw" / name for name in ("raw_order", "raw_note", "events_eo_ledger")
    }


def test_topics_that_appear_must_exist(
    spark_server: EmbeddedSpark, kafka: EmbeddedKafka, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, there = make_topic(partitions=2), make_topic()
    sink = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers}
    events = Events(kafka.bootstrap_servers, topic, sink, tmp_path / "staging")
    pipeline = events.pipeline(tables=events.tables(name="{value}"))
    events.write({there: 20})
    pipeline.run()
    assert len(committed_values(events.kafka, there)) == 20
    events.write({there: 5, "not-there": 5})
    with pytest.raises(ConfigError, match="not-there"):
        pipeline.run()
    assert len(committed_values(events.kafka, there)) == 20
    assert pipeline.status().lag >= 10

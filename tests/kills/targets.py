"""The stores, each with a reader of its own that shares no code with the product.

A target gives a table of its own to every life, says how a pipeline is told of it, and reads it by
the store's own client or by another reader of the format.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import polars as pl
import psycopg
import pymysql
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from pyiceberg.table import StaticTable

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.embedded.object_store import EmbeddedObjectStore
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.redis import EmbeddedRedis
from eo_pipeline.embedded.server import EmbeddedServer
from tests.kills.disks import Disk
from tests.kills.judge import Judge, NewestByKey, Row, Topic
from tests.kills.plan import FAULTS, GOING_BACK, OPERATIONS, PARTITIONS_MAX, Abilities
from tests.support.mysql_server import EmbeddedMySql
from tests.support.proxy import Proxy
from tests.support.server_settings import MYSQL, NOT_THERE, POSTGRES, Setting, drawn, in_database

_COLUMNS = ("_eo_checkpoint", "_eo_partition", "_eo_offset", "id", "key", "name", "rev")
_SELECTED = ", ".join(name if name != "key" else "{quote}key{quote}" for name in _COLUMNS)

#: The table of a record, by its id: two take turns, and more appear as a life goes on.
_ID = "CAST(get_json_object(value, '$.id') AS INT)"
_EACH = f"CASE WHEN {_ID} % 2 = 0 THEN 'even' ELSE concat('odd', least({_ID} DIV 100, 5)) END"
_VALUES = ("even", *(f"odd{number}" for number in range(6)))

_POINTERS = (
    "select metadata_location from iceberg_tables "
    "where table_namespace = 'ops' and table_name like 'events%'"
)

#: What MySQL says of a table that is younger than the reader's snapshot.
_YOUNGER = 1412

#: Seconds until a store ends what a silent process holds.
LOCK_TIMEOUT_S = 2.0
_READ_S = 60.0

#: Limits of a server that the reader must not have.
_OF_READERS = {
    "sql_select_limit": 2**64 - 1,
    "max_join_size": 2**64 - 1,
    "sql_big_selects": "on",
    "max_execution_time": 0,
    "max_statement_time": 0,
}
_DISK_MB = 700


def row(values: Iterable[Any]) -> Row:
    """In the order of the columns above."""
    checkpoint, partition, offset, number, key, name, rev = values
    return Row(
        int(checkpoint), int(partition), int(offset), int(number), str(key), str(name), int(rev)
    )


class Target(ABC):
    """One store in one mode. ``folder`` is on a disk of its own, which can be filled."""

    store: ClassVar[str]
    #: whether a reader of several partitions sees a checkpoint appear at one moment
    whole: ClassVar[bool] = True

    def __init__(self, folder: Path, mode: str = "append") -> None:
        self.mode = mode
        self.disk = Disk(folder, _DISK_MB)
        self.folder = folder

    @property
    def name(self) -> str:
        return f"{self.store}, {self.mode}"

    def start(self) -> None:
        """Start what there is to start."""
        if self.server is not None:
            self.server.start()

    def close(self) -> None:
        if self.server is not None:
            self.server.kill()  # nobody needs what it has
        self.disk.close()

    @property
    def server(self) -> EmbeddedServer | None:
        """Which may be killed; None where the store is a folder."""
        return None

    @property
    def port(self) -> int | None:
        """Where a proxy leads to; None where none can stand between."""
        return None

    @contextlib.contextmanager
    def link(self) -> Iterator[Proxy]:
        """A proxy between runs and the store, for as long as its link may break."""
        assert self.port is not None
        with Proxy("127.0.0.1", self.port) as proxy:
            yield proxy

    def able(self) -> Abilities:
        """What a life may do with it."""
        faults = {*FAULTS}
        faults -= {"kill the store"} if self.server is None else set()
        faults -= {"lose a reply"} if self.port is None else set()
        faults -= {"fill the disk"} if self.disk.why_not else set()
        back = self.mode in ("append", "tables") and self.goes_back
        without = (set() if back else GOING_BACK) | (set() if self.has_files else {"maintain"})
        return Abilities(faults, {*OPERATIONS} - without)

    goes_back: ClassVar[bool] = True
    #: whether maintenance has something to do
    has_files: ClassVar[bool] = False

    def judge(self, topic: Topic) -> Judge:
        """Of a new table."""
        return NewestByKey(topic) if self.mode == "upsert" else Judge(topic, whole=self.whole)

    @abstractmethod
    def make(self) -> str:
        """Room for a new table; its name."""

    def vary(self, table: str, seed: str) -> list[Setting]:
        """Set the server up as another service does, until the life ends or the server does; give
        the settings.
        """
        return []

    @abstractmethod
    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        """The pipeline's ``sink``; through a proxy at ``port`` if there is one."""

    def document(self, config: dict[str, Any], table: str) -> dict[str, Any]:
        """The pipeline's document; in the mode ``tables`` one with tables that appear."""
        if self.mode != "tables":
            return config
        source, tables = dict(config["source"]), {"each": _EACH, "name": self.names(table)}
        tables |= {"value_schema": source.pop("value_schema"), "transform": config["transform"]}
        rest = {name: value for name, value in config.items() if name != "transform"}
        return {**rest, "source": source, "tables": tables}

    def names(self, table: str) -> str:
        """Names of the tables that appear, with a place for their value."""
        return "events_{value}"

    def trigger(self, table: str) -> bytes:
        """What a client sends when it asks for the commit."""
        return b"COMMIT\0"  # a statement of its own: others name the level READ COMMITTED

    @abstractmethod
    def rows(self, table: str) -> Sequence[Row]:
        """All that a reader sees now."""

    def drop(self, table: str) -> None:
        """Its life is over."""
        shutil.rmtree(self.folder / "lake" / table, ignore_errors=True)

    def _place(self) -> dict[str, Any]:
        """The table, if it is one, and how it is written."""
        return ({} if self.mode == "tables" else {"table": "events"}) | self._upsert()

    def _upsert(self) -> dict[str, Any]:
        return {"mode": "upsert", "key": ["key"]} if self.mode == "upsert" else {}


class Postgres(Target):
    store = "PostgreSQL"

    def __init__(self, folder: Path, mode: str = "append") -> None:
        super().__init__(folder, mode)
        settings = {"fsync": "off", "max_wal_size": "96MB", "min_wal_size": "32MB"}
        self._server = EmbeddedPostgres(folder / "server", settings=settings)

    @property
    def server(self) -> EmbeddedServer:
        return self._server

    @property
    def port(self) -> int:
        return self._server._port

    def make(self) -> str:
        name = f"life_{uuid.uuid4().hex[:8]}"
        self._server.create_database(name)
        return name

    def vary(self, table: str, seed: str) -> list[Setting]:
        settings = drawn(POSTGRES, seed)
        with psycopg.connect(self._server.dsn_of("postgres"), autocommit=True) as admin:
            for name, value in settings:
                admin.execute(in_database(table, name, value).encode())
        return settings

    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        dsn = f"postgresql://postgres@127.0.0.1:{port or self.port}/{table}"
        limits = {"lock_timeout": LOCK_TIMEOUT_S, "connect_timeout": 5}
        return {"type": "postgres", "dsn": dsn, **limits, **self._place()}

    def rows(self, table: str) -> Sequence[Row]:
        """In one snapshot, of all tables."""
        dsn = self._server.dsn_of(table)
        with psycopg.connect(dsn, connect_timeout=10, client_encoding="utf8") as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            there = connection.execute(
                "select tablename from pg_tables where tablename ~ '^events(_[a-z]+[0-9]?)?$'"
            ).fetchall()
            selected = sql.SQL(f"select {_SELECTED.format(quote='')} from {{}}")
            return [
                row(values)
                for (name,) in there
                for values in connection.execute(selected.format(sql.Identifier(name)))
            ]

    def drop(self, table: str) -> None:
        with psycopg.connect(self._server.dsn_of("postgres"), autocommit=True) as admin:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(table)))


class MariaDB(Target):
    store = "MariaDB"
    _settings: ClassVar[dict[str, str]] = {"innodb-flush-log-at-trx-commit": "2"}
    _class: ClassVar[type[EmbeddedMariaDB]] = EmbeddedMariaDB

    def __init__(self, folder: Path, mode: str = "append") -> None:
        super().__init__(folder, mode)
        self._server = self._class(folder / "server", settings=self._settings)
        self._varied: list[Setting] = []
        self._varied_for = ""

    @property
    def server(self) -> EmbeddedServer:
        return self._server

    @property
    def port(self) -> int:
        return self._server.port

    def trigger(self, table: str) -> bytes:
        return b"\x03COMMIT"

    def make(self) -> str:
        return self._server.create_database(f"life_{uuid.uuid4().hex[:8]}")

    def vary(self, table: str, seed: str) -> list[Setting]:
        self._varied_for = table
        with self._server.connect() as admin, admin.cursor() as cursor:
            for name, value in drawn(MYSQL, seed):
                try:
                    cursor.execute(f"set global {name} = {value}")
                except pymysql.MySQLError as error:
                    if error.args[0] not in NOT_THERE:
                        raise
                else:
                    self._varied.append((name, value))
        return self._varied

    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        place = {"host": self._server.host, "port": port or self.port, "database": table}
        limits = {"lock_timeout": LOCK_TIMEOUT_S, "connect_timeout": 5, "ssl_mode": "disabled"}
        user = {"user": self._server.USER}
        return {"type": "mysql", **place, **user, **limits, **self._place()}

    def rows(self, table: str) -> Sequence[Row]:
        """In one snapshot, of all tables."""
        found: list[Row] = []
        with self._server.connect(table) as connection, connection.cursor() as cursor:
            for name in {name for name, _ in self._varied} & _OF_READERS.keys():
                cursor.execute(f"set session {name} = {_OF_READERS[name]}")
            cursor.execute("set session transaction isolation level repeatable read")
            cursor.execute("start transaction with consistent snapshot")
            cursor.execute(
                "select table_name from information_schema.tables where table_schema = database() "
                "and table_name regexp '^events(_[a-z]+[0-9]?)?$'"
            )
            for (name,) in cursor.fetchall():
                try:
                    cursor.execute(f"select {_SELECTED.format(quote='`')} from `{name}`")
                except pymysql.MySQLError as error:
                    if error.args[0] != _YOUNGER:
                        raise
                else:
                    found += map(row, cursor.fetchall())
        return found

    def drop(self, table: str) -> None:
        with self._server.connect() as admin, admin.cursor() as cursor:
            cursor.execute(f"drop database if exists `{table}`")
            if table == self._varied_for:
                for name, _ in self._varied:
                    cursor.execute(f"set global {name} = default")
                self._varied = []


class MySql(MariaDB):
    store = "MySQL"
    _settings: ClassVar[dict[str, str]] = {
        "innodb-flush-log-at-trx-commit": "2",
        "skip-log-bin": "1",
        "innodb-redo-log-capacity": "64M",
    }
    _class: ClassVar[type[EmbeddedMariaDB]] = EmbeddedMySql


class Delta(Target):
    store = "Delta"
    has_files = True

    def make(self) -> str:
        return f"life-{uuid.uuid4().hex[:8]}"

    def _root(self, table: str) -> str:
        return str(self.folder / "lake" / table / "events")

    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        return {"type": "delta", "path": self._root(table), **self._upsert()}

    def rows(self, table: str) -> Sequence[Row]:
        if not any(Path(self._root(table)).glob("_delta_log/*.json")):
            return []
        frame = pl.scan_delta(self._root(table)).select(_COLUMNS).collect()
        return [row(values) for values in frame.iter_rows()]


class DeltaInBucket(Target):
    store = "Delta in a bucket"
    has_files = True

    def __init__(self, folder: Path, mode: str = "append") -> None:
        super().__init__(folder, mode)
        self._server = EmbeddedObjectStore(folder / "server")
        # Spark keeps an endpoint for each bucket's name as long as it lives: a name for each
        # server, and one proxy that stays
        self._bucket = f"kills-{mode}"
        self._proxy: Proxy | None = None

    def start(self) -> None:
        super().start()
        self._server.bucket(self._bucket)
        if self._proxy is None:
            self._proxy = Proxy("127.0.0.1", self._server.port)

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        super().close()

    @contextlib.contextmanager
    def link(self) -> Iterator[Proxy]:
        assert self._proxy is not None
        try:
            yield self._proxy
        finally:
            self._proxy.forget()

    @property
    def server(self) -> EmbeddedServer:
        return self._server

    @property
    def port(self) -> int:
        return self._server.port

    def able(self) -> Abilities:
        """It reserves room for its volumes: a disk without a byte left is full for others first."""
        able = super().able()
        return Abilities({*able.faults} - {"fill the disk"}, able.operations)

    def make(self) -> str:
        return f"life-{uuid.uuid4().hex[:8]}"

    def _keys(self, port: int) -> dict[str, str]:
        storage = self._server.storage_by(f"http://127.0.0.1:{port}")
        assert storage.access_key_id is not None
        assert storage.secret_access_key is not None
        return {
            "endpoint": f"http://127.0.0.1:{port}",
            "access_key_id": storage.access_key_id.get_secret_value(),
            "secret_access_key": storage.secret_access_key.get_secret_value(),
        }

    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        assert self._proxy is not None
        keys = self._keys(self._proxy.port)
        path = f"s3://{self._bucket}/{table}/events"
        return {"type": "delta", "path": path, "storage": keys, **self._upsert()}

    def trigger(self, table: str) -> bytes:
        return f"PUT /{self._bucket}/{table}/events/_delta_log/".encode()

    def rows(self, table: str) -> Sequence[Row]:
        keys = self._keys(self.port)
        options = {
            "AWS_ENDPOINT_URL": keys["endpoint"],
            "AWS_ACCESS_KEY_ID": keys["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": keys["secret_access_key"],
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        from deltalake import DeltaTable

        root = f"s3://{self._bucket}/{table}/events"
        if not DeltaTable.is_deltatable(root, options):
            return []
        frame = pl.scan_delta(root, storage_options=options).select(_COLUMNS).collect()
        return [row(values) for values in frame.iter_rows()]


class Iceberg(Target):
    store = "Iceberg"
    has_files = True

    def make(self) -> str:
        return f"life-{uuid.uuid4().hex[:8]}"

    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        warehouse = str(self.folder / "lake" / table)
        place = {"namespace": "ops"} if self.mode == "tables" else {"table": "ops.events"}
        return {"type": "iceberg", "warehouse": warehouse, **place}

    def rows(self, table: str) -> Sequence[Row]:
        """Of all tables, by the pointers that one statement reads from the catalog's database."""
        folder = self.folder / "lake" / table
        if not (folder / "catalog.db").exists():
            return []
        found: list[Row] = []
        with contextlib.closing(sqlite3.connect(folder / "catalog.db", timeout=30)) as catalog:
            try:
                pointers = catalog.execute(_POINTERS).fetchall()
            except sqlite3.OperationalError as error:  # no catalog yet
                if "no such table" not in str(error):
                    raise
                return []
        for (place,) in pointers:
            scan = StaticTable.from_metadata(place).scan(selected_fields=_COLUMNS)
            found += [row(each.values()) for each in scan.to_arrow().select(_COLUMNS).to_pylist()]
        return found


class Parquet(Target):
    store = "Parquet"

    def make(self) -> str:
        return f"life-{uuid.uuid4().hex[:8]}"

    def _root(self, table: str) -> Path:
        return self.folder / "lake" / table / "events"

    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        return {"type": "parquet", "path": str(self._root(table))}

    def rows(self, table: str) -> Sequence[Row]:
        pattern = self._root(table) / "checkpoint=*" / "*.parquet"
        if not any(self._root(table).glob("checkpoint=*/*.parquet")):
            return []
        with duckdb.connect() as reader:
            columns = _SELECTED.format(quote='"')
            found = reader.execute(
                f"select {columns} from read_parquet('{pattern}', union_by_name = true)"
            )
            return [row(values) for values in found.fetchall()]


class Redis(Target):
    store = "Redis"
    goes_back = False
    #: what nothing comes between
    _look: ClassVar[str] = """
        local rows = {}
        for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
          rows[#rows + 1] = redis.call('GET', key)
        end
        return rows
    """

    def __init__(self, folder: Path, mode: str = "upsert") -> None:
        super().__init__(folder, mode)
        self._server = EmbeddedRedis(folder / "server")
        self._lives = 0

    @property
    def server(self) -> EmbeddedServer:
        return self._server

    @property
    def port(self) -> int:
        return self._server.port

    def make(self) -> str:
        self._lives += 1
        return str(self._lives)

    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        """In tables a key for each record, so that each is counted."""
        url = f"redis://127.0.0.1:{port or self.port}/{table}"
        key = ["_eo_partition", "_eo_offset"] if self.mode == "tables" else ["key"]
        return {"type": "redis", "url": url, "key": key, "as": "json", "timeout": 10}

    def trigger(self, table: str) -> bytes:
        return b"EVALSHA"

    def rows(self, table: str) -> Sequence[Row]:
        prefix = "events_" if self.mode == "tables" else "rows:"
        with self._server.connect(int(table)) as client:
            values: Any = client.eval(self._look, 0, f"{{life}}:{prefix}*")
        found = [json.loads(value) for value in values]
        return [row(each[name] for name in _COLUMNS) for each in found]

    def drop(self, table: str) -> None:
        with self._server.connect(int(table)) as client:
            client.flushdb()


class Kafka(Target):
    """``mode`` may say the semantics: ``at_least_once`` is a control that has to be caught. In the
    mode ``tables`` the topics of all tables that may appear are there.
    """

    store = "Kafka"
    goes_back = False
    #: partitions end one after the other: docs/sinks/kafka.md
    whole = False

    def __init__(self, folder: Path, broker: EmbeddedKafka, mode: str = "append") -> None:
        super().__init__(folder, mode)
        self._broker = broker

    @property
    def _address(self) -> str:
        return self._broker.bootstrap_servers

    @property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._address, "log_level": 0})

    def make(self) -> str:
        name = f"out-{uuid.uuid4().hex[:8]}"
        topics = [NewTopic(topic, PARTITIONS_MAX, 1) for topic in self._topics(name)]
        admin = self._admin  # it ends with its last name, and what it was asked with it
        for made in admin.create_topics(topics).values():
            made.result()
        return name

    def names(self, table: str) -> str:
        return f"{table}-{{value}}"

    def _topics(self, table: str) -> list[str]:
        if self.mode != "tables":
            return [table]
        return [self.names(table).format(value=value) for value in _VALUES]

    def sink(self, table: str, port: int | None = None) -> dict[str, Any]:
        place = {"topic": table}
        if self.mode == "tables":
            place = {"ledger_topic": f"{table}._eo_ledger"}
        elif self.mode != "append":
            place["semantics"] = self.mode
        return {
            "type": "kafka",
            "bootstrap_servers": self._address,
            "partitioning": "source",
            "transaction_timeout": 10,
            "request_timeout": 10,
            **place,
        }

    def rows(self, table: str) -> Sequence[Row]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "the-judge",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.queue.backoff.ms": 5,
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        try:
            return [row(values) for values in _to_the_end(consumer, self._topics(table))]
        finally:
            consumer.close()

    def drop(self, table: str) -> None:
        admin = self._admin
        for deleted in admin.delete_topics(self._topics(table)).values():
            deleted.result()


def _to_the_end(consumer: Consumer, topics: Sequence[str]) -> Iterable[Iterable[Any]]:
    """Of what a reader of committed records is shown: each partition up to its last stable offset,
    which the consumer calls its end.
    """
    left = {(topic, number) for topic in topics for number in range(PARTITIONS_MAX)}
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in left])
    until = time.monotonic() + _READ_S
    while left:
        message = consumer.poll(1.0)
        if time.monotonic() > until:
            raise TimeoutError(f"no end of {topics} within {_READ_S} s")
        if message is None:
            continue
        error = message.error()
        if error is None:
            value = json.loads(message.value() or b"{}")
            yield [value[name] for name in _COLUMNS]
        elif error.name() == "_PARTITION_EOF":
            left.discard((str(message.topic()), int(message.partition() or 0)))
        elif error.fatal():
            raise TimeoutError(f"{topics} cannot be read: {error}")

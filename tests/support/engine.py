"""Fixtures and verbs for tests of whole pipelines, on real servers.

Spark is one warm Connect server for the whole run; the test processes and every process they
kill are its clients, so that a crash test costs a second and not a JVM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message, Producer

from eo_pipeline.batch.fast_path import FastPath
from eo_pipeline.batch.native_decode import NativeDecoder
from eo_pipeline.embedded.jars import spark_azure_jars, spark_gcs_jars, spark_s3_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark.connector import spark_connector_jars
from tests.support.servers import STATE, MakeTopic, found_below, shared_server

TABLE = "events"
SCHEMA = "id BIGINT NOT NULL, name STRING"

#: (topic, partition, offset)
Coordinates = tuple[str, int, int]


#: Of the ways to buckets, which `make servers` fetches.
_BUCKET_JARS = {
    "hadoop-aws-*": spark_s3_jars,
    "hadoop-azure-*": spark_azure_jars,
    "gcs-connector-*": spark_gcs_jars,
}


def spark_jars() -> tuple[Path, ...]:
    """Return the jars for every source, and for every kind of bucket whose jars were fetched."""
    jars = [*spark_connector_jars(STATE)]
    for pattern, fetched in _BUCKET_JARS.items():
        if any((STATE / "jars").glob(f"{pattern}/")):
            jars += fetched(STATE)
    return tuple(jars)


@pytest.fixture(scope="session")
def spark_server(pytestconfig: pytest.Config) -> Iterator[EmbeddedSpark]:
    """The run's Spark; every pipeline of this process and its children uses it."""
    server: EmbeddedSpark = shared_server(pytestconfig, "spark")
    os.environ["SPARK_REMOTE"] = server.remote
    yield server
    del os.environ["SPARK_REMOTE"]


@dataclass
class Topic:
    """A topic under test, and every record that was written to it and counts."""

    name: str
    bootstrap_servers: str
    written: set[Coordinates] = field(default_factory=set)
    next_id: int = 0

    def source(self, **settings: Any) -> dict[str, Any]:
        """A pipeline's ``source`` that reads it."""
        known = {"bootstrap_servers": self.bootstrap_servers, "topics": [self.name]}
        return {**known, "value_schema": SCHEMA, **settings}

    def write(self, count: int, partitions: Sequence[int] = (0,)) -> None:
        """``count`` numbered JSON records, dealt out to ``partitions`` in turn."""
        producer = self.producer()
        for _ in range(count):
            value = {"id": self.next_id, "name": f"record {self.next_id}"}
            partition = partitions[self.next_id % len(partitions)]
            self.send(producer, json.dumps(value).encode(), partition)
            self.next_id += 1
        assert producer.flush(120) == 0

    def write_value(self, value: bytes | None, partition: int = 0, key: bytes = b"k") -> None:
        """One record with any value; it is not counted as one that must reach the table."""
        producer = self.producer()
        producer.produce(self.name, value=value, key=key, partition=partition)
        assert producer.flush(120) == 0

    def send(self, producer: Producer, value: bytes, partition: int) -> None:
        producer.produce(self.name, value=value, partition=partition, on_delivery=self._delivered)
        producer.poll(0)

    def producer(self, **settings: Any) -> Producer:
        no_limit = {"queue.buffering.max.messages": 0}  # the broker may be slower than a test
        return Producer({"bootstrap.servers": self.bootstrap_servers, **no_limit, **settings})

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None, error
        self.written.add((self.name, _int(message.partition()), _int(message.offset())))


def _int(value: int | None) -> int:
    assert value is not None
    return value


@pytest.fixture
def events(kafka: EmbeddedKafka, make_topic: MakeTopic) -> Topic:
    """A fresh topic of four partitions."""
    return Topic(make_topic(partitions=4), kafka.bootstrap_servers)


@dataclass(frozen=True)
class Table:
    """The outside observer: its own connection, its own queries, no engine code."""

    dsn: str
    name: str = TABLE

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(sql).fetchall()

    def execute(self, sql: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql)

    def exists(self) -> bool:
        return bool(self.query(f"select to_regclass('{self.name}') is not null")[0][0])

    def coordinates(self) -> Counter[Coordinates]:
        """How often each record is in the table."""
        if not self.exists():
            return Counter()
        columns = "_eo_topic, _eo_partition, _eo_offset"
        return Counter((t, p, o) for t, p, o in self.query(f"select {columns} from {self.name}"))

    def versions(self) -> list[int]:
        return [v for (v,) in self.query("select version from eo_ledger order by version")]

    def assert_holds_once(self, written: Iterable[Coordinates]) -> None:
        """Exactly ``written``, each once, every row under a ledger entry that counted it."""
        found = self.coordinates()
        twice = {c: n for c, n in found.items() if n > 1}
        assert not twice, f"{len(twice)} records more than once, e.g. {next(iter(twice.items()))}"
        expected = set(written)
        assert found.keys() == expected, (
            f"{len(expected - found.keys())} missing, {len(found.keys() - expected)} foreign"
        )
        self.assert_consistent()

    def assert_consistent(self) -> None:
        """What must hold at every moment, also between crashes: see :data:`SNAPSHOT`."""
        with psycopg.connect(self.dsn) as connection:
            assert half_visible(connection, self.name) == []


#: In one snapshot: the ledger of the table's pipeline, and the rows each checkpoint has.
SNAPSHOT = """
select (select json_agg(json_build_array(version, operation, target, counts->'rows')
                        order by version)
        from eo_ledger where target_table ~ %s),
       (select json_object_agg(coalesce(v, -1), n)
        from (select _eo_checkpoint as v, count(*) as n from {table} group by 1) counted)
"""


def half_visible(connection: psycopg.Connection[Any], table: str) -> list[tuple[Any, ...]]:
    """(checkpoint, rows the ledger promises, rows there are) where the two differ; empty if a
    reader sees every checkpoint whole, or if nothing exists yet.
    """
    regclasses = connection.execute("select to_regclass('eo_ledger'), to_regclass(%s)", [table])
    ledger, rows = regclasses.fetchone() or (None, None)
    if ledger is None or rows is None:
        return []
    found = connection.execute(SNAPSHOT.format(table=table), [rf"\m{table}\M"]).fetchone()
    entries, counted = found or (None, None)
    promised = promised_rows(entries or [])
    there = {int(checkpoint): count for checkpoint, count in (counted or {}).items()}
    return [
        (checkpoint, promised.get(checkpoint), there.get(checkpoint))
        for checkpoint in sorted(promised.keys() | there.keys())
        if promised.get(checkpoint, 0) != there.get(checkpoint, 0)
    ]


def promised_rows(entries: Iterable[tuple[int, str, int | None, int]]) -> dict[int, int]:
    """Rows per checkpoint by a ledger of (version, operation, target, rows), told anew here."""
    rows: dict[int, int] = {}
    for version, operation, target, count in entries:
        if operation == "rewind":
            rows = {each: rows[each] for each in rows if each <= (target or 0)}
        elif operation in ("forward", "replay"):
            rows[version if target is None else target] = count
    return rows


class Watcher:
    """A reader that polls throughout: every snapshot whole, totals never going down, unless the
    test goes back (``may_fall``).
    """

    def __init__(self, table: Table, *, may_fall: bool = False) -> None:
        self._table = table
        self._may_fall = may_fall
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.snapshots = 0
        self.complaints: list[str] = []

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert self.complaints == []
        assert self.snapshots > 0

    def _watch(self) -> None:
        last = 0
        while not self._stop.is_set():
            try:
                last = self._look(last)
            except psycopg.OperationalError:
                # the server is down: that is part of some tests, and no reader sees anything then
                self._stop.wait(0.2)

    def _look(self, last: int) -> int:
        with psycopg.connect(self._table.dsn) as connection:
            while not self._stop.wait(0.03):
                connection.execute("begin isolation level repeatable read, read only")
                if half := half_visible(connection, self._table.name):
                    self.complaints.append(f"part of a checkpoint was visible: {half}")
                total = self._total(connection)
                if total < last and not self._may_fall:
                    self.complaints.append(f"rows went from {last} down to {total}")
                last = max(last, total)
                self.snapshots += 1
                connection.rollback()
        return last

    def _total(self, connection: psycopg.Connection[Any]) -> int:
        found = connection.execute("select to_regclass(%s)", [self._table.name]).fetchone()
        if found is None or found[0] is None:
            return 0
        counted = connection.execute(f"select count(*) from {self._table.name}").fetchone()
        return int(counted[0]) if counted else 0


@dataclass(frozen=True)
class Bench:
    """One pipeline under test with everything around it."""

    topic: Topic
    table: Table
    config: dict[str, Any]

    def pipeline(self, **changes: Any) -> Pipeline:
        """The pipeline; ``source={...}`` and ``sink={...}`` change single fields."""
        return Pipeline.from_config(self._changed(changes))

    def run_in_a_process(
        self, *arguments: str, environment: Mapping[str, str] | None = None, **changes: Any
    ) -> subprocess.Popen[str]:
        """A run in a process of its own, which a test may kill. See tests/runs/driver.py."""
        config = json.dumps(self._changed(changes))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.runs.driver", config, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            cwd=Path(__file__).parents[2],
        )

    def killed_after(self, seconds: float) -> bool:
        """Whether a run in a process of its own was killed; not if it was through before."""
        run = self.run_in_a_process()
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            run.kill()
        run.communicate(timeout=240)
        return run.returncode == -signal.SIGKILL

    def _changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        config = {**self.config, **changes}
        for part in ("source", "sink"):
            config[part] = {**self.config[part], **changes.get(part, {})}
        return config


@pytest.fixture
def by_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage all batches by Spark's plan, in this process."""
    monkeypatch.setattr(FastPath, "of", lambda *_, **__: None)
    monkeypatch.setattr(NativeDecoder, "of", lambda *_, **__: None)


@pytest.fixture
def bench(spark_server: EmbeddedSpark, events: Topic, database: str, tmp_path: Path) -> Bench:
    """An append pipeline from ``topic`` to a table in a fresh database, 100 offsets a checkpoint,
    small batches through files too, one checkpoint after the other on any machine.
    """
    dsn = database
    config: dict[str, Any] = {
        "name": "events",
        "source": events.source(max_records=100),
        "sink": {"type": "postgres", "dsn": dsn, "table": TABLE},
        "staging": str(tmp_path / "staging"),
        "inline_records": 0,
        "overlap": False,
    }
    return Bench(events, Table(dsn), config)


def spark_has_begun(bench: Bench) -> bool:
    """Tasks write files of a batch, of a pipeline that stages files."""
    return bool(staged_folders(Path(bench.config["staging"])))


def staged_folders(folder: Path) -> set[Path]:
    """Folders below ``folder`` that tasks write rows to, their own or Spark's."""
    return found_below(folder, "rows") | found_below(folder, "_temporary/0/_temporary/*")


def spark_is_free(bench: Bench) -> None:
    """A small job gets a core; a large one that was left working would have them all."""
    spark, counted = bench.pipeline().spark.session(), list[int]()
    # not waited for at the end: if it gets no core it never ends
    small = threading.Thread(target=lambda: counted.append(spark.range(10).count()), daemon=True)
    small.start()
    small.join(240)
    assert counted == [10]


def staged_attempts(bench: Bench) -> list[str]:
    """Attempt folders left in staging."""
    folder = Path(bench.config["staging"]) / bench.config["name"]
    return sorted(p.name for p in folder.glob("*/*-*") if not p.parent.name.startswith("_"))


def left_over(bench: Bench) -> list[Path]:
    """Every file in staging but the witnesses of the newest commit, and notes of failures."""
    found = Path(bench.config["staging"]).rglob("*")
    return sorted(
        path for path in found if path.is_file() and not {"_witness", "_failures"} & set(path.parts)
    )


def whole_ranges(written: Iterable[Coordinates]) -> dict[TopicPartition, int]:
    """The offset after the last record of each partition."""
    ends: dict[TopicPartition, int] = {}
    for name, partition, offset in written:
        tp = TopicPartition(name, partition)
        ends[tp] = max(ends.get(tp, 0), offset + 1)
    return ends

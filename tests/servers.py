"""One real Kafka and one real PostgreSQL for the session; topics and databases for each test.

A test may kill a server: ``make_topic`` and ``make_database`` start it again for the next one.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import psutil
import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql

from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres

T = TypeVar("T")

#: Jars are downloaded once for a checkout, not once for a session.
STATE = Path(__file__).parents[1] / ".eo"

SASL_USERS = {"reader": "let-me-in"}

#: So that retention and compaction do within a second or two what they were told to do.
_IMPATIENT = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "0",
}

#: Everybody may do everything, but for what a test denies; see tests/topics.py.
_GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class MakeTopic(Protocol):
    """Creates a topic with a name of its own."""

    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...


#: Creates a database of its own; gives its DSN.
MakeDatabase = Callable[[], str]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(
        tmp_path_factory.mktemp("kafka"),
        jars=kafka_broker_jars(STATE),
        properties={**_IMPATIENT, **_GUARDED},
        sasl_users=SASL_USERS,
        java_options=["-XX:TieredStopAtLevel=1"],  # as for Spark, see tests/spark_conf
    ) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    # not below pytest's folder: it closes that to other users, and as root the server is one
    # fsync: a killed process loses nothing that it wrote; only a power cut would
    with (
        tempfile.TemporaryDirectory(prefix="eo-postgres-") as folder,
        EmbeddedPostgres(Path(folder), settings={"fsync": "off"}) as server,
    ):
        yield server


@pytest.fixture
def make_topic(kafka: EmbeddedKafka) -> Iterator[MakeTopic]:
    admin = AdminClient({"bootstrap.servers": kafka.start().bootstrap_servers, "log_level": 0})
    made: list[str] = []

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        wanted = NewTopic(name, partitions, 1, config=dict(config or {}))
        admin.create_topics([wanted])[name].result()
        made.append(name)
        return name

    yield make
    if made and kafka.alive:
        for deleted in admin.delete_topics(made).values():
            with contextlib.suppress(KafkaException):  # the test may have deleted it
                deleted.result()


@pytest.fixture
def admin(kafka: EmbeddedKafka) -> AdminClient:
    """Asks and changes the broker, which is started if a test killed it."""
    return AdminClient({"bootstrap.servers": kafka.start().bootstrap_servers, "log_level": 0})


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic with one partition."""
    return make_topic()


@pytest.fixture
def make_database(postgres: EmbeddedPostgres) -> Iterator[MakeDatabase]:
    postgres.start()
    made: list[str] = []

    def make() -> str:
        made.append(f"db_{uuid.uuid4().hex[:12]}")
        return postgres.create_database(made[-1])

    yield make
    if made and postgres.alive:
        with psycopg.connect(postgres.dsn, autocommit=True) as admin:
            for name in made:
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                admin.execute(drop.format(sql.Identifier(name)))


@pytest.fixture
def database(make_database: MakeDatabase) -> str:
    """The DSN of an empty database."""
    return make_database()


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Return as soon as ``condition`` holds; fail the test if it never does. The time is what a
    machine may be busy with other things, not what the condition is expected to take.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {timeout_s} s")
        time.sleep(0.02)


def found_below(folder: Path, pattern: str) -> set[Path]:
    """What matches ``pattern`` in or below ``folder`` while others add and remove folders there:
    ``rglob`` fails where one is removed between its listing and the look into it.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            return {*folder.rglob(pattern)}


def those_alive(
    processes: Iterable[psutil.Process], ask: Callable[[psutil.Process], T]
) -> list[tuple[psutil.Process, T]]:
    """What ``ask`` finds of each process, but of those that end meanwhile."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie, too
            found.append((process, ask(process)))
    return found


def is_gone(pid: int) -> bool:
    """Whether the process has ended; also where nobody has collected it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

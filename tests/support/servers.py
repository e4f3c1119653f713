"""One real Kafka and one real PostgreSQL for the whole run; topics and databases for each test.

All processes of a run share them (tests/shared). A module whose tests end a server takes one of its
own: ``kafka = own_kafka``; ``make_topic`` and ``make_database`` start that again for the next test.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql

from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from tests import shared

T = TypeVar("T")

STATE = shared.STATE

SASL_USERS = {"reader": "let-me-in"}

#: Retention and compaction act within a second or two. Everybody may do everything, but for what a
#: test denies; see tests/support/topics.py.
KAFKA_PROPERTIES = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class MakeTopic(Protocol):
    """Creates a topic with a name of its own."""

    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...


#: Creates a database of its own; gives its DSN.
MakeDatabase = Callable[[], str]


_KEEPER = pytest.StashKey[shared.Keeper]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KEEPER] = shared.connect()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_KEEPER].close()


def shared_server(config: pytest.Config, name: str) -> Any:
    """Return the run's server ``name``, which starts when it is first asked for."""
    return config.stash[_KEEPER].server(name)


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> EmbeddedKafka:
    server: EmbeddedKafka = shared_server(pytestconfig, "kafka")
    return server


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> EmbeddedPostgres:
    server: EmbeddedPostgres = shared_server(pytestconfig, "postgres")
    return server


def kafka_in(folder: Path) -> EmbeddedKafka:
    return EmbeddedKafka(
        folder,
        jars=kafka_broker_jars(STATE),
        properties=KAFKA_PROPERTIES,
        sasl_users=SASL_USERS,
        java_options=["-XX:TieredStopAtLevel=1"],  # as for Spark, see tests/spark_conf
    )


def postgres_in(folder: Path) -> EmbeddedPostgres:
    # fsync: a killed process loses nothing that it wrote; only a power cut would
    return EmbeddedPostgres(folder, settings={"fsync": "off"})


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that the tests of a module may end."""
    with kafka_in(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that the tests of a module may end."""
    # not below pytest's folder, which it closes to other users: as root, the server is one
    with (
        tempfile.TemporaryDirectory(prefix="eo-postgres-") as folder,
        postgres_in(Path(folder)) as server,
    ):
        yield server


def is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether the broker knows all partitions of ``topic``, each with a leader."""
    known = admin.list_topics(topic, timeout=60).topics[topic].partitions
    return len([each for each in known.values() if each.leader >= 0]) == partitions


@pytest.fixture
def make_topic(kafka: EmbeddedKafka) -> Iterator[MakeTopic]:
    admin = AdminClient({"bootstrap.servers": kafka.start().bootstrap_servers, "log_level": 0})
    made: list[str] = []

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        wanted = NewTopic(name, partitions, 1, config=dict(config or {}))
        admin.create_topics([wanted])[name].result()
        made.append(name)
        # the answer means that the controller knows it; clients ask the broker
        wait_until(lambda: is_led(admin, name, partitions))
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

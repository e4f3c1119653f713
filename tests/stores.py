"""The stores that come from the system's packages: MariaDB, Redis. One server for the session each.

``tests/install_stores.sh`` installs what is missing. A test may kill a server: the fixtures that
give a test its own place on it start it again.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.embedded.redis import EmbeddedRedis


@dataclass(frozen=True)
class MySqlDatabase:
    """An empty database on a server, and how to get there."""

    server: EmbeddedMariaDB
    name: str

    def settings(self, **more: Any) -> dict[str, Any]:
        """Fields of a ``MySqlSink`` that publishes here."""
        place = {"host": self.server.host, "port": self.server.port, "database": self.name}
        return {"type": "mysql", "user": self.server.USER, **place, **more}

    def connect(self) -> pymysql.Connection[Any]:
        return self.server.connect(self.name)


MakeMySqlDatabase = Callable[[], MySqlDatabase]


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMariaDB]:
    folder = tmp_path_factory.mktemp("mariadb")
    # a killed process loses nothing that it wrote; only a power cut would
    unsafe = {"innodb-flush-log-at-trx-commit": "2"}
    with EmbeddedMariaDB(folder, settings=unsafe) as server:
        yield server


@pytest.fixture
def make_mysql_database(mariadb: EmbeddedMariaDB) -> Iterator[MakeMySqlDatabase]:
    mariadb.start()
    made: list[str] = []

    def make() -> MySqlDatabase:
        made.append(f"db_{uuid.uuid4().hex[:12]}")
        return MySqlDatabase(mariadb, mariadb.create_database(made[-1]))

    yield make
    if made and mariadb.alive:
        with mariadb.connect() as admin, admin.cursor() as cursor:
            for name in made:
                cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.fixture
def mysql_database(make_mysql_database: MakeMySqlDatabase) -> MySqlDatabase:
    return make_mysql_database()


#: Numbers of databases on the session's Redis; none is given out twice.
_redis_databases = itertools.count()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> Iterator[str]:
    """An empty database."""
    redis_server.start()
    database = next(_redis_databases) % EmbeddedRedis.DATABASES
    yield redis_server.url(database)
    if redis_server.alive:
        with redis_server.connect(database) as admin:
            admin.flushdb()

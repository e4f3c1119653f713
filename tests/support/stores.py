"""The stores that come from packages: MariaDB, MySQL, Redis. One server for the session each.

``tests/install_stores.sh`` and ``tests/install_mysql.sh`` install what is missing. A test may kill
a server: the fixtures that give a test its own place on it start it again.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

import pymysql
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.embedded.object_store import EmbeddedObjectStore
from eo_pipeline.embedded.redis import EmbeddedRedis
from tests.support.chaos import rest_is_chaos
from tests.support.mysql_server import EmbeddedMySql
from tests.support.store_folder import StoreFolder, fields_of


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


#: A killed process loses nothing that it wrote; only a power cut would.
_UNSAFE = {"innodb-flush-log-at-trx-commit": "2"}

#: Runs a test, or every test of a class, on each of the servers that speak MySQL's protocol.
#: Without it ``mysql_database`` is on MariaDB.
ON_BOTH_SERVERS = pytest.mark.parametrize("mysql_database", ["mariadb", "mysql"], indirect=True)


def on_both_servers_by_chaos(but: str) -> pytest.MarkDecorator:
    """The same, on the server ``but`` alone without `make chaos`."""
    servers = rest_is_chaos(["mariadb", "mysql"], but=[but])
    return pytest.mark.parametrize("mysql_database", servers, indirect=True)


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMariaDB]:
    with EmbeddedMariaDB(tmp_path_factory.mktemp("mariadb"), settings=_UNSAFE) as server:
        yield server


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMySql]:
    settings = {**_UNSAFE, "skip-log-bin": "1", "innodb-redo-log-capacity": "64M"}
    with EmbeddedMySql(tmp_path_factory.mktemp("mysql"), settings=settings) as server:
        yield server


@contextmanager
def database_on(server: EmbeddedMariaDB) -> Iterator[MySqlDatabase]:
    """A database of its own, dropped at the end."""
    server.start()
    name = server.create_database(f"db_{uuid.uuid4().hex[:12]}")
    yield MySqlDatabase(server, name)
    if server.alive:
        with server.connect() as admin, admin.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.fixture
def mysql_database(request: pytest.FixtureRequest) -> Iterator[MySqlDatabase]:
    with database_on(request.getfixturevalue(getattr(request, "param", "mariadb"))) as made:
        yield made


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


@dataclass(frozen=True, kw_only=True)
class Bucket(StoreFolder):
    """A place of a test's own in an object store, and how to get there."""

    EXTRA: ClassVar[str] = "s3"

    server: EmbeddedObjectStore

    @property
    def address(self) -> tuple[str, int]:
        return self.server.host, self.server.port

    def _fields(self) -> dict[str, Any]:
        return fields_of(self.server.storage)

    def files(self) -> set[str]:
        """By a client of Arrow's."""
        fields = self._fields()
        client = S3FileSystem(
            endpoint_override=fields["endpoint"],
            access_key=fields["access_key_id"],
            secret_key=fields["secret_access_key"],
        )
        root = self.uri.removeprefix("s3://")
        found = client.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
        return {each.path.removeprefix(f"{root}/") for each in found if each.is_file}

    def uploads_left(self) -> list[str]:
        """Uploads of parts that nobody finished or gave up, as the store itself keeps them."""
        name = self.uri.removeprefix("s3://").partition("/")[0]
        asked = urllib.request.Request(
            f"{self.server.filer}/buckets/{name}/.uploads/?limit=100",
            headers={"Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as said:
                return [each["FullPath"] for each in json.load(said)["Entries"] or ()]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:  # there never was one
                return []
            raise


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedObjectStore]:
    with EmbeddedObjectStore(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture(scope="session")
def bucket_of_session() -> str:
    """Whoever reaches a bucket by its name, as Spark does, holds on to where it was."""
    return f"b-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def bucket(objects: EmbeddedObjectStore, bucket_of_session: str) -> Bucket:
    """A prefix of the test's own: the server makes files of 256 MB for each bucket."""
    uri = objects.start().bucket(bucket_of_session)
    return Bucket(server=objects, uri=f"{uri}/{uuid.uuid4().hex[:12]}")

"""A MySQL or MariaDB database with a pipeline in it, and somebody else who looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pymysql
import pytest
from pymysql.cursors import DictCursor

from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.sinks.mysql import MySqlSink
from tests.sinks.sql.sql_world import SqlWorld, staged
from tests.support.mysql_server import EmbeddedMySql
from tests.support.stores import MySqlDatabase, database_on

__all__ = ["BOTH_WAYS", "World", "opened", "staged", "world"]


@dataclass
class World(SqlWorld):
    database: MySqlDatabase
    observer: pymysql.Connection[Any]

    SHORTEST_TIMEOUT: ClassVar[float] = 1.0
    LOCK_CODE: ClassVar[str] = "1205"
    COMMIT: ClassVar[bytes] = b"COMMIT"

    @property
    def is_mariadb(self) -> bool:
        return not isinstance(self.server, EmbeddedMySql)

    @property
    def checks_parents(self) -> bool:
        """MySQL 9 takes any parent where a foreign key to the same table shares a column."""
        return self.is_mariadb

    @property
    def server(self) -> EmbeddedMariaDB:
        return self.database.server

    @property
    def schema(self) -> str:
        return self.database.name

    @property
    def address(self) -> tuple[str, int]:
        return self.database.server.host, self.database.server.port

    def sink(self, **settings: Any) -> MySqlSink:
        return MySqlSink.model_validate(self.database.settings(**{"table": "t", **settings}))

    def sink_by(self, port: int) -> MySqlSink:
        """In plain words, which a proxy can read."""
        return self.sink(port=port, ssl_mode="disabled")

    def sink_of(self, user: str, /, **login: Any) -> MySqlSink:
        return self.sink(**{"user": user, "password": "s3cret ü"} | login)

    def run(self, statement: str) -> None:
        with self.observer.cursor() as cursor:
            cursor.execute(statement)

    def rows(self, query: str = "SELECT * FROM t") -> list[dict[str, Any]]:
        with self.observer.cursor(DictCursor) as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def tables(self) -> set[str]:
        return {str(next(iter(row.values()))) for row in self.rows("SHOW TABLES")}

    def count(self) -> int:
        with self.database.connect() as reader, reader.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM t")
            row = cursor.fetchone()
        assert row is not None
        return int(row[0])

    @contextmanager
    def in_transaction(self, statement: str) -> Iterator[None]:
        with self.database.connect() as other, other.cursor() as cursor:
            other.begin()
            cursor.execute(statement)
            yield
            other.rollback()

    def make_user(self) -> str:
        self.run("CREATE USER reader IDENTIFIED BY 's3cret ü'")
        # the right to connect is a right to something in the database
        self.run(f"GRANT SELECT ON {self.schema}.* TO reader")
        return "reader"

    def drop_user(self, user: str) -> None:
        self.run(f"DROP USER {user}")

    def grant(self, user: str, what: str, *tables: str) -> None:
        for table in tables:
            self.run(f"GRANT {what} ON {self.schema}.{table} TO {user}")

    def refuse_inserts(self, code: str) -> None:
        self.run(
            "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW SIGNAL SQLSTATE '45000'"
            f" SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'as asked'"
        )

    def end_other_connections(self) -> None:
        # one that was just answered may not yet be said to sleep
        of_others = "DB = DATABASE() AND ID <> CONNECTION_ID()"
        asked = f"SELECT ID AS id FROM information_schema.PROCESSLIST WHERE {of_others}"
        for row in self.rows(asked):
            self.run(f"KILL {row['id']}")

    def is_untouched(self) -> bool:
        """MySQL makes tables outside the transaction."""
        return super().is_untouched() or self.rows() == []


@contextmanager
def opened(request: pytest.FixtureRequest, server: str) -> Iterator[World]:
    """An empty database on one of the session's servers, ``mariadb`` or ``mysql``."""
    with (
        database_on(request.getfixturevalue(server)) as database,
        database.connect() as observer,
    ):
        yield World(database, observer)


@pytest.fixture(params=["mariadb", "mysql"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with opened(request, request.param) as made:
        yield made


#: The ways rows travel.
BOTH_WAYS = pytest.mark.parametrize("load_data", [True, False], ids=["load data", "insert"])

"""A PostgreSQL database with a pipeline in it, and somebody else who looks at it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.sinks.postgres import PostgresSink
from tests.sinks.sql.sql_world import SqlWorld, staged

__all__ = ["World", "opened", "staged", "world"]


@dataclass
class World(SqlWorld):
    dsn: str
    observer: psycopg.Connection[dict[str, Any]]
    embedded: EmbeddedPostgres

    SHORTEST_TIMEOUT: ClassVar[float] = 0.3
    LOCK_CODE: ClassVar[str] = "55P03"
    COMMIT: ClassVar[bytes] = b"COMMIT\0"

    @property
    def server(self) -> EmbeddedPostgres:
        return self.embedded

    @property
    def schema(self) -> str:
        return "public"

    @property
    def address(self) -> tuple[str, int]:
        parts = conninfo_to_dict(self.dsn)
        return str(parts["host"]), int(str(parts["port"]))

    def sink(self, **settings: Any) -> PostgresSink:
        return PostgresSink.model_validate({"dsn": self.dsn, "table": "t", **settings})

    def sink_by(self, port: int) -> PostgresSink:
        return self.sink(dsn=make_conninfo(self.dsn, host="127.0.0.1", port=port))

    def sink_of(self, user: str, /, **login: str) -> PostgresSink:
        return self.sink(
            dsn=make_conninfo(self.dsn, **{"user": user, "password": "s3cret"} | login)
        )

    def run(self, statement: str) -> None:
        self.observer.execute(statement.encode())

    def rows(self, query: str = "SELECT * FROM t") -> list[dict[str, Any]]:
        return self.observer.execute(query.encode()).fetchall()

    def tables(self) -> set[str]:
        found = self.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {str(row["tablename"]) for row in found}

    def count(self) -> int:
        with psycopg.connect(self.dsn) as reader:
            row = reader.execute("SELECT count(*) FROM t").fetchone()
        assert row is not None
        return int(row[0])

    @contextmanager
    def in_transaction(self, statement: str) -> Iterator[None]:
        with psycopg.connect(self.dsn) as other:
            other.execute(statement.encode())
            yield
            other.rollback()

    def make_user(self) -> str:
        name = f"role_{uuid.uuid4().hex[:8]}"
        self.run(f"CREATE ROLE {name} LOGIN")
        return name

    def drop_user(self, user: str) -> None:
        self.run(f"DROP OWNED BY {user}")
        self.run(f"DROP ROLE {user}")

    def grant(self, user: str, what: str, *tables: str) -> None:
        self.run(f"GRANT {what} ON {', '.join(tables)} TO {user}")

    def refuse_inserts(self, code: str) -> None:
        self.run(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE 'as asked' USING ERRCODE = '{code}'; END $$"
        )
        self.run("CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()")

    def end_other_connections(self) -> None:
        self.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@contextmanager
def opened(request: pytest.FixtureRequest) -> Iterator[World]:
    """An empty database on the session's server."""
    dsn: str = request.getfixturevalue("database")
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as observer:
        yield World(dsn, observer, request.getfixturevalue("postgres"))


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with opened(request) as made:
        yield made

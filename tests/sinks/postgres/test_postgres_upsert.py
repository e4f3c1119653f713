"""What PostgreSQL's upserts have of their own; see test_sql_upsert.py for the rest."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from eo_pipeline.sinks.postgres.connection import PostgresStore
from tests.sinks.postgres.postgres_world import World, staged, world

__all__ = ["world"]

_WAITERS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def test_a_unique_index_in_another_order_will_do(world: World) -> None:
    world.run("CREATE TABLE t (a bigint, b bigint, at bigint)")
    world.run("CREATE UNIQUE INDEX ON t (b, a) INCLUDE (at)")
    sink = world.sink(mode="upsert", key=["a", "b"], sequence_by=["at"])
    world.publish(sink, staged(a=[1], b=[2], at=[1]), staged(a=[1], b=[2], at=[2]))
    assert world.rows("SELECT * FROM t ORDER BY a") == [{"a": 1, "b": 2, "at": 2}]


@pytest.mark.core
def test_a_key_that_somebody_inserts_meanwhile_is_replaced(world: World) -> None:
    world.run("CREATE TABLE t (a bigint PRIMARY KEY, b bigint, at bigint)")
    sink = world.sink(mode="upsert", key=["a"], sequence_by=["at"])
    with psycopg.connect(world.dsn) as stranger, ThreadPoolExecutor() as pool:
        stranger.execute("INSERT INTO t VALUES (1, 7, 0), (2, 7, 9)")
        published = pool.submit(world.publish, sink, staged(a=[1, 2, 3], b=[2, 3, 4], at=[1, 1, 1]))
        with psycopg.connect(world.dsn, autocommit=True) as other:
            while other.execute(_WAITERS).fetchone() == (0,):
                assert not published.done()
                time.sleep(0.01)
        stranger.commit()
        published.result(60)
    assert world.rows("SELECT * FROM t ORDER BY a") == [
        {"a": 1, "b": 2, "at": 1},
        {"a": 2, "b": 7, "at": 9},
        {"a": 3, "b": 4, "at": 1},
    ]


def test_keys_are_equal_as_the_tables_index_has_it(world: World) -> None:
    world.run('CREATE TABLE t (a text COLLATE "C" PRIMARY KEY, at bigint)')
    sink = world.sink(mode="upsert", key=["a"], sequence_by=["at"])
    world.publish(sink, staged(a=["One", "two"], at=[1, 1]), staged(a=["One", "one"], at=[2, 2]))
    assert world.rows("SELECT * FROM t ORDER BY a") == [
        {"a": "One", "at": 2},
        {"a": "one", "at": 2},
        {"a": "two", "at": 1},
    ]


def test_a_server_without_merge_inserts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []
    execute = PostgresStore.execute

    def recorded(self: PostgresStore, statement: str, *parameters: Any) -> Any:
        statements.append(statement.partition(" ")[0])
        return execute(self, statement, *parameters)

    monkeypatch.setattr(PostgresStore, "execute", recorded)
    world.run("CREATE TABLE t (a bigint PRIMARY KEY, at bigint)")
    sink = world.sink(mode="upsert", key=["a"], sequence_by=["at"])
    world.publish(sink, staged(a=[1], at=[2]))
    assert "MERGE" in statements
    statements.clear()
    monkeypatch.setattr("eo_pipeline.sinks.postgres.connection._MERGE_SINCE", 10**9)
    world.publish(sink, staged(a=[1], at=[1]), staged(a=[2], at=[3]))
    assert "MERGE" not in statements
    assert world.rows("SELECT * FROM t ORDER BY a") == [{"a": 1, "at": 2}, {"a": 2, "at": 3}]

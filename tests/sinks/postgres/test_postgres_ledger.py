"""PostgreSQL's roles and schemas; see test_sql_ledger.py for what every database has."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo

from eo_pipeline.errors import ConfigError, SinkUnavailableError
from tests.sinks.postgres.postgres_world import World, staged, world

__all__ = ["world"]


def test_a_role_without_a_connection_left_is_unavailable(world: World) -> None:
    role = world.make_user()
    world.run(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    with pytest.raises(SinkUnavailableError, match="no connection left"):
        world.sink_of(role).open("p")
    world.drop_user(role)


def test_a_schema_that_is_not_there_is_named(world: World) -> None:
    with pytest.raises(ConfigError, match=r"no schema 'air': CREATE SCHEMA"):
        world.sink(table="air.t").open("p")


def test_a_search_path_decides_where_a_bare_name_is(world: World) -> None:
    world.run("CREATE SCHEMA air")
    world.run("CREATE TABLE air.t (id bigint)")
    dsn = make_conninfo(world.dsn, options="-c search_path=public,air")
    world.publish(world.sink(dsn=dsn), staged(id=[1]))
    assert world.rows("SELECT count(*) FROM air.t JOIN air.eo_ledger ON version = 1") == [
        {"count": 1}
    ]

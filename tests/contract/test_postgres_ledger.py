"""Who may use the ledger, how it comes to be, and what it refuses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from eo_pipeline.errors import (
    ConfigError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import first_entry
from tests.contract.postgres_world import World, staged, world

__all__ = ["world"]


class TestRoles:
    @pytest.fixture
    def role(self, world: World) -> Iterator[str]:
        name = f"role_{uuid.uuid4().hex[:8]}"
        world.run(f"CREATE ROLE {name} LOGIN")
        yield name
        world.run(f"DROP OWNED BY {name}")
        world.run(f"DROP ROLE {name}")

    def sink_of(self, world: World, role: str, **settings: Any) -> PostgresSink:
        return world.sink(dsn=make_conninfo(world.dsn, user=role), **settings)

    def test_a_role_that_may_not_create_needs_a_ledger_made_for_it(
        self, world: World, role: str
    ) -> None:
        with pytest.raises(ConfigError, match=r"permission denied.*Grant"):
            self.sink_of(world, role).open("p")

    def test_a_role_may_use_tables_that_others_made(self, world: World, role: str) -> None:
        world.publish(world.sink(), staged(id=[1]))
        world.run(f"GRANT SELECT, INSERT ON eo_ledger, t TO {role}")
        world.publish(self.sink_of(world, role), staged(id=[2]))
        assert len(world.rows()) == 2

    def test_a_role_that_may_not_insert_is_refused(self, world: World, role: str) -> None:
        world.publish(world.sink(), staged(id=[1]))
        world.run(f"GRANT SELECT, INSERT ON eo_ledger TO {role}")
        with pytest.raises(RefusedError, match=r"permission denied for table t.*Grant"):
            world.publish(self.sink_of(world, role), staged(id=[2]))

    def test_a_role_that_may_not_alter_is_refused_a_new_column(
        self, world: World, role: str
    ) -> None:
        world.publish(world.sink(), staged(id=[1]))
        world.run(f"GRANT SELECT, INSERT ON eo_ledger, t TO {role}")
        with pytest.raises(RefusedError, match="must be owner of table t"):
            world.publish(self.sink_of(world, role), staged(id=[2], more=[1]))

    def test_a_role_without_a_connection_left_is_unavailable(self, world: World, role: str) -> None:
        world.run(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        with pytest.raises(SinkUnavailableError, match="no connection left"):
            self.sink_of(world, role).open("p")

    @pytest.mark.parametrize("wrong", [{"user": "nobody_here"}, {"dbname": "no_such_db"}])
    def test_a_login_that_is_refused_is_a_matter_of_configuration(
        self, world: World, wrong: dict[str, str]
    ) -> None:
        dsn = make_conninfo(world.dsn, password="s3cret", **wrong)
        with pytest.raises(ConfigError, match=r"sink\.dsn") as error:
            world.sink(dsn=dsn).open("p")
        assert "s3cret" not in f"{error.value} {error.value.__cause__}"

    def test_a_server_that_is_not_there_is_unavailable(self, world: World) -> None:
        dsn = make_conninfo(world.dsn, port=1, password="s3cret")
        with pytest.raises(SinkUnavailableError) as error:
            world.sink(dsn=dsn).open("p")
        assert "s3cret" not in f"{error.value} {error.value.__cause__}"


class TestLedger:
    def test_any_number_of_runs_may_create_it_at_once(self, world: World) -> None:
        def open_and_close(_: int) -> None:
            world.sink().open("p").close()

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(open_and_close, range(16))) == [None] * 16

    def test_opening_leaves_an_empty_ledger_and_nothing_else(self, world: World) -> None:
        world.sink().open("p").close()
        tables = world.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert tables == [{"tablename": "eo_ledger"}]
        assert world.rows("SELECT * FROM eo_ledger") == []

    def test_two_pipelines_cannot_have_one_table(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]), pipeline="flights")
        with pytest.raises(ConfigError, match=r"public\.t belongs to pipeline 'flights'.*'delays'"):
            world.sink().open("delays")

    def test_of_two_pipelines_that_start_on_one_table_one_is_refused(self, world: World) -> None:
        with world.sink().open("flights") as one, world.sink().open("delays") as two:
            one.publish(first_entry("flights"), StagedOutput())
            with pytest.raises(ConfigError, match=r"belongs to pipeline 'flights'.*'delays'"):
                two.publish(first_entry("delays"), StagedOutput())

    def test_pipelines_with_tables_of_their_own_share_a_ledger(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]), pipeline="flights")
        world.publish(world.sink(table="public.d"), staged(id=[1]), pipeline="delays")
        with world.sink().open("flights") as session:
            assert [entry.version for entry in session.history()] == [0, 1]

    def test_a_pipeline_cannot_move_to_another_table_by_itself(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]))
        with pytest.raises(ConfigError, match=r"publishes into public\.t.*not into public\.other"):
            world.sink(table="other").open("p")

    def test_a_schema_that_is_not_there_is_named(self, world: World) -> None:
        with pytest.raises(ConfigError, match=r"no schema 'air': CREATE SCHEMA"):
            world.sink(table="air.t").open("p")

    def test_a_search_path_decides_where_a_bare_name_is(self, world: World) -> None:
        world.run("CREATE SCHEMA air")
        world.run("CREATE TABLE air.t (id bigint)")
        dsn = make_conninfo(world.dsn, options="-c search_path=public,air")
        world.publish(world.sink(dsn=dsn), staged(id=[1]))
        assert world.rows("SELECT count(*) FROM air.t JOIN air.eo_ledger ON version = 1") == [
            {"count": 1}
        ]

    @pytest.mark.parametrize(
        ("version", "parent", "parent_id", "constraint"),
        [
            (0, "NULL", "NULL", "eo_ledger_pkey"),
            (1, "0", "'another'", "eo_ledger_parent"),
            (2, "1", "'0'", "eo_ledger_parent"),
            (2, "0", "'0'", "eo_ledger_step"),
            (1, "NULL", "NULL", "eo_ledger_step"),
            (1, "0", "NULL", "eo_ledger_step"),
            (1, "NULL", "'0'", "eo_ledger_step"),
            (0, "-1", "'0'", "eo_ledger_step"),
            (-1, "NULL", "NULL", "eo_ledger_step"),
        ],
    )
    def test_the_database_itself_takes_only_the_next_version(
        self, world: World, version: int, parent: str, parent_id: str, constraint: str
    ) -> None:
        world.sink().open("p").close()
        insert = (
            "INSERT INTO eo_ledger (pipeline, ledger_id, version, transaction_id, parent_version,"
            " parent_transaction_id, operation, target_table, offsets, ranges, topic_ids, counts,"
            " run_id, started_at, details) VALUES ('p', 'l', {}, '{}', {}, {}, 'start', '{}',"
            " '{{}}', '{{}}', '{{}}', '{{}}', '', now(), '{{}}')"
        )
        world.run(insert.format(0, "0", "NULL", "NULL", "t"))
        with pytest.raises(psycopg.IntegrityError) as error:
            world.run(insert.format(version, "rival", parent, parent_id, "another table"))
        assert error.value.diag.constraint_name == constraint

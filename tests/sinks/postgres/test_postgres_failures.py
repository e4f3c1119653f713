"""What can go wrong with PostgreSQL alone; see test_sql_failures.py for the rest."""

from __future__ import annotations

import time
from contextlib import suppress

import psycopg
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.sinks.postgres.session import PostgresSession
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of
from tests.sinks.postgres.postgres_world import World, staged, world
from tests.sinks.sql.sql_world import at, started

__all__ = ["world"]

ROWS = StagedOutput(rows=staged(id=[1, 2, 3]))


class TestServer:
    def test_a_transaction_older_than_its_limit_is_ended(self, world: World) -> None:
        with world.sink(transaction_timeout=0.3).open("p") as session:
            entry = started(session)
            with pytest.raises(SinkUnavailableError):
                session.publish(entry, ROWS, at(CrashPoint.ROWS_SENT, lambda: time.sleep(1)))
            assert world.rows("SELECT to_regclass('t') AS t") == [{"t": None}]

    def test_a_database_that_takes_no_writes_is_unavailable(self, world: World) -> None:
        with world.sink().open("p") as session:
            started(session)
        name = world.dsn.rpartition("/")[2]
        world.run(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        with world.sink().open("p") as session:
            head = session.head()
            assert head is not None
            with pytest.raises(SinkUnavailableError, match="standby"):
                session.publish(child_of(head, 3), ROWS)

    def test_settings_of_the_role_do_not_break_a_checkpoint(self, world: World) -> None:
        name = world.dsn.rpartition("/")[2]
        for setting in ("statement_timeout = 1000", "default_transaction_isolation = serializable"):
            world.run(f'ALTER DATABASE "{name}" SET {setting}')
        world.run("CREATE TABLE t (id bigint DEFAULT 1, slept text DEFAULT pg_sleep(0.4)::text)")
        world.publish(world.sink(), staged(id=[1, 2, 3]))
        assert len(world.rows()) == 3

    def test_a_commit_that_the_server_answers_by_a_rollback_is_none(self, world: World) -> None:
        """COMMIT of a transaction in which a statement had failed raises nothing."""
        with world.sink().open("p") as session:
            assert isinstance(session, PostgresSession)
            entry, store = started(session), session.store

            def fails() -> None:
                with suppress(psycopg.Error):
                    store.execute("SELECT 1 / 0")

            with pytest.raises(SinkUnavailableError, match="answered ROLLBACK to COMMIT"):
                session.publish(entry, ROWS, at(CrashPoint.ENTRY_SENT, fails))
            assert session.entry(1) is None
            assert session.publish(entry, ROWS) is CommitOutcome.COMMITTED
        assert len(world.rows()) == 3

    def test_what_a_transaction_may_hold_up_is_bounded_and_what_it_commits_is_durable(
        self, world: World
    ) -> None:
        name = world.dsn.rpartition("/")[2]
        world.run(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        with world.sink(lock_timeout=7, transaction_timeout=90).open("p") as session:
            assert isinstance(session, PostgresSession)
            store, found = session.store, dict[str, str]()
            entry = started(session)

            def look() -> None:
                for setting in BOUNDS:
                    ((found[setting],),) = store.rows(f"SHOW {setting}")

            session.publish(entry, ROWS, at(CrashPoint.ROWS_SENT, look))
        assert found == BOUNDS


#: Settings of a transaction, as the server shows them.
BOUNDS = {
    "lock_timeout": "7s",
    "idle_in_transaction_session_timeout": "7s",
    "statement_timeout": "90s",
    "synchronous_commit": "on",
}

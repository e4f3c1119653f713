"""PostgreSQL and its network at their worst: what is reported, and what is left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.errors import (
    CommitUnknownError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.protocol import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, first_entry
from tests.contract.postgres_world import World, staged, world
from tests.proxy import Cut, Proxy

__all__ = ["world"]

ROWS = StagedOutput(rows=staged(id=[1, 2, 3]))
COMMITTED = CommitOutcome.COMMITTED
ALREADY_COMMITTED = CommitOutcome.ALREADY_COMMITTED


def at(point: CrashPoint, act: Callable[[], object]) -> Reach:
    """Do something at ``point``."""

    def reach(reached: CrashPoint) -> None:
        if reached == point:
            act()

    return reach


def started(session: SinkSession) -> LedgerEntry:
    """The first checkpoint with rows, not yet published."""
    start = first_entry("p")
    session.publish(start, StagedOutput())
    return child_of(start, 3)


class TestNetwork:
    @pytest.fixture
    def proxy(self, world: World) -> Iterator[Proxy]:
        server = conninfo_to_dict(world.dsn)
        with Proxy(str(server["host"]), int(str(server["port"]))) as proxy:
            yield proxy

    @pytest.fixture
    def session(self, world: World, proxy: Proxy) -> Iterator[SinkSession]:
        world.dsn = make_conninfo(world.dsn, host="127.0.0.1", port=proxy.port)
        with world.sink().open("p") as session:
            yield session

    def test_a_lost_reply_to_commit_is_unknown_and_found_committed(
        self, world: World, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        proxy.cut_at(b"COMMIT\0", Cut.BEFORE_THE_REPLY)
        with pytest.raises(CommitUnknownError, match=entry.transaction_id):
            session.publish(entry, ROWS)
        assert session.publish(entry, ROWS) is ALREADY_COMMITTED
        assert len(world.rows()) == 3

    def test_a_commit_that_was_never_heard_is_unknown_and_lands_when_repeated(
        self, world: World, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        proxy.cut_at(b"COMMIT\0", Cut.BEFORE_THE_REQUEST)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, ROWS)
        assert session.publish(entry, ROWS) is COMMITTED
        assert len(world.rows()) == 3

    def test_while_a_lost_commit_is_repeated_a_rival_is_fenced(
        self, world: World, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        rival = child_of(first_entry("p"), 3)
        proxy.cut_at(b"COMMIT\0", Cut.BEFORE_THE_REPLY)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, ROWS)
        with world.sink().open("p") as other, pytest.raises(FencedError):
            other.publish(rival, ROWS)
        assert len(world.rows()) == 3

    @pytest.mark.parametrize("word", [b"BEGIN", b"COPY", b"PGCOPY", b"INSERT INTO"])
    def test_a_link_cut_before_commit_leaves_nothing_and_the_session_goes_on(
        self, world: World, proxy: Proxy, session: SinkSession, word: bytes
    ) -> None:
        entry = started(session)
        proxy.cut_at(word, Cut.BEFORE_THE_REQUEST)
        with pytest.raises(SinkUnavailableError):
            session.publish(entry, ROWS)
        assert world.rows("SELECT to_regclass('t') AS t") == [{"t": None}]
        assert session.publish(entry, ROWS) is COMMITTED

    def test_a_session_whose_connection_died_reads_on(
        self, proxy: Proxy, session: SinkSession
    ) -> None:
        start = first_entry("p")
        session.publish(start, StagedOutput())
        proxy.cut()
        head = session.head()
        assert head is not None
        assert head.id == start.id
        proxy.cut()
        assert session.publish(child_of(start, 3), ROWS) is COMMITTED

    def test_a_server_that_cannot_be_reached_is_unavailable(
        self, proxy: Proxy, session: SinkSession
    ) -> None:
        proxy.refuse()
        proxy.cut()
        with pytest.raises(SinkUnavailableError, match="does not answer"):
            session.head()
        proxy.refuse(False)
        assert session.head() is None


class TestServer:
    @pytest.mark.parametrize(
        ("point", "reported"),
        [
            (CrashPoint.ROWS_SENT, SinkUnavailableError),
            (CrashPoint.ENTRY_SENT, CommitUnknownError),
        ],
    )
    def test_a_server_killed_within_the_transaction_keeps_none_of_it(
        self,
        world: World,
        postgres: EmbeddedPostgres,
        point: CrashPoint,
        reported: type[EoPipelineError],
    ) -> None:
        with world.sink().open("p") as session:
            entry = started(session)
            with pytest.raises(reported):
                session.publish(entry, ROWS, at(point, postgres.kill))
            with pytest.raises(SinkUnavailableError):
                session.head()
            postgres.start()
            assert session.entry(1) is None
            assert session.publish(entry, ROWS) is COMMITTED
        with psycopg.connect(world.dsn) as observer:
            assert observer.execute("SELECT count(*) FROM t").fetchone() == (3,)

    def test_a_server_killed_after_commit_kept_all_of_it(
        self, world: World, postgres: EmbeddedPostgres
    ) -> None:
        with world.sink().open("p") as session:
            entry = started(session)
            session.publish(entry, ROWS)
            postgres.kill()
            postgres.start()
            assert session.publish(entry, ROWS) is ALREADY_COMMITTED

    def test_a_table_somebody_locks_is_unavailable_after_the_lock_timeout(
        self, world: World
    ) -> None:
        world.run("CREATE TABLE t (id bigint)")
        with world.sink(lock_timeout=0.2).open("p") as session:
            entry = started(session)
            with world.observer.transaction():
                world.run("LOCK TABLE t")
                with pytest.raises(SinkUnavailableError, match=r"55P03.*lock_timeout"):
                    session.publish(entry, ROWS)
            assert session.publish(entry, ROWS) is COMMITTED

    def test_a_zombie_that_sleeps_with_the_key_is_ended_by_the_server(self, world: World) -> None:
        with world.sink(lock_timeout=0.3).open("p") as session:
            entry = started(session)
            with pytest.raises(SinkUnavailableError):
                session.publish(entry, ROWS, at(CrashPoint.ROWS_SENT, lambda: time.sleep(1)))
            assert session.publish(entry, ROWS) is COMMITTED

    def test_a_transaction_older_than_its_limit_is_ended(self, world: World) -> None:
        with world.sink(transaction_timeout=0.3).open("p") as session:
            entry = started(session)
            with pytest.raises(SinkUnavailableError):
                session.publish(entry, ROWS, at(CrashPoint.ROWS_SENT, lambda: time.sleep(1)))
            assert world.rows("SELECT to_regclass('t') AS t") == [{"t": None}]

    @pytest.mark.parametrize(
        ("sqlstate", "reported"),
        [
            ("53100", SinkUnavailableError),  # disk full
            ("53200", SinkUnavailableError),  # out of memory
            ("40001", SinkUnavailableError),  # serialization
            ("40P01", SinkUnavailableError),  # deadlock
            ("57014", SinkUnavailableError),  # cancelled
            ("57P01", SinkUnavailableError),  # shutdown
            ("58030", SinkUnavailableError),  # I/O error
            ("XX001", SinkUnavailableError),  # corrupted
            ("42P07", SinkUnavailableError),  # created by somebody just now
            ("22012", RefusedError),  # division by zero
            ("23514", RefusedError),  # check
            ("42501", RefusedError),  # permission
            ("0A000", RefusedError),  # not supported
            ("54000", RefusedError),  # a limit of the program
            ("P0001", RefusedError),  # raised by a user's function
            ("08P01", RefusedError),  # a malformed binary value
        ],
    )
    def test_an_error_is_told_by_its_code(
        self, world: World, sqlstate: str, reported: type[EoPipelineError]
    ) -> None:
        world.run("CREATE TABLE t (id bigint)")
        world.run(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE 'as asked' USING ERRCODE = '{sqlstate}'; END $$"
        )
        world.run("CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()")
        with world.sink().open("p") as session:
            entry = started(session)
            with pytest.raises(reported, match=f"as asked.*{sqlstate}"):
                session.publish(entry, ROWS)
            assert session.entry(1) is None
        assert world.rows() == []

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

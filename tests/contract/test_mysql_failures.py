"""MySQL and its network at their worst: what is reported, and what is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pymysql
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.errors import (
    CommitUnknownError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.mysql.connect import Connection
from eo_pipeline.sinks.protocol import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, first_entry
from tests.contract.mysql_world import BOTH_WAYS, World, at, staged, world
from tests.proxy import Cut, Proxy

__all__ = ["world"]


ROWS = StagedOutput(rows=staged(id=[1, 2, 3]))


COMMITTED = CommitOutcome.COMMITTED


ALREADY_COMMITTED = CommitOutcome.ALREADY_COMMITTED


def started(session: SinkSession) -> LedgerEntry:
    """The first checkpoint with rows, not yet published."""
    start = first_entry("p")
    session.publish(start, StagedOutput())
    return child_of(start, 3)


class TestNetwork:
    @pytest.fixture
    def proxy(self, world: World) -> Iterator[Proxy]:
        with Proxy(world.database.server.host, world.database.server.port) as proxy:
            yield proxy

    @pytest.fixture
    def session(self, world: World, proxy: Proxy) -> Iterator[SinkSession]:
        with world.sink(port=proxy.port).open("p") as session:
            yield session

    def test_a_lost_reply_to_commit_is_unknown_and_found_committed(
        self, world: World, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        proxy.cut_at(b"COMMIT", Cut.BEFORE_THE_REPLY)
        with pytest.raises(CommitUnknownError, match=entry.transaction_id):
            session.publish(entry, ROWS)
        assert session.publish(entry, ROWS) is ALREADY_COMMITTED
        assert len(world.rows()) == 3

    def test_a_commit_that_was_never_heard_is_unknown_and_lands_when_repeated(
        self, world: World, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        proxy.cut_at(b"COMMIT", Cut.BEFORE_THE_REQUEST)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, ROWS)
        assert session.publish(entry, ROWS) is COMMITTED
        assert len(world.rows()) == 3

    def test_while_a_lost_commit_is_repeated_a_rival_is_fenced(
        self, world: World, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        proxy.cut_at(b"COMMIT", Cut.BEFORE_THE_REPLY)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, ROWS)
        with world.sink().open("p") as other, pytest.raises(FencedError):
            other.publish(child_of(first_entry("p"), 3), ROWS)
        assert len(world.rows()) == 3

    @pytest.mark.parametrize(
        "word", [b"CREATE TABLE", b"START TRANSACTION", b"LOAD DATA", b"2\n", b"INSERT INTO"]
    )
    @pytest.mark.parametrize("cut", Cut)
    def test_a_link_cut_before_commit_leaves_no_row_and_the_session_goes_on(
        self, world: World, proxy: Proxy, session: SinkSession, word: bytes, cut: Cut
    ) -> None:
        entry = started(session)
        proxy.cut_at(word, cut)
        with pytest.raises(SinkUnavailableError):
            session.publish(entry, ROWS)
        assert "t" not in world.tables() or world.rows() == []
        assert session.entry(1) is None
        assert session.publish(entry, ROWS) is COMMITTED
        assert len(world.rows()) == 3

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
        mariadb: EmbeddedMariaDB,
        point: CrashPoint,
        reported: type[EoPipelineError],
    ) -> None:
        with world.sink().open("p") as session:
            entry = started(session)
            with pytest.raises(reported):
                session.publish(entry, ROWS, at(point, mariadb.kill))
            with pytest.raises(SinkUnavailableError):
                session.head()
            mariadb.start()
            assert session.entry(1) is None
            assert session.publish(entry, ROWS) is COMMITTED
        assert self.count(world) == 3

    def test_a_server_killed_while_it_commits_keeps_all_or_nothing(
        self, world: World, mariadb: EmbeddedMariaDB
    ) -> None:
        """Scenario: SIGKILL some moment after COMMIT was sent. Outcome: the ledger tells."""
        many = StagedOutput(rows=staged(id=list(range(30_000))))
        for delay_ms in (0, 1, 2, 4, 8):
            mariadb.start()
            with world.sink().open("p") as session, ThreadPoolExecutor(1) as killer:
                head = session.head() or started_head(session)
                entry = child_of(head, 30_000)
                later = partial(killer.submit, kill_after, mariadb, delay_ms / 1000)
                reach = at(CrashPoint.ENTRY_SENT, later)
                try:
                    outcome: object = session.publish(entry, many, reach)
                except CommitUnknownError as error:
                    outcome = error
            mariadb.start()
            with world.sink().open("p") as session:
                landed = session.entry(entry.version) is not None
                assert landed or outcome is not COMMITTED
                assert self.count(world) == 30_000 * (entry.version - (not landed))
                again = session.publish(entry, many)
                assert again is (ALREADY_COMMITTED if landed else COMMITTED)
            assert self.count(world) == 30_000 * entry.version

    def count(self, world: World) -> int:
        with world.database.connect() as reader, reader.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM t")
            row = cursor.fetchone()
        assert row is not None
        return int(row[0])

    def test_a_killed_connection_leaves_nothing(self, world: World) -> None:
        with world.sink().open("p") as session:
            entry = started(session)

            def kill() -> None:
                for row in world.rows("SHOW PROCESSLIST"):
                    if row["db"] == world.database.name and row["Command"] == "Sleep":
                        world.run(f"KILL {row['Id']}")

            with pytest.raises(SinkUnavailableError):
                session.publish(entry, ROWS, at(CrashPoint.ROWS_SENT, kill))
            assert world.rows() == []
            assert session.publish(entry, ROWS) is COMMITTED

    def test_a_lock_somebody_holds_is_unavailable_and_nothing_is_left(self, world: World) -> None:
        """MySQL rolls back the one statement that waited: a COMMIT would publish the others."""
        world.run("CREATE TABLE t (id bigint PRIMARY KEY)")
        with world.sink(lock_timeout=1).open("p") as session:
            entry = started(session)
            with world.database.connect() as other, other.cursor() as cursor:
                other.begin()
                cursor.execute("INSERT INTO t VALUES (3)")
                with pytest.raises(SinkUnavailableError, match=r"1205.*lock_timeout"):
                    session.publish(entry, ROWS)
                other.rollback()
            assert world.rows() == []
            assert session.publish(entry, ROWS) is COMMITTED

    def test_a_table_somebody_reads_is_widened_later(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]))
        with world.sink(lock_timeout=1).open("p") as session:
            head = session.head()
            assert head is not None
            wider = StagedOutput(rows=staged(id=[2], more=["x"]))
            with world.database.connect() as other, other.cursor() as cursor:
                other.begin()
                cursor.execute("SELECT * FROM t")
                with pytest.raises(SinkUnavailableError, match="1205"):
                    session.publish(child_of(head, 1), wider)
                other.rollback()
            assert session.publish(child_of(head, 1), wider) is COMMITTED

    def test_a_zombie_that_sleeps_with_its_rows_is_ended_by_the_server(self, world: World) -> None:
        with world.sink(lock_timeout=1).open("p") as session:
            entry = started(session)
            sleep = at(CrashPoint.ROWS_SENT, lambda: time.sleep(2.5))
            with pytest.raises(SinkUnavailableError):
                session.publish(entry, ROWS, sleep)
            assert world.rows() == []
            assert session.publish(entry, ROWS) is COMMITTED

    @BOTH_WAYS
    @pytest.mark.parametrize(
        ("number", "reported"),
        [
            (1021, SinkUnavailableError),  # disk full
            (1114, SinkUnavailableError),  # table full
            (1205, SinkUnavailableError),  # lock wait
            (1213, SinkUnavailableError),  # deadlock
            (1290, SinkUnavailableError),  # read-only server
            (1317, SinkUnavailableError),  # interrupted
            (1040, SinkUnavailableError),  # too many connections
            (1142, RefusedError),  # permission
            (1146, RefusedError),  # a table that a trigger needs
            (1365, RefusedError),  # division by zero
            (1644, RefusedError),  # raised by a user's trigger
            (4025, RefusedError),  # check
        ],
    )
    def test_an_error_is_told_by_its_number(
        self, world: World, number: int, reported: type[EoPipelineError], load_data: bool
    ) -> None:
        world.run("CREATE TABLE t (id bigint)")
        world.run(
            "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW SIGNAL SQLSTATE '45000'"
            f" SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'as asked'"
        )
        with world.sink(load_data=load_data).open("p") as session:
            entry = started(session)
            with pytest.raises(reported, match=f"as asked.*{number}"):
                session.publish(entry, ROWS)
            assert session.entry(1) is None
        assert world.rows() == []

    def test_a_server_that_takes_no_local_data_gets_inserts(self, world: World) -> None:
        world.run("SET GLOBAL local_infile = OFF")
        try:
            world.publish(world.sink(), staged(id=[1, 2]), staged(id=[3]))
        finally:
            world.run("SET GLOBAL local_infile = ON")
        assert len(world.rows()) == 3

    def test_an_entry_never_lands_alone_after_the_server_ended_the_transaction(
        self, world: World
    ) -> None:
        """After a deadlock, say, the next statement would be committed by itself."""
        with world.sink().open("p") as session:
            entry = started(session)
            connection: Connection = session._connection  # type: ignore[attr-defined]
            with pytest.raises(SinkUnavailableError, match="ended by something else"):
                session.publish(
                    entry, ROWS, at(CrashPoint.ROWS_SENT, lambda: connection.query("ROLLBACK"))
                )
            assert session.entry(1) is None
            assert world.rows() == []

    def test_a_server_cannot_make_us_send_a_file(self, world: World) -> None:
        with world.sink().open("p") as session:
            connection: Connection = session._connection  # type: ignore[attr-defined]
            with pytest.raises(pymysql.OperationalError, match="unasked"):
                connection.query("LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE eo_ledger")
            assert session.head() is None


def kill_after(server: EmbeddedMariaDB, seconds: float) -> None:
    time.sleep(seconds)
    server.kill()


def started_head(session: SinkSession) -> LedgerEntry:
    start = first_entry("p")
    session.publish(start, StagedOutput())
    return start

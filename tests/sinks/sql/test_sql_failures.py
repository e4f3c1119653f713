"""Databases and their network at their worst: what is reported, and what is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    CommitUnknownError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.sinks.sql.session import SqlSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.sql.sql_world import Server, SqlWorld, at, staged, started
from tests.sinks.sql.sql_worlds import MYSQLS, world
from tests.support.chaos import rest_is_chaos
from tests.support.proxy import Cut, Proxy
from tests.support.servers import own_postgres

postgres = own_postgres

__all__ = ["world"]

ROWS = StagedOutput(rows=staged(id=[1, 2, 3]))
COMMITTED = CommitOutcome.COMMITTED
ALREADY_COMMITTED = CommitOutcome.ALREADY_COMMITTED

#: What is on its way before COMMIT, the middle of the rows too.
WORDS = [
    *[("postgres", word) for word in (b"BEGIN", b"CREATE TABLE", b"COPY", b"PGCOPY")],
    ("postgres", b"INSERT INTO"),
    *[
        (server, word)
        for server in MYSQLS
        for word in (b"CREATE TABLE", b"START TRANSACTION", b"LOAD DATA", b"2\n", b"INSERT INTO")
    ],
]

LATER, NEVER = SinkUnavailableError, RefusedError
LOAD, INSERT = {"load_data": True}, {"load_data": False}

#: An error's code, and what it means for the checkpoint.
CODES: list[tuple[str, str, type[EoPipelineError], dict[str, Any]]] = [
    ("postgres", "53100", LATER, {}),  # disk full
    ("postgres", "53200", LATER, {}),  # out of memory
    ("postgres", "40001", LATER, {}),  # serialization
    ("postgres", "40P01", LATER, {}),  # deadlock
    ("postgres", "57014", LATER, {}),  # cancelled
    ("postgres", "57P01", LATER, {}),  # shutdown
    ("postgres", "58030", LATER, {}),  # I/O error
    ("postgres", "XX001", LATER, {}),  # corrupted
    ("postgres", "42P07", LATER, {}),  # created by somebody just now
    ("postgres", "22012", NEVER, {}),  # division by zero
    ("postgres", "23514", NEVER, {}),  # check
    ("postgres", "42501", NEVER, {}),  # permission
    ("postgres", "0A000", NEVER, {}),  # not supported
    ("postgres", "54000", NEVER, {}),  # a limit of the program
    ("postgres", "P0001", NEVER, {}),  # raised by a user's function
    ("postgres", "08P01", NEVER, {}),  # a malformed binary value
    *[(server, code, LATER, way) for server in MYSQLS for way in (LOAD, INSERT) for code in (
        "1021",  # disk full
        "1114",  # table full
        "1205",  # lock wait
        "1213",  # deadlock
        "1290",  # read-only server
        "1317",  # interrupted
        "1040",  # too many connections
    )],
    *[(server, code, NEVER, way) for server in MYSQLS for way in (LOAD, INSERT) for code in (
        "1142",  # permission
        "1146",  # a table that a trigger needs
        "1365",  # division by zero
        "1644",  # raised by a user's trigger
        "4025",  # check
    )],
]  # fmt: skip


class TestNetwork:
    @pytest.fixture
    def proxy(self, world: SqlWorld) -> Iterator[Proxy]:
        with Proxy(*world.address) as proxy:
            yield proxy

    @pytest.fixture
    def session(self, world: SqlWorld, proxy: Proxy) -> Iterator[SinkSession]:
        with world.sink_by(proxy.port).open("p") as session:
            yield session

    def test_a_lost_reply_to_commit_is_unknown_and_found_committed(
        self, world: SqlWorld, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        proxy.cut_at(world.COMMIT, Cut.BEFORE_THE_REPLY)
        with pytest.raises(CommitUnknownError, match=entry.transaction_id):
            session.publish(entry, ROWS)
        assert session.publish(entry, ROWS) is ALREADY_COMMITTED
        assert len(world.rows()) == 3

    def test_a_commit_that_was_never_heard_is_unknown_and_lands_when_repeated(
        self, world: SqlWorld, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        proxy.cut_at(world.COMMIT, Cut.BEFORE_THE_REQUEST)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, ROWS)
        assert session.publish(entry, ROWS) is COMMITTED
        assert len(world.rows()) == 3

    def test_while_a_lost_commit_is_repeated_a_rival_is_fenced(
        self, world: SqlWorld, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = started(session)
        proxy.cut_at(world.COMMIT, Cut.BEFORE_THE_REPLY)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, ROWS)
        with world.sink().open("p") as other, pytest.raises(FencedError):
            other.publish(child_of(first_entry("p"), 3), ROWS)
        assert len(world.rows()) == 3

    @pytest.mark.parametrize(("world", "word"), WORDS, indirect=["world"])
    @pytest.mark.parametrize("cut", Cut)
    def test_a_link_cut_before_commit_leaves_no_row_and_the_session_goes_on(
        self, world: SqlWorld, proxy: Proxy, session: SinkSession, word: bytes, cut: Cut
    ) -> None:
        entry = started(session)
        proxy.cut_at(word, cut)
        with pytest.raises(SinkUnavailableError):
            session.publish(entry, ROWS)
        assert world.is_untouched()
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
        self, world: SqlWorld, point: CrashPoint, reported: type[EoPipelineError]
    ) -> None:
        with world.sink().open("p") as session:
            entry = started(session)
            with pytest.raises(reported):
                session.publish(entry, ROWS, at(point, world.server.kill))
            with pytest.raises(SinkUnavailableError):
                session.head()
            world.server.start()
            assert session.entry(1) is None
            assert session.publish(entry, ROWS) is COMMITTED
        assert world.count() == 3

    def test_a_server_killed_after_commit_kept_all_of_it(self, world: SqlWorld) -> None:
        with world.sink().open("p") as session:
            entry = started(session)
            session.publish(entry, ROWS)
            world.server.kill()
            world.server.start()
            assert session.publish(entry, ROWS) is ALREADY_COMMITTED
        assert world.count() == 3

    @pytest.mark.parametrize("delays_ms", rest_is_chaos([[0, 4], [1, 2, 8]], but=[[0, 4]]))
    def test_a_server_killed_while_it_commits_keeps_all_or_nothing(
        self, world: SqlWorld, delays_ms: list[int]
    ) -> None:
        """Scenario: SIGKILL some moment after COMMIT was sent. Outcome: the ledger tells."""
        many = StagedOutput(rows=staged(id=list(range(30_000))))
        world.run("CREATE TABLE t (id bigint)")
        for delay_ms in delays_ms:
            with world.sink().open("p") as session, ThreadPoolExecutor(1) as killer:
                head = session.head()
                if head is None:
                    head = first_entry("p")
                    session.publish(head, StagedOutput())
                entry = child_of(head, 30_000)
                later = partial(killer.submit, kill_after, world.server, delay_ms / 1000)
                try:
                    outcome: object = session.publish(entry, many, at(CrashPoint.ENTRY_SENT, later))
                except CommitUnknownError as error:
                    outcome = error
            world.server.start()
            with world.sink().open("p") as session:
                landed = session.entry(entry.version) is not None
                assert landed or outcome is not COMMITTED
                assert world.count() == 30_000 * (entry.version - (not landed))
                again = session.publish(entry, many)
                assert again is (ALREADY_COMMITTED if landed else COMMITTED)
            assert world.count() == 30_000 * entry.version

    def test_a_connection_that_was_ended_leaves_nothing(self, world: SqlWorld) -> None:
        with world.sink().open("p") as session:
            entry = started(session)
            end = at(CrashPoint.ROWS_SENT, world.end_other_connections)
            with pytest.raises(SinkUnavailableError):
                session.publish(entry, ROWS, end)
            assert world.is_untouched()
            assert session.publish(entry, ROWS) is COMMITTED

    @pytest.mark.parametrize(
        ("world", "holding"),
        [
            ("postgres", "LOCK TABLE t"),
            ("postgres", "INSERT INTO t VALUES (3)"),
            # it rolls back the one statement that waited: a COMMIT would publish the others
            *((server, "INSERT INTO t VALUES (3)") for server in MYSQLS),
        ],
        indirect=["world"],
    )
    def test_a_lock_somebody_holds_is_unavailable_and_nothing_is_left(
        self, world: SqlWorld, holding: str
    ) -> None:
        world.run("CREATE TABLE t (id bigint PRIMARY KEY)")
        with world.sink(lock_timeout=world.SHORTEST_TIMEOUT).open("p") as session:
            entry = started(session)
            with (
                world.in_transaction(holding),
                pytest.raises(SinkUnavailableError, match=rf"{world.LOCK_CODE}.*lock_timeout"),
            ):
                session.publish(entry, ROWS)
            assert world.rows() == []
            assert session.publish(entry, ROWS) is COMMITTED

    def test_a_table_somebody_reads_is_widened_later(self, world: SqlWorld) -> None:
        world.publish(world.sink(), staged(id=[1]))
        with world.sink(lock_timeout=world.SHORTEST_TIMEOUT).open("p") as session:
            head = session.head()
            assert head is not None
            entry, wider = child_of(head, 1), StagedOutput(rows=staged(id=[2], more=["x"]))
            with (
                world.in_transaction("SELECT * FROM t"),
                pytest.raises(SinkUnavailableError, match=world.LOCK_CODE),
            ):
                session.publish(entry, wider)
            assert session.publish(entry, wider) is COMMITTED

    def test_a_zombie_that_sleeps_with_its_rows_is_ended_by_the_server(
        self, world: SqlWorld
    ) -> None:
        with world.sink(lock_timeout=world.SHORTEST_TIMEOUT).open("p") as session:
            entry = started(session)
            asleep = 2.5 * world.SHORTEST_TIMEOUT
            with pytest.raises(SinkUnavailableError):
                session.publish(entry, ROWS, at(CrashPoint.ROWS_SENT, lambda: time.sleep(asleep)))
            assert world.is_untouched()
            assert session.publish(entry, ROWS) is COMMITTED

    @pytest.mark.parametrize(
        ("world", "code", "reported", "settings"),
        CODES,
        indirect=["world"],
        ids=lambda value: "insert" if value == INSERT else "" if isinstance(value, dict) else None,
    )
    def test_an_error_is_told_by_its_code(
        self, world: SqlWorld, code: str, reported: type[EoPipelineError], settings: dict[str, Any]
    ) -> None:
        world.run("CREATE TABLE t (id bigint)")
        world.refuse_inserts(code)
        with world.sink(**settings).open("p") as session:
            entry = started(session)
            with pytest.raises(reported, match=f"as asked.*{code}"):
                session.publish(entry, ROWS)
            assert session.entry(1) is None
        assert world.rows() == []

    def test_an_entry_never_lands_alone_after_the_server_ended_the_transaction(
        self, world: SqlWorld
    ) -> None:
        """After a deadlock, say, the next statement would be committed by itself."""
        with world.sink().open("p") as session:
            assert isinstance(session, SqlSession)
            entry, store = started(session), session.store
            end = at(CrashPoint.ROWS_SENT, lambda: store.execute("ROLLBACK"))
            with pytest.raises(SinkUnavailableError, match="ended by something else"):
                session.publish(entry, ROWS, end)
            assert session.entry(1) is None
            assert world.is_untouched()


def kill_after(server: Server, seconds: float) -> None:
    time.sleep(seconds)
    server.kill()

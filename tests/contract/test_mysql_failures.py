"""MySQL and its network at their worst: what is reported, and what is left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pymysql
import pytest
from pydantic import ValidationError

from eo_pipeline.checkpoint import LedgerEntry
from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SetupError,
    SinkUnavailableError,
)
from eo_pipeline.sinks.base import CommitOutcome, SinkSession
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.mysql.connect import Connection
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.staged import StagedOutput
from eo_pipeline.testing import child_of, first_entry
from tests.contract.mysql_world import BOTH_WAYS, World, staged, world
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


class TestUsers:
    @pytest.fixture
    def grant(self, world: World) -> Iterator[Callable[[str], None]]:
        world.run("CREATE USER reader IDENTIFIED BY 's3cret ü'")
        yield lambda what: world.run(f"GRANT {what} TO reader")
        world.run("DROP USER reader")

    def sink(self, world: World, **settings: Any) -> MySqlSink:
        return world.sink(user="reader", password="s3cret ü", **settings)

    def test_a_user_that_may_not_create_needs_a_ledger_made_for_it(
        self, world: World, grant: Callable[[str], None]
    ) -> None:
        grant(f"SELECT, INSERT ON {world.database.name}.*")
        with pytest.raises(ConfigError, match=r"CREATE command denied.*GRANT"):
            self.sink(world).open("p")

    def test_a_user_may_append_to_tables_that_others_made(
        self, world: World, grant: Callable[[str], None]
    ) -> None:
        world.publish(world.sink(), staged(id=[1]))
        grant(f"SELECT, INSERT ON {world.database.name}.*")
        world.publish(self.sink(world), staged(id=[2]))
        assert len(world.rows()) == 2

    def test_a_user_that_may_not_insert_is_refused(
        self, world: World, grant: Callable[[str], None]
    ) -> None:
        world.publish(world.sink(), staged(id=[1]))
        grant(f"SELECT ON {world.database.name}.*")
        grant(f"INSERT ON {world.database.name}.eo_ledger")
        with pytest.raises(RefusedError, match=r"INSERT command denied.*GRANT"):
            world.publish(self.sink(world), staged(id=[2]))

    @pytest.mark.parametrize(
        "wrong", [{"user": "nobody_here"}, {"password": "s3cret?"}, {"database": "no_such_db"}]
    )
    def test_a_login_that_is_refused_is_a_matter_of_configuration(
        self, world: World, grant: Callable[[str], None], wrong: dict[str, str]
    ) -> None:
        settings = {"user": "reader", "password": "s3cret ü", **wrong}
        with pytest.raises(ConfigError, match="refused the connection") as error:
            world.sink(**settings).open("p")
        assert "s3cret" not in f"{error.value} {error.value.__cause__}"

    def test_a_server_that_is_not_there_is_unavailable(self, world: World) -> None:
        with pytest.raises(SinkUnavailableError, match="does not answer"):
            world.sink(port=1, password="s3cret").open("p")

    def test_a_server_without_encryption_is_refused_where_it_is_required(
        self, world: World
    ) -> None:
        with pytest.raises(ConfigError, match="SSL"):
            world.sink(ssl_mode="required").open("p")


class TestLedger:
    def test_any_number_of_runs_may_create_it_at_once(self, world: World) -> None:
        def open_and_close(_: int) -> None:
            world.sink().open("p").close()

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(open_and_close, range(16))) == [None] * 16

    def test_opening_leaves_an_empty_ledger_and_nothing_else(self, world: World) -> None:
        world.sink().open("p").close()
        assert world.tables() == {"eo_ledger"}
        assert world.rows("SELECT * FROM eo_ledger") == []

    def test_two_pipelines_cannot_have_one_table(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]), pipeline="flights")
        with pytest.raises(ConfigError, match=r"\.t belongs to pipeline 'flights'.*'delays'"):
            world.sink().open("delays")

    def test_of_two_pipelines_that_start_on_one_table_one_is_refused(self, world: World) -> None:
        with world.sink().open("flights") as one, world.sink().open("delays") as two:
            one.publish(first_entry("flights"), StagedOutput())
            with pytest.raises(ConfigError, match=r"belongs to pipeline 'flights'.*'delays'"):
                two.publish(first_entry("delays"), StagedOutput())

    def test_pipelines_with_tables_of_their_own_share_a_ledger(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]), pipeline="flights")
        world.publish(world.sink(table="d"), staged(id=[1]), pipeline="delays")
        with world.sink().open("flights") as session:
            assert [entry.version for entry in session.history()] == [0, 1]

    def test_a_pipeline_cannot_move_to_another_table_by_itself(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]))
        with pytest.raises(ConfigError, match=r"publishes into db_\w+\.t.*not into db_\w+\.other"):
            world.sink(table="other").open("p")

    def test_a_ledger_that_is_not_transactional_is_refused(self, world: World) -> None:
        world.run("CREATE TABLE eo_ledger (pipeline text) ENGINE = MyISAM")
        with pytest.raises(ConfigError, match=r"ledger.*MyISAM.*ENGINE = InnoDB"):
            world.sink().open("p")

    @pytest.mark.parametrize(
        ("version", "parent", "parent_id", "constraint"),
        [
            (0, "NULL", "NULL", "PRIMARY"),
            (1, "0", "'another'", "eo_ledger_parent"),
            (2, "1", "'0'", "eo_ledger_parent"),
            (2, "0", "'0'", "eo_ledger_step"),
            (1, "NULL", "NULL", "eo_ledger_step"),
            (1, "0", "NULL", "eo_ledger_step"),
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
        with pytest.raises((pymysql.IntegrityError, pymysql.OperationalError), match=constraint):
            world.run(insert.format(version, "rival", parent, parent_id, "another table"))


class TestConfiguration:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"mode": "upsert"}, "key"),
            ({"key": ["id"]}, "key"),
            ({"sequence_by": ["at"]}, "sequence_by"),
            ({"table": "a.b"}, "table"),
            ({"table": "x" * 65}, "table"),
            ({"table": "x" * 60}, "dead_letter_table"),
            ({"dead_letter_table": "t"}, "dead_letter_table"),
            ({"port": 0}, "port"),
            ({"database": ""}, "database"),
            ({"ssl_mode": "perhaps"}, "ssl_mode"),
            ({"ssl_cert": "client.pem"}, "ssl_key"),
            ({"lock_timeout": 0}, "lock_timeout"),
            ({"colour": "red"}, "colour"),
        ],
    )
    def test_a_wrong_field_is_named(self, settings: dict[str, Any], field: str) -> None:
        with pytest.raises(ValidationError) as error:
            MySqlSink.model_validate({"user": "u", "database": "d", "table": "t", **settings})
        assert [problem["loc"] for problem in error.value.errors()] == [(field,)]

    @pytest.mark.parametrize("name", ["mysql", "mariadb"])
    def test_both_names_mean_this_sink_and_no_secret_is_shown(self, name: str) -> None:
        place = {"host": "db.example", "user": "me", "password": "s3cret", "database": "air"}
        sink = sink_from_config({"type": name, "table": "flights", **place})
        assert isinstance(sink, MySqlSink)
        assert sink.describe() == {
            "kind": "mysql",
            "host": "db.example",
            "port": "3306",
            "dbname": "air",
            "table": "air.flights",
        }
        assert "s3cret" not in f"{sink!r} {sink} {sink.model_dump()} {sink.model_dump_json()}"

    def test_without_the_driver_the_package_to_install_is_named(self) -> None:
        """Neither the package nor the configuration needs it, only an open session does."""
        program = (
            "import sys; sys.modules['pymysql'] = None\n"
            "import eo_pipeline\n"
            "from eo_pipeline.sinks.registry import sink_from_config\n"
            "fields = {'user': 'u', 'database': 'd', 'table': 't'}\n"
            "sink = sink_from_config({'type': 'mysql', **fields})\n"
            "try: sink.open('p')\n"
            "except eo_pipeline.ConfigError as error: print(error)\n"
        )
        said = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        assert "pip install 'eo-pipeline[mysql]'" in said

    def test_a_server_that_is_not_installed_is_named_with_its_remedy(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        monkeypatch.setattr("eo_pipeline.embedded.mariadb._ALSO_IN", ())
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SetupError, match="apt-get install mariadb-server"):
            EmbeddedMariaDB(tmp_path / "data").start()


def kill_after(server: EmbeddedMariaDB, seconds: float) -> None:
    time.sleep(seconds)
    server.kill()


def started_head(session: SinkSession) -> LedgerEntry:
    start = first_entry("p")
    session.publish(start, StagedOutput())
    return start

"""Who may use the ledger, how it comes to be, and what it refuses; in every SQL database."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import psycopg
import pymysql
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    ConfigError,
    FencedError,
    LedgerDamagedError,
    RefusedError,
    SinkUnavailableError,
    TableReplacedError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Identity, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.sinks.sql.config import SqlSink
from eo_pipeline.sinks.sql.session import SqlSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry
from eo_pipeline.testing.staging import dead_letters
from tests.sinks.postgres import postgres_world
from tests.sinks.sql.sql_world import SqlWorld, at, staged, started
from tests.sinks.sql.sql_worlds import MYSQLS, world
from tests.support.servers import wait_until

__all__ = ["world"]


class TestUsers:
    @pytest.fixture
    def user(self, world: SqlWorld) -> Iterator[str]:
        name = world.make_user()
        yield name
        world.drop_user(name)

    def test_a_user_that_may_not_create_needs_a_ledger_made_for_it(
        self, world: SqlWorld, user: str
    ) -> None:
        with pytest.raises(ConfigError, match=r"(?i)denied.*grant"):
            world.sink_of(user).open("p")

    def test_a_user_may_append_to_tables_that_others_made(self, world: SqlWorld, user: str) -> None:
        world.publish(world.sink(), staged(id=[1]))
        world.grant(user, "SELECT, INSERT", "eo_ledger", "t")
        world.publish(world.sink_of(user), staged(id=[2]))
        assert len(world.rows()) == 2

    def test_a_user_that_may_not_insert_is_refused(self, world: SqlWorld, user: str) -> None:
        world.publish(world.sink(), staged(id=[1]))
        world.grant(user, "SELECT, INSERT", "eo_ledger")
        with pytest.raises(RefusedError, match=r"(?i)denied.* table .*\bt\b.*grant"):
            world.publish(world.sink_of(user), staged(id=[2]))

    def test_a_user_that_may_not_alter_is_refused_a_new_column(
        self, world: SqlWorld, user: str
    ) -> None:
        world.publish(world.sink(), staged(id=[1]))
        world.grant(user, "SELECT, INSERT", "eo_ledger", "t")
        with pytest.raises(RefusedError, match=r"must be owner of table t|ALTER command denied"):
            world.publish(world.sink_of(user), staged(id=[2], more=[1]))

    @pytest.mark.parametrize(
        ("world", "wrong"),
        [
            ("postgres", {"user": "nobody_here"}),
            ("postgres", {"dbname": "no_such_db"}),
            *((server, {"user": "nobody_here"}) for server in MYSQLS),
            *((server, {"password": "s3cret?"}) for server in MYSQLS),
            *((server, {"database": "no_such_db"}) for server in MYSQLS),
        ],
        indirect=["world"],
    )
    def test_a_login_that_is_refused_is_a_matter_of_configuration(
        self, world: SqlWorld, user: str, wrong: dict[str, str]
    ) -> None:
        with pytest.raises(ConfigError, match=r"sink.*refused the connection") as error:
            world.sink_of(user, **wrong).open("p")
        assert "s3cret" not in f"{error.value} {error.value.__cause__}"

    def test_a_server_that_is_not_there_is_unavailable(self, world: SqlWorld, user: str) -> None:
        with pytest.raises(SinkUnavailableError, match="does not answer") as error:
            world.sink_of(user, port="1").open("p")
        assert "s3cret" not in f"{error.value} {error.value.__cause__}"


class TestLedger:
    def test_any_number_of_runs_may_create_it_at_once(self, world: SqlWorld) -> None:
        def open_and_close(_: int) -> None:
            world.sink().open("p").close()

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(open_and_close, range(16))) == [None] * 16

    def test_opening_leaves_an_empty_ledger_and_nothing_else(self, world: SqlWorld) -> None:
        world.sink().open("p").close()
        assert world.tables() == {"eo_ledger"}
        assert world.rows("SELECT * FROM eo_ledger") == []

    def test_a_ledger_of_an_earlier_release_is_completed_and_goes_on(self, world: SqlWorld) -> None:
        """That release had no column ``identity``."""
        world.publish(world.sink(), staged(id=[1]))
        world.run("ALTER TABLE eo_ledger DROP COLUMN identity")

        def open_and_close(_: int) -> None:
            world.sink().open("p").close()

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(open_and_close, range(8))) == [None] * 8
        with world.sink().open("p") as session:
            before = session.head()
        assert before is not None
        assert before.identity == Identity()
        after = world.publish(world.sink(), staged(id=[2]))
        assert after.identity.parent is None
        later = world.publish(world.sink(), staged(id=[3]))
        assert later.identity.parent == after.content_hash

    def test_an_entry_that_came_back_has_the_hash_it_was_sent_with(self, world: SqlWorld) -> None:
        """Whatever the database does to JSON and to times."""
        details = {"reason": "Grüße", "seconds": 5.0, "parts": [1e16, 1e-7, 0.1], "none": None}
        past = {"AAAAAAAAAAAAAAAAAAAAAQ": {TopicPartition("x", 10): 2**53 + 1}}
        first = replace(
            first_entry("p"),
            details=details,
            started_at=datetime(2013, 1, 1, 6, 15, 0, 250, tzinfo=timezone(timedelta(hours=1))),
            identity=Identity(sink={"mode": "append"}, past_topics=past),
        )
        with world.sink().open("p") as session:
            session.publish(first, StagedOutput())
            read = session.head()
        assert read is not None
        assert read.content_hash == first.content_hash
        assert read.identity == first.identity

    def test_two_pipelines_cannot_have_one_table(self, world: SqlWorld) -> None:
        world.publish(world.sink(), staged(id=[1]), pipeline="flights")
        with pytest.raises(
            ConfigError, match=rf"{world.schema}\.t belongs to pipeline 'flights'.*'delays'"
        ):
            world.sink().open("delays")

    def test_of_two_pipelines_that_start_on_one_table_one_is_refused(self, world: SqlWorld) -> None:
        with world.sink().open("flights") as one, world.sink().open("delays") as two:
            one.publish(first_entry("flights"), StagedOutput())
            with pytest.raises(ConfigError, match=r"belongs to pipeline 'flights'.*'delays'"):
                two.publish(first_entry("delays"), StagedOutput())

    def test_pipelines_with_tables_of_their_own_share_a_ledger(self, world: SqlWorld) -> None:
        world.publish(world.sink(), staged(id=[1]), pipeline="flights")
        world.publish(world.sink(table="d"), staged(id=[1]), pipeline="delays")
        with world.sink().open("flights") as session:
            assert [entry.version for entry in session.history()] == [0, 1]

    def test_a_pipeline_cannot_move_to_another_table_by_itself(self, world: SqlWorld) -> None:
        world.publish(world.sink(), staged(id=[1]))
        moved = rf"publishes into {world.schema}\.t.*not into {world.schema}\.other"
        with pytest.raises(ConfigError, match=moved):
            world.sink(table="other").open("p")

    @pytest.mark.parametrize(
        ("version", "parent", "parent_id", "constraint"),
        [
            (0, "NULL", "NULL", "eo_ledger_pkey|PRIMARY"),
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
        self, world: SqlWorld, version: int, parent: str, parent_id: str, constraint: str
    ) -> None:
        world.sink().open("p").close()
        insert = (
            "INSERT INTO eo_ledger (pipeline, ledger_id, version, transaction_id, parent_version,"
            " parent_transaction_id, operation, target_table, offsets, ranges, topic_ids, counts,"
            " run_id, started_at, details) VALUES ('p', 'l', {}, '{}', {}, {}, 'start', '{}',"
            " '{{}}', '{{}}', '{{}}', '{{}}', '', now(), '{{}}')"
        )
        world.run(insert.format(0, "0", "NULL", "NULL", "t"))
        if constraint == "eo_ledger_parent" and not world.checks_parents:
            world.run(insert.format(version, "rival", parent, parent_id, "another table"))
            return  # it is taken without a word: the next tests say who refuses it then
        errors = (psycopg.IntegrityError, pymysql.IntegrityError, pymysql.OperationalError)
        with pytest.raises(errors, match=constraint):
            world.run(insert.format(version, "rival", parent, parent_id, "another table"))

    @pytest.mark.parametrize("is_constrained", [True, False])
    def test_a_parent_that_is_another_by_now_is_fenced_by_the_commit(
        self, world: SqlWorld, is_constrained: bool
    ) -> None:
        """Scenario: a backup with another entry came back after the look. Outcome: fenced, also
        where nothing but the commit itself compares.
        """
        with world.sink().open("p") as session:
            entry = started(session)
            if not is_constrained:
                world.run("ALTER TABLE eo_ledger DROP CONSTRAINT eo_ledger_parent")
            swap = "UPDATE eo_ledger SET transaction_id = 'another'"
            came_back = at(CrashPoint.ROWS_SENT, lambda: world.run(swap))
            with pytest.raises(FencedError):
                session.publish(entry, StagedOutput(staged(id=[1, 2, 3])), came_back)
            assert session.entry(1) is None
        assert world.is_untouched()

    def test_a_ledger_that_lost_its_key_is_refused(self, world: SqlWorld) -> None:
        """As after a copy by CREATE TABLE ... AS SELECT."""
        world.publish(world.sink(), staged(id=[1]))
        world.run("CREATE TABLE kept AS SELECT * FROM eo_ledger")
        world.run("DROP TABLE eo_ledger")
        world.run("ALTER TABLE kept RENAME TO eo_ledger")
        with pytest.raises(ConfigError, match=r"eo_ledger has lost its primary key.*ADD PRIMARY"):
            world.sink().open("p")


class TestTheLedgersEnd:
    """An entry that was deleted by hand is missed by the rows of its checkpoint."""

    def test_its_dead_letters_are_missed_as_its_rows_are(self, world: SqlWorld) -> None:
        with world.sink().open("p") as session:
            bad = StagedOutput(dead_letters=dead_letters(1, [b"x"]))
            session.publish(child_of(started_without_rows(session), bad), bad)
            assert not session.has_later_rows(thorough=True)
            world.run("DELETE FROM eo_ledger WHERE version = 1")
            with pytest.raises(LedgerDamagedError, match="version 1 is missing"):
                session.refuse_later_rows(session.head(), thorough=False)

    def test_a_column_that_was_added_to_a_table_has_the_index_too(self, world: SqlWorld) -> None:
        world.run("CREATE TABLE t (id bigint)")
        numbered = {CHECKPOINT_COLUMN: [1, 1]}
        world.publish(world.sink(), staged(id=[1, 2], **numbered))
        world.run("DELETE FROM eo_ledger WHERE version = 1")
        with world.sink().open("p") as session:
            assert session.has_later_rows(thorough=True)

    def test_an_index_answers(self, world: SqlWorld) -> None:
        """However many rows there are, a run that finds nothing new looks at none of them."""
        many = staged(id=[*range(5000)], **{CHECKPOINT_COLUMN: [1] * 5000})
        world.publish(world.sink(), many)
        with world.sink().open("p") as session:
            assert isinstance(session, SqlSession)
            assert rows_looked_at(world, session) < 100

    def test_newest_pages_answer_where_staging_knows_the_ledger(self, world: SqlWorld) -> None:
        """BRIN reads every page that autovacuum has not summarized: all of a bulk load."""
        name = '"a % b\'s"'
        many = staged(id=[*range(40_000)], **{CHECKPOINT_COLUMN: [1] * 40_000})
        world.publish(world.sink(table=name), many)
        with world.sink(table=name).open("p") as session:
            assert isinstance(session, SqlSession)
            assert not session.has_later_rows(thorough=False)
            if isinstance(world, postgres_world.World):
                question = session.table.has_later("1", thorough=False).replace("%%", "%")
                world.run("SET enable_seqscan = off; SET enable_bitmapscan = off")
                plan = str(world.rows(f"EXPLAIN SELECT {question}"))
                assert "Tid Range Scan" in plan
                assert "Seq Scan on" not in plan
            world.run("DELETE FROM eo_ledger WHERE version = 1")
            assert session.has_later_rows(thorough=False)

    def test_a_table_that_is_locked_holds_up_no_run_that_staging_knows(
        self, world: SqlWorld
    ) -> None:
        world.publish(world.sink(), staged(id=[1], **{CHECKPOINT_COLUMN: [1]}))
        if not isinstance(world, postgres_world.World):
            pytest.skip("readers wait for nobody")
        with world.in_transaction("LOCK t IN ACCESS EXCLUSIVE MODE"):
            with world.sink().open("p") as session:
                assert not session.has_later_rows(thorough=False)
            with (
                world.sink(lock_timeout=world.SHORTEST_TIMEOUT).open("p") as session,
                pytest.raises(SinkUnavailableError),
            ):
                session.has_later_rows(thorough=True)


def started_without_rows(session: SinkSession) -> LedgerEntry:
    start = first_entry("p")
    session.publish(start, StagedOutput())
    return start


def rows_looked_at(world: SqlWorld, session: SqlSession) -> int:
    """By a question for later rows."""
    if isinstance(world, postgres_world.World):
        looked = (
            "SELECT coalesce(sum(seq_tup_read), 0)::int AS n FROM pg_stat_user_tables"
            " WHERE relname = 't'"
        )
        world.rows("SELECT brin_summarize_new_values('t__eo_checkpoint_idx')")
        before = world.rows(looked)[0]["n"]
        session.has_later_rows(thorough=True)
        session.close()
        ours = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'eo%'"
        wait_until(lambda: not world.rows(ours))
        return int(world.rows(looked)[0]["n"]) - int(before)
    session.store.execute("FLUSH STATUS")
    session.has_later_rows(thorough=True)
    read = session.store.rows("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(count) for _, count in read)


class TestReset:
    def test_a_table_is_used_again_and_again(self, world: SqlWorld) -> None:
        """Found before: the pipeline worked once, and then the table was another ledger's."""
        for _ in range(3):
            with world.sink().open("p") as session:
                assert session.verified(session.recover()) is None
                head = session.identified(first_entry("p"))
                session.publish(head, StagedOutput())
                for number in (1, 2):
                    head = session.identified(child_of(head, 1))
                    rows = staged(id=[number], **{CHECKPOINT_COLUMN: [number]})
                    session.publish(head, StagedOutput(rows))
                    assert session.verified(session.head()) == session.head()
                session.reset(dry_run=False)
            assert world.rows() == []

    def test_a_table_of_another_ledger_is_not_taken_over_with_its_rows(
        self, world: SqlWorld
    ) -> None:
        rows = staged(id=[1], **{CHECKPOINT_COLUMN: [1]})
        world.publish(world.sink(), rows)
        world.publish(world.sink(table="other"), pipeline="q")
        world.run("DELETE FROM eo_ledger WHERE pipeline = 'p' AND version = 1")
        world.run("DELETE FROM eo_ledger WHERE pipeline = 'p'")
        world.run("ALTER TABLE t RENAME TO other")
        with pytest.raises(TableReplacedError, match="was made for another ledger"):
            world.publish(world.sink(table="other"), rows, pipeline="q")
        assert len(world.rows("SELECT * FROM other")) == 1


class TestDeadLetters:
    """Two pipelines name one table for dead letters, from which a rewind deletes by version."""

    @staticmethod
    def publish_letters(sink: SqlSink, pipeline: str) -> LedgerEntry:
        with sink.open(pipeline) as session:
            head = session.verified(session.head())
            if head is None:
                head = first_entry(pipeline)
                session.publish(head, StagedOutput())
            version = head.version + 1
            output = StagedOutput(at_version(version), dead_letters(version, [b"{", b"}"]))
            entry = child_of(head, output)
            session.publish(entry, output)
        return entry

    def test_the_second_is_refused_and_nothing_of_the_first_is_lost(self, world: SqlWorld) -> None:
        first = self.publish_letters(world.sink(dead_letter_table="bad"), "p")
        second = world.sink(table="u", dead_letter_table="bad")
        with pytest.raises(ConfigError, match=r"bad holds the dead letters of pipeline 'p'"):
            self.publish_letters(second, "q")
        with second.open("q") as session:
            head = session.head()
            assert head is not None
            back = child_of(head, operation=Operation.REWIND, target=0)
            with pytest.raises(ConfigError, match="of pipeline 'p'"):
                session.publish(back, StagedOutput())
            with pytest.raises(ConfigError, match="of pipeline 'p'"):
                session.reset(dry_run=False)
        assert len(world.rows("SELECT * FROM bad")) == 2
        self.publish_letters(world.sink(table="u"), "q")
        self.publish_letters(world.sink(dead_letter_table="bad"), first.pipeline)
        assert len(world.rows("SELECT * FROM bad")) == 4

    def test_a_table_of_an_earlier_release_is_marked_and_one_without_rows_is_taken_over(
        self, world: SqlWorld
    ) -> None:
        sink = world.sink(dead_letter_table="bad")
        self.publish_letters(sink, "p")
        with sink.open("p") as session:
            assert isinstance(session, SqlSession)
            session.dead_letters.made_for = ""
            session.dead_letters.mark()
        self.publish_letters(sink, "p")
        with pytest.raises(ConfigError, match="of pipeline 'p'"):
            self.publish_letters(world.sink(table="u", dead_letter_table="bad"), "q")
        with sink.open("p") as session:
            session.reset(dry_run=False)
        self.publish_letters(world.sink(table="u", dead_letter_table="bad"), "q")
        with pytest.raises(ConfigError, match="of pipeline 'q'"):
            self.publish_letters(sink, "p")


def at_version(version: int) -> StagedTable:
    return staged(id=[version], **{CHECKPOINT_COLUMN: [version]})

"""PostgreSQL as services set it up, and its readers: publications, long reports, types that only it
judges.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import RefusedError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.columns import Bound
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, dead_letters, first_entry
from tests.sinks.postgres.postgres_world import World, staged, world
from tests.sinks.sql.sql_world import at

__all__ = ["world"]


def numbered(checkpoint: int, *ids: int, **more: object) -> StagedTable:
    return staged(id=[*ids], **{CHECKPOINT_COLUMN: [checkpoint] * len(ids)}, **more)


def count_by_a_reader(world: World) -> int:
    """Whose statements may not take half a second."""
    with psycopg.connect(world.dsn, options="-c statement_timeout=500") as reader:
        row = reader.execute("SELECT count(*) FROM t").fetchone()
    assert row is not None
    return int(row[0])


class TestReaders:
    @pytest.mark.parametrize(
        "wider",
        [numbered(2, 3, tail=["N1"]), staged(id=[2**40], **{CHECKPOINT_COLUMN: [2]})],
        ids=["new column", "wider type"],
    )
    def test_a_reader_waits_for_no_rows_of_a_changed_table(
        self, world: World, wider: StagedTable
    ) -> None:
        """Found before: whoever read while a checkpoint with a new column was sent, waited for it
        to the end.
        """
        world.run(f"CREATE TABLE t (id integer, {CHECKPOINT_COLUMN} bigint)")
        world.publish(world.sink(), staged(id=pa.array([1, 2], pa.int32()), _eo_checkpoint=[1, 1]))
        seen: list[int] = []
        with world.sink().open("p") as session:
            head = session.head()
            assert head is not None
            look = at(CrashPoint.ENTRY_SENT, lambda: seen.append(count_by_a_reader(world)))
            session.publish(child_of(head, 1), StagedOutput(wider), look)
        assert seen == [2]
        assert world.count() == 3

    def test_behind_a_long_report_others_read_on_and_the_column_comes_when_it_ends(
        self, world: World
    ) -> None:
        """Whoever waits for a lock lets nobody pass: so it does not wait long, and tries again."""
        world.publish(world.sink(), numbered(1, 1, 2))
        with ThreadPoolExecutor(1) as threads:
            with world.in_transaction("SELECT FROM t"):
                wider = numbered(2, 3, tail=["N1"])
                publishing = threads.submit(world.publish, world.sink(), wider)
                assert [count_by_a_reader(world) for _ in range(40)] == [2] * 40
                assert not publishing.done()
            publishing.result()
        assert world.count() == 3

    def test_a_report_that_does_not_end_is_waited_for_as_long_as_is_said(
        self, world: World
    ) -> None:
        world.publish(world.sink(), numbered(1, 1))
        with (
            world.in_transaction("SELECT FROM t"),
            pytest.raises(SinkUnavailableError, match="55P03"),
        ):
            world.publish(world.sink(lock_timeout=0.5), numbered(2, 3, tail=["N1"]))
        assert world.count() == 1


def rewound(session: SinkSession, head: LedgerEntry) -> None:
    session.publish(child_of(head, operation=Operation.REWIND, target=1), StagedOutput())


def replayed(session: SinkSession, head: LedgerEntry) -> None:
    again = StagedOutput(numbered(2, 5))
    session.publish(child_of(head, again, operation=Operation.REPLAY, target=2), again)


def dropped(session: SinkSession, head: LedgerEntry) -> None:
    session.reset(dry_run=False)


class TestPublication:
    """FOR ALL TABLES, as a service that follows the log has it: PostgreSQL takes no DELETE from a
    table then that has no replica identity.
    """

    @pytest.fixture
    def published(self, world: World) -> World:
        world.run("CREATE PUBLICATION everything FOR ALL TABLES")
        return world

    def written(self, session: SinkSession) -> LedgerEntry:
        head = first_entry("p")
        session.publish(head, StagedOutput())
        for number in (1, 2):
            bad = dead_letters(number, [b"x"])
            output = StagedOutput(numbered(number, number), bad)
            head = child_of(head, output)
            session.publish(head, output)
        return head

    @pytest.mark.parametrize("goes_back", [rewound, replayed, dropped])
    @pytest.mark.parametrize("made_before", [False, True])
    def test_rows_can_be_taken_back(
        self,
        published: World,
        goes_back: Callable[[SinkSession, LedgerEntry], None],
        made_before: bool,
    ) -> None:
        with published.sink().open("p") as session:
            head = self.written(session)
            if made_before:  # by a release that gave its tables none
                for table in ("t", "t_dead_letters"):
                    published.run(f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT")
            goes_back(session, head)

    def test_a_table_of_somebody_else_is_refused_at_once_with_the_remedy(
        self, published: World
    ) -> None:
        with published.sink().open("p") as session:
            head = self.written(session)
        published.run("ALTER TABLE t REPLICA IDENTITY NOTHING")
        user = published.make_user()
        try:
            for table in ("t", "t_dead_letters", "eo_ledger"):
                published.grant(user, "ALL", table)
            with published.sink_of(user).open("p") as session:
                back = child_of(head, operation=Operation.REWIND, target=1)
                with pytest.raises(RefusedError, match=r"ALTER TABLE t REPLICA IDENTITY FULL"):
                    session.check_going_back(back)
        finally:
            published.drop_user(user)

    def test_rows_are_replaced_in_a_table_without_a_primary_key(self, published: World) -> None:
        published.run("CREATE TABLE t (id bigint UNIQUE, name text)")
        sink = published.sink(mode="upsert", key=["id"], sequence_by=["name"])
        published.publish(sink, staged(id=[1], name=["a"]))
        published.publish(sink, staged(id=[1], name=["b"]))
        assert published.rows("SELECT name FROM t") == [{"name": "b"}]


class TestValuesThatOnlyTheServerJudges:
    def test_the_records_are_found_by_halves(self, world: World) -> None:
        world.run("CREATE TYPE mood AS ENUM ('good', 'bad')")
        world.run("CREATE DOMAIN small AS bigint CHECK (VALUE < 100)")
        world.run(
            "CREATE TABLE t (id uuid, feels mood, at inet, doc jsonb, n small,"
            " m bigint CHECK (m > 0))"
        )
        good = ("2c1f0d4e-0000-4000-8000-000000000000", "good", "10.0.0.1", "{}", 1, 1)
        wrong = ("no uuid", "merry", "10.0.0.300", "{", 100, 0)
        rows = [[*good] for _ in range(500)]
        for place, value in enumerate(wrong):
            rows[77 * place][place] = value
        columns = dict(
            zip(
                ("id", "feels", "at", "doc", "n", "m"),
                map(list, zip(*rows, strict=True)),
                strict=True,
            )
        )
        origin = {
            "_eo_topic": ["x"] * 500,
            "_eo_partition": pa.array([0] * 500, pa.int32()),
            "_eo_offset": [*range(1000, 1500)],
            CHECKPOINT_COLUMN: [1] * 500,
        }
        output = StagedOutput(staged(**columns, **origin))
        with world.sink().open("p") as session:
            session.publish(first_entry("p"), StagedOutput())
            head = session.head()
            assert head is not None
            with pytest.raises(RefusedError) as refused:
                session.publish(child_of(head, output), output)
            found = session.refused_records(refused.value, output, 1000)
            assert [each["offset"] for each in found] == [1000 + 77 * n for n in range(6)]
            said = [each["error"] for each in found]
            for text, word in zip(
                said, ("uuid", "enum", "inet", "json", "domain", "check"), strict=True
            ):
                assert word in text
            assert len(session.refused_records(refused.value, output, 2)) == 2
            bare = StagedOutput(staged(**columns))
            assert session.refused_records(refused.value, bare, 2) == []
        assert world.count() == 0
        assert world.tables() >= {"t", "eo_ledger"}

    def test_what_a_type_would_cut_in_silence_is_known(self, world: World) -> None:
        world.run(
            "CREATE TABLE t (a varchar(3), B char(5), c timestamp(0), d timestamptz(3), "
            "e timestamp, f text, g varchar, h timestamptz(6), i numeric(5,2))"
        )
        with world.sink().open("p") as session:
            bounds = session.bounds()
        text = {"a": Bound(True, 3), "b": Bound(True, 5)}
        assert bounds == {**text, "c": Bound(False, 0), "d": Bound(False, 3)}

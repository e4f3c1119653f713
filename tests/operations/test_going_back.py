"""Rewind, replay, fork and accepted losses, by an engine in its own process where one is killed;
compared from outside.
"""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    CompactedError,
    DataLossError,
    FencedError,
    GoingBackError,
    NothingToDoError,
    RangesGoneError,
    RefusedError,
    UnknownCheckpointError,
)
from eo_pipeline.ledger.entry import Operation
from tests.runs.test_two_runs import at
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Watcher, staged_attempts
from tests.support.servers import MakeTopic
from tests.support.topics import add_partitions, alter_topic, delete_records, recreate

SHOUTING = "tests.runs.transforms:shouting"


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Four checkpoints of 100 records, one version each: 1, 2, 3, 4."""
    bench.topic.write(400, partitions=range(4))
    bench.pipeline(inline_records=10_000).run()
    return bench


def by_checkpoint(bench: Bench) -> dict[int, int]:
    return dict(bench.table.query("select _eo_checkpoint, count(*) from events group by 1"))


def shouted(bench: Bench) -> set[int]:
    """Checkpoints whose rows the other transform wrote."""
    rows = bench.table.query("select distinct _eo_checkpoint from events where name = upper(name)")
    return {checkpoint for (checkpoint,) in rows}


class TestRewind:
    @pytest.mark.core
    def test_later_rows_leave_with_the_ledgers_step_and_the_next_run_reads_them_again(
        self, filled: Bench
    ) -> None:
        pipeline = filled.pipeline()
        with Watcher(filled.table, may_fall=True):
            report = pipeline.plan_rewind(2).apply(reason="a bad day", asked_by="ada")
            assert by_checkpoint(filled) == {1: 100, 2: 100}
            pipeline.run()
        (entry,) = report.entries
        assert (entry.operation, entry.version, entry.target) == (Operation.REWIND, 5, 2)
        assert entry.details["reason"] == "a bad day"
        assert entry.details["asked_by"] == "ada"
        assert entry.details["rows_removed"] == 200
        assert by_checkpoint(filled) == {1: 100, 2: 100, 6: 100, 7: 100}
        filled.table.assert_holds_once(filled.topic.written)

    def test_to_where_the_table_stands_already_there_is_nothing_to_do(self, filled: Bench) -> None:
        pipeline = filled.pipeline()
        with pytest.raises(NothingToDoError, match="stands at version 4 already"):
            pipeline.rewind(4)
        pipeline.rewind(2)
        with pytest.raises(NothingToDoError, match=r"version 2 already \(its head is 5\)"):
            pipeline.rewind(2)
        with pytest.raises(NothingToDoError):
            pipeline.rewind(5)
        pipeline.replay(1)
        with pytest.raises(NothingToDoError):
            pipeline.rewind(2)
        assert filled.table.versions() == [0, 1, 2, 3, 4, 5, 6]
        pipeline.rewind(1)
        pipeline.run()
        filled.table.assert_holds_once(filled.topic.written)

    @pytest.mark.core
    def test_a_plan_tells_what_would_change_and_changes_nothing(self, filled: Bench) -> None:
        before = filled.table.versions()
        plan = filled.pipeline().plan_rewind(1)
        assert [each.version for each in plan.checkpoints] == [2, 3, 4]
        assert (plan.rows, plan.records) == (300, 300)
        assert {(r.start, r.end) for r in plan.ranges} == {(25, 100)}
        assert plan.seconds is not None
        assert plan.seconds > 0
        assert filled.table.versions() == before
        assert by_checkpoint(filled) == {1: 100, 2: 100, 3: 100, 4: 100}

    @pytest.mark.core
    def test_a_moment_names_the_newest_version_committed_by_then(self, filled: Bench) -> None:
        pipeline = filled.pipeline()
        (moment,) = filled.table.query("select committed_at from eo_ledger where version = 3")[0]
        assert pipeline.plan_rewind(moment).target == pipeline.history()[3]
        with pytest.raises(UnknownCheckpointError, match="did not exist"):
            pipeline.rewind(moment - timedelta(days=1))
        with pytest.raises(GoingBackError, match="no time zone"):
            pipeline.rewind(datetime(2026, 1, 31))  # noqa: DTZ001
        with pytest.raises(NothingToDoError):
            pipeline.rewind(datetime.now(UTC))

    @pytest.mark.core
    def test_only_versions_on_the_live_branch_can_be_aimed_at(self, filled: Bench) -> None:
        pipeline = filled.pipeline()
        pipeline.rewind(1)
        with pytest.raises(UnknownCheckpointError, match="version 5 rewound to 1"):
            pipeline.rewind(3)
        with pytest.raises(UnknownCheckpointError, match="version 5 rewound to 1"):
            pipeline.replay(2)
        with pytest.raises(UnknownCheckpointError, match="the versions 0 to 5"):
            pipeline.rewind(6)
        pipeline.run()
        # the rewind itself stands: it can be gone back to, which leaves what it left
        pipeline.rewind(5)
        assert by_checkpoint(filled) == {1: 100}

    @pytest.mark.core(only=["entry_sent-False"])
    @pytest.mark.parametrize(
        ("point", "landed"),
        [
            (CrashPoint.ROWS_SENT, False),
            (CrashPoint.ENTRY_SENT, False),
            (CrashPoint.COMMITTED, True),
        ],
    )
    def test_killed_half_way_all_of_it_or_nothing_happened(
        self, filled: Bench, point: CrashPoint, landed: bool
    ) -> None:
        with Watcher(filled.table, may_fall=True):
            killed = filled.run_in_a_process("--rewind", "1", "--crash-at", point, "1")
            assert killed.wait(240) == -signal.SIGKILL
        assert filled.table.versions()[-1] == (5 if landed else 4)
        assert by_checkpoint(filled) == ({1: 100} if landed else dict.fromkeys(range(1, 5), 100))
        filled.pipeline().run()
        filled.table.assert_holds_once(filled.topic.written)

    @pytest.mark.core
    def test_of_a_rewind_and_a_forward_run_one_wins_and_the_other_is_told(
        self, filled: Bench
    ) -> None:
        pipeline = filled.pipeline()
        filled.topic.write(100, partitions=range(4))
        rewinds = at(CrashPoint.STAGED, lambda: filled.pipeline().rewind(2))
        with rewinds, pytest.raises(FencedError):
            pipeline.run()
        assert by_checkpoint(filled) == {1: 100, 2: 100}

        plan = pipeline.plan_rewind(1)
        runs = at(CrashPoint.RECOVERED, lambda: filled.pipeline().run())
        with runs, pytest.raises(FencedError, match="another run was faster"):
            plan.apply()
        filled.table.assert_holds_once(filled.topic.written)


class TestRefusals:
    """Everything is checked before anything changes."""

    @pytest.fixture(autouse=True)
    def nothing_changes(self, filled: Bench) -> Any:
        yield
        assert filled.table.versions()[:5] == [0, 1, 2, 3, 4]
        assert by_checkpoint(filled) == dict.fromkeys(range(1, 5), 100)

    @pytest.mark.core
    def test_records_that_left_kafka(self, filled: Bench, admin: AdminClient) -> None:
        delete_records(admin, filled.topic.name, 2, before=60)
        with pytest.raises(RangesGoneError) as gone:
            filled.pipeline().rewind(1)
        (loss,) = gone.value.losses
        assert (loss.partition, loss.expected, loss.beginning, loss.end) == (2, 25, 60, 100)
        with pytest.raises(RangesGoneError):
            filled.pipeline().replay(1, 3)
        with pytest.raises(RangesGoneError):
            filled.pipeline().plan_fork(2, "events-two", filled.config["sink"])
        # what is left can be gone back over
        assert filled.pipeline().plan_rewind(3).rows == 100

    def test_records_that_retention_is_about_to_take(
        self, filled: Bench, admin: AdminClient
    ) -> None:
        alter_topic(admin, filled.topic.name, {"retention.ms": str(30 * 60 * 1000)})
        with pytest.raises(RangesGoneError, match="retention may delete offsets below 100 within"):
            filled.pipeline().rewind(1)

    @pytest.mark.core
    def test_a_topic_that_was_created_again(self, filled: Bench, admin: AdminClient) -> None:
        recreate(admin, filled.topic.name)
        filled.topic.write(400, partitions=range(4))
        with pytest.raises(RangesGoneError, match="created again"):
            filled.pipeline().rewind(1)

    def test_a_topic_that_is_no_longer_read(self, filled: Bench, make_topic: MakeTopic) -> None:
        other = make_topic(partitions=1)
        with pytest.raises(RangesGoneError, match="no longer reads this topic"):
            filled.pipeline(source={"topics": [other]}).rewind(1)

    def test_a_compacted_topic_unless_accepted(self, filled: Bench, admin: AdminClient) -> None:
        alter_topic(admin, filled.topic.name, {"cleanup.policy": "compact"})
        with pytest.raises(CompactedError, match="accept_compacted"):
            filled.pipeline().replay(1)
        plan = filled.pipeline().plan_replay(1, accept_compacted=True)
        assert "fewer come back" in plan.warnings[0]

    @pytest.mark.core
    def test_a_replay_of_what_read_nothing(self, filled: Bench) -> None:
        with pytest.raises(UnknownCheckpointError, match="read nothing"):
            filled.pipeline().replay(versions=[0, 1])
        with pytest.raises(GoingBackError, match="nothing to replay"):
            filled.pipeline().replay(0, 0)
        with pytest.raises(GoingBackError, match="backwards"):
            filled.pipeline().replay(3, 2)


class TestReplay:
    @pytest.mark.core
    def test_the_same_ranges_with_todays_transform_replace_exactly_those_rows(
        self, filled: Bench
    ) -> None:
        pipeline = filled.pipeline(transform=SHOUTING)
        offsets = filled.pipeline().history()[-1].offsets
        with Watcher(filled.table):  # totals never fall: readers see old rows or new ones
            report = pipeline.replay(2, 3, reason="names were wrong")
        assert [(e.version, e.target) for e in report.entries] == [(5, 2), (6, 3)]
        assert {e.offsets == offsets for e in report.entries} == {True}
        assert shouted(filled) == {2, 3}
        filled.table.assert_holds_once(filled.topic.written)

        pipeline.replay(versions=[1, 3])
        assert shouted(filled) == {1, 2, 3}
        # a rewind spares the replayed rows of what it spares
        pipeline.rewind(2)
        assert by_checkpoint(filled) == {1: 100, 2: 100}
        head = pipeline.head()
        assert head is not None
        assert head.counts.rows_total == 200
        filled.table.assert_consistent()

    @pytest.mark.parametrize(
        "point",
        rest_is_chaos(
            [
                CrashPoint.STAGED,
                CrashPoint.PRE_COMMITTED,
                CrashPoint.ROWS_SENT,
                CrashPoint.ENTRY_SENT,
                CrashPoint.COMMITTED,
            ],
            but=[CrashPoint.STAGED, CrashPoint.PRE_COMMITTED, CrashPoint.ENTRY_SENT],
        ),
    )
    def test_killed_half_way_the_next_run_finishes_or_forgets_it(
        self, filled: Bench, point: CrashPoint
    ) -> None:
        with Watcher(filled.table):
            killed = filled.run_in_a_process(
                "--replay", "2", "3", "--crash-at", point, "1", transform=SHOUTING
            )
            assert killed.wait(240) == -signal.SIGKILL
            filled.pipeline().run()
        promised = point is not CrashPoint.STAGED
        assert shouted(filled) == ({2} if promised else set())
        filled.table.assert_holds_once(filled.topic.written)
        assert staged_attempts(filled) == [], "its owner is known to be dead by its lock"

    def test_while_new_records_arrive_and_are_read(self, filled: Bench) -> None:
        """Scenario: a forward run commits between two checkpoints of a replay. Outcome: the replay
        is told, what it had replayed stays, and it can be asked for the rest.
        """
        filled.topic.write(100, partitions=range(4))
        pipeline = filled.pipeline(transform=SHOUTING)
        runs = at(CrashPoint.REPORTED, lambda: filled.pipeline().run())
        with Watcher(filled.table):
            with runs, pytest.raises(FencedError):
                pipeline.replay(1, 3)
            pipeline.replay(2, 3)
        assert shouted(filled) == {1, 2, 3}
        filled.table.assert_holds_once(filled.topic.written)


class TestFork:
    @pytest.mark.core
    def test_a_new_pipeline_begins_where_the_old_one_stood(self, filled: Bench) -> None:
        sink = {**filled.config["sink"], "table": "events_two"}
        pipeline = filled.pipeline()
        forked = pipeline.fork(2, "events-two", sink, reason="try a schema")
        (first,) = forked.history()
        assert first.operation is Operation.FORK
        assert first.details["forked_from"]["version"] == 2
        report = forked.run()
        assert report.records == 200
        ids = filled.table.query("select min(id), count(*) from events_two")
        assert ids == [(200, 200)]
        filled.table.assert_holds_once(filled.topic.written)
        with pytest.raises(GoingBackError, match="has a ledger already"):
            pipeline.fork(1, "events-two", sink)


class TestAcceptLoss:
    @pytest.mark.core
    def test_the_hole_is_a_version_of_its_own_and_is_named_for_ever(
        self, filled: Bench, admin: AdminClient
    ) -> None:
        pipeline = filled.pipeline()
        with pytest.raises(NothingToDoError):
            pipeline.accept_loss("nothing is wrong")
        filled.topic.write(100, partitions=range(4))
        delete_records(admin, filled.topic.name, 1, before=110)
        with pytest.raises(DataLossError, match="eo accept-loss"):
            pipeline.run()
        (loss,) = pipeline.status().losses
        assert (loss.expected, loss.beginning) == (100, 110)

        plan = pipeline.plan_accept_loss()
        assert plan.losses == (loss,)
        (entry,) = plan.apply(reason="the broker's disk died", asked_by="ada").entries

        (hole,) = entry.details["holes"]
        assert (hole["partition"], hole["expected"], hole["resumed_at"]) == (1, 100, 110)
        assert entry.details["asked_by"] == "ada"
        pipeline.run()
        lost = {c for c in filled.topic.written if c[1] == 1 and 100 <= c[2] < 110}
        filled.table.assert_holds_once(filled.topic.written - lost)
        # going back before the hole would need the records that are gone
        with pytest.raises(RangesGoneError):
            pipeline.rewind(4)


@pytest.mark.core
def test_upserted_rows_have_no_past_and_that_is_said_before_anything_changes(
    bench: Bench,
) -> None:
    bench.topic.write(200, partitions=range(4))
    pipeline = bench.pipeline(sink={"mode": "upsert", "key": ["id"]}, inline_records=10_000)
    pipeline.run()
    with pytest.raises(RefusedError, match="fork"):
        pipeline.plan_rewind(1)
    with pytest.raises(RefusedError, match="fork"):
        pipeline.replay(1)
    assert bench.table.versions() == [0, 1, 2]


def test_a_partition_that_came_later_is_read_from_its_beginning_again(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(100, partitions=range(4))
    bench.pipeline().run()
    add_partitions(admin, bench.topic.name, 5)
    bench.topic.write(40, partitions=[4])
    bench.pipeline().run()
    bench.pipeline().rewind(1)
    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)

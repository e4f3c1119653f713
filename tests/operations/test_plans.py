"""A change is looked at as a plan and then applied: exactly as shown, or not at all."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.errors import (
    ConfigError,
    DataLossError,
    RangesGoneError,
    RefusedError,
    StalePlanError,
)
from eo_pipeline.operations.change_plan import ChangePlan
from eo_pipeline.testing import CrashRequested, raise_at
from tests.operations.test_going_back import by_checkpoint, filled
from tests.support.engine import Bench, staged_attempts
from tests.support.servers import MakeTopic
from tests.support.topics import delete_records

__all__ = ["filled"]


class TestPlans:
    """What was looked at is what happens, or nothing."""

    @pytest.mark.core
    def test_every_plan_is_refused_once_the_ledger_has_moved_on(
        self, filled: Bench, admin: AdminClient
    ) -> None:
        pipeline = filled.pipeline()
        sink = {**filled.config["sink"], "table": "events_two"}
        plans: list[ChangePlan] = [
            pipeline.plan_rewind(2),
            pipeline.plan_replay(2, 3),
            pipeline.plan_fork(2, "events-two", sink),
        ]
        filled.topic.write(100, partitions=range(4))
        delete_records(admin, filled.topic.name, 1, before=110)
        plans.append(pipeline.plan_accept_loss())
        pipeline.accept_loss("faster")
        for plan in plans:
            with pytest.raises(StalePlanError, match="at version 4; now it is at version 5"):
                plan.apply()
        assert filled.table.versions() == [0, 1, 2, 3, 4, 5]
        assert by_checkpoint(filled) == dict.fromkeys(range(1, 5), 100)
        assert pipeline.forked("events-two", sink).head() is None

    def test_what_a_dead_run_promised_is_committed_first_and_needs_another_look(
        self, filled: Bench
    ) -> None:
        pipeline = filled.pipeline(inline_records=0)
        filled.topic.write(100, partitions=range(4))
        with reaching(raise_at(CrashPoint.PRE_COMMITTED)), pytest.raises(CrashRequested):
            pipeline.run()
        plan = pipeline.plan_rewind(2)
        heard: list[tuple[int, bool]] = []
        with pytest.raises(StalePlanError, match="now it is at version 5"):
            plan.apply(on_checkpoint=lambda r: heard.append((r.entry.version, r.recovered)))
        assert heard == [(5, True)]
        filled.table.assert_holds_once(filled.topic.written)
        assert pipeline.plan_rewind(2).rows == 300

    def test_without_a_plan_to_look_at_it_is_made_after_that(self, filled: Bench) -> None:
        pipeline = filled.pipeline(inline_records=0)
        filled.topic.write(100, partitions=range(4))
        with reaching(raise_at(CrashPoint.PRE_COMMITTED)), pytest.raises(CrashRequested):
            pipeline.run()
        (entry,) = pipeline.rewind(2, reason="at once").entries
        assert (entry.version, entry.details["rows_removed"]) == (6, 300)
        assert by_checkpoint(filled) == {1: 100, 2: 100}

    def test_what_left_kafka_since_it_was_looked_at_is_found_before_anything_changes(
        self, filled: Bench, admin: AdminClient
    ) -> None:
        sink = {**filled.config["sink"], "table": "events_two"}
        pipeline = filled.pipeline()
        plans: list[ChangePlan] = [
            pipeline.plan_rewind(2),
            pipeline.plan_replay(3),
            pipeline.plan_fork(2, "events-two", sink),
        ]
        delete_records(admin, filled.topic.name, 2, before=60)
        for plan in plans:
            with pytest.raises(RangesGoneError):
                plan.apply()
        assert filled.table.versions() == [0, 1, 2, 3, 4]

    def test_a_loss_that_was_not_shown_is_not_accepted(
        self, filled: Bench, admin: AdminClient
    ) -> None:
        pipeline = filled.pipeline()
        filled.topic.write(100, partitions=range(4))
        delete_records(admin, filled.topic.name, 1, before=110)
        plan = pipeline.plan_accept_loss()
        delete_records(admin, filled.topic.name, 1, before=115)
        delete_records(admin, filled.topic.name, 2, before=110)
        (entry,) = plan.apply(reason="only partition 1").entries
        (hole,) = entry.details["holes"]
        assert (hole["partition"], hole["resumed_at"]) == (1, 115)
        with pytest.raises(DataLossError, match=r"\[2\]"):
            pipeline.run()

    @pytest.mark.core
    def test_a_plan_says_in_a_line_what_it_does(self, filled: Bench) -> None:
        pipeline = filled.pipeline()
        sink = {**filled.config["sink"], "table": "events_two"}
        assert str(pipeline.plan_rewind(2)) == (
            "rewind of events from version 4 to 2: removes 200 rows of 2 checkpoints"
        )
        assert str(pipeline.plan_replay(3)) == (
            "replay in events at version 4: reads again and replaces 100 rows of 1 checkpoint"
        )
        assert str(pipeline.plan_fork(1, "events-two", sink)) == (
            "fork of events at version 1: the new pipeline reads again 300 rows of 3 checkpoints"
        )
        with pytest.raises(ConfigError, match="name"):
            pipeline.plan_fork(1, "Events Two", sink)


class TestReset:
    @pytest.mark.core
    def test_rows_ledger_and_staging_go_and_the_next_run_starts_anew(self, filled: Bench) -> None:
        filled.table.execute("alter table events add mine text")
        filled.table.execute("insert into events (mine) values ('not the pipeline''s')")
        pipeline = filled.pipeline(inline_records=0)
        filled.topic.write(100, partitions=range(4))
        with reaching(raise_at(CrashPoint.PRE_COMMITTED)), pytest.raises(CrashRequested):
            pipeline.run()
        plan = pipeline.plan_reset()
        assert plan.drops == (
            "400 rows of public.events",
            "5 versions of the ledger in public.eo_ledger",
            "1 staged attempt",
        )
        assert filled.table.query("select count(*) from events") == [(401,)]
        plan.apply()
        assert staged_attempts(filled) == []
        assert filled.table.query("select mine from events") == [("not the pipeline's",)]
        assert pipeline.head() is None
        pipeline.reset()
        assert pipeline.run().records == 500

    @pytest.mark.core
    def test_a_run_in_between_keeps_everything(self, filled: Bench) -> None:
        plan = filled.pipeline().plan_reset()
        filled.topic.write(4, partitions=range(4))
        filled.pipeline().run()
        with pytest.raises(StalePlanError):
            plan.apply()
        filled.table.assert_holds_once(filled.topic.written)

    def test_a_sink_that_cannot_says_what_to_delete_by_hand(
        self, filled: Bench, make_topic: MakeTopic
    ) -> None:
        kafka = {"bootstrap_servers": filled.topic.bootstrap_servers, "topic": make_topic()}
        pipeline = filled.pipeline().forked("copied", {"type": "kafka", **kafka})
        with pytest.raises(RefusedError, match="By hand: delete its table"):
            pipeline.plan_reset()

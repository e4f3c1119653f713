"""The sensors over several ticks and restarts, on a real topic and a real ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from eo_pipeline.dagster.mirror import of_entry
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.dagster.runs import pause_after_failures
from eo_pipeline.dagster.sensors import (
    Tick,
    build_sensors,
    check_lag,
    check_partitions,
    reconcile,
)
from eo_pipeline.embedded.ports import free_port
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.errors import SinkUnavailableError, SourceUnavailableError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.partitions import Cluster
from tests.dagster.steps import materialize, versions
from tests.support.engine import Bench
from tests.support.servers import own_postgres, wait_until

postgres = own_postgres


def add_partitions(bench: Bench, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": bench.topic.bootstrap_servers, "log_level": 0})
    topic = bench.topic.name
    admin.create_partitions([NewPartitions(topic, total)])[topic].result()
    wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == total)


def skipped(tick: Tick) -> str:
    """Why a tick did nothing."""
    if isinstance(tick, dg.SensorResult):
        assert not tick.run_requests
        return str(tick.skip_reason.skip_message if tick.skip_reason else None)
    assert isinstance(tick, dg.SkipReason), tick
    return str(tick.skip_message)


def requested(tick: Tick) -> dg.RunRequest:
    """The one run that a tick asks for."""
    [request] = result(tick).run_requests or []
    return request


def result(tick: Tick) -> dg.SensorResult:
    assert isinstance(tick, dg.SensorResult), tick
    return tick


def apply(instance: dg.DagsterInstance, tick: Tick) -> str | None:
    """What the daemon does with a tick's events and partitions; gives its cursor."""
    answer = result(tick)
    for event in answer.asset_events:
        instance.report_runless_asset_event(event)
    for request in answer.dynamic_partitions_requests or []:
        name, keys = request.partitions_def_name, request.partition_keys
        if isinstance(request, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(name, keys)
        else:
            for key in keys:
                instance.delete_dynamic_partition(name, key)
    return answer.cursor


class TestLag:
    @pytest.mark.core
    def test_a_run_is_requested_as_long_as_something_waits(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        bench.topic.write(20)
        first = requested(check_lag(declared, instance))
        assert first.run_key is None
        assert first.tags["eo/lag"] == "20"
        materialize(declared, instance)
        assert "lag 0, below 1; ledger at version 1" in skipped(check_lag(declared, instance))
        bench.topic.write(5)
        assert requested(check_lag(declared, instance))

    def test_an_empty_topic_gets_one_run_that_writes_down_where_reading_starts(
        self, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        assert requested(check_lag(declared, instance))
        materialize(declared, instance)
        assert versions(instance, declared.offsets) == [0]
        assert "lag 0" in skipped(check_lag(declared, instance))

    def test_below_the_threshold_nothing_happens(
        self, bench: Bench, instance: dg.DagsterInstance
    ) -> None:
        declared = DagsterPipeline(bench.pipeline(), Automation(lag_threshold=10))
        materialize(declared, instance)
        bench.topic.write(9)
        assert "lag 9, below 10" in skipped(check_lag(declared, instance))
        bench.topic.write(1)
        assert requested(check_lag(declared, instance))

    @pytest.mark.core
    def test_a_run_that_waits_or_works_is_not_doubled(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        bench.topic.write(20)
        run = instance.add_run(
            dg.DagsterRun(
                job_name=declared.job,
                run_id="0" * 32,
                tags=declared.run_tags,
                status=dg.DagsterRunStatus.STARTED,
            )
        )
        assert run.run_id[:8] in skipped(check_lag(declared, instance))

    def test_failures_in_a_row_make_the_pause_grow_and_a_success_ends_it(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        bench.topic.write_value(b"not json")
        pauses = []
        for _ in range(3):
            failed = materialize(declared, instance)
            assert not failed.success
            [record] = instance.get_run_records(limit=1)
            assert record.end_time is not None
            pauses.append(pause_after_failures(instance, declared, now=record.end_time))
        assert [p.total_seconds() for p in pauses if p] == [30, 60, 120]
        assert "the last run failed" in skipped(check_lag(declared, instance))
        lenient = bench.pipeline(source={"on_bad_record": "dead_letter"})
        materialize(DagsterPipeline(lenient, declared.automation), instance)
        assert "lag 0" in skipped(check_lag(declared, instance))


class TestPartitions:
    @pytest.mark.core
    def test_new_partitions_are_told_once_also_after_a_restart(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        assert "No ledger yet" in skipped(check_partitions(declared, None))
        materialize(declared, instance)
        first = result(check_partitions(declared, None))
        assert "no new partition; 4 known" in skipped(first)
        assert "no new partition" in skipped(check_partitions(declared, first.cursor))

        add_partitions(bench, 6)
        found = result(check_partitions(declared, first.cursor))

        name = bench.topic.name
        [request] = found.run_requests or []
        assert request.tags["eo/new_partitions"] == f"{name}[4], {name}[5]"
        [observation] = found.asset_events
        assert observation.asset_key == declared.topic(name)
        assert observation.description == f"new: {name}[4], {name}[5]"
        # the daemon died before it kept the cursor: the same run key, so no second run
        again = result(check_partitions(declared, first.cursor))
        assert [r.run_key for r in again.run_requests or []] == [request.run_key]
        assert "no new partition; 6 known" in skipped(check_partitions(declared, found.cursor))

    def test_a_sensor_that_lost_its_memory_finds_what_no_run_has_taken_up(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        materialize(declared, instance)
        add_partitions(bench, 5)
        found = result(check_partitions(declared, None))
        assert len(found.run_requests or []) == 1
        bench.topic.write(5, partitions=[4])
        materialize(declared, instance)
        assert "no new partition; 5 known" in skipped(check_partitions(declared, None))
        bench.table.assert_holds_once(bench.topic.written)

    def test_the_topics_of_a_pattern_share_one_asset(
        self, bench: Bench, instance: dg.DagsterInstance
    ) -> None:
        source = {"topics": [], "topic_pattern": f"{bench.topic.name}.*"}
        declared = DagsterPipeline(bench.pipeline(source=source), Automation())
        materialize(declared, instance)
        add_partitions(bench, 5)
        found = result(check_partitions(declared, None))
        assert [e.asset_key.path for e in found.asset_events] == [["kafka", "events_topics"]]


class TestReconciler:
    @pytest.mark.core
    def test_what_ran_without_dagster_appears_in_dagster_once(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        bench.topic.write(150, partitions=range(4))
        declared.pipeline.run()
        cursor = apply(instance, reconcile(declared, instance, None))
        assert versions(instance, declared.offsets) == [0, 1, 2]
        assert versions(instance, declared.table) == [1, 2]
        for _ in range(2):
            tick = reconcile(declared, instance, cursor)
            assert "event log is complete up to version 2" in skipped(tick)
            cursor = result(tick).cursor
        # without its memory it finds everything reported, too
        assert "up to version 2" in skipped(reconcile(declared, instance, None))

    def test_a_gap_below_a_version_that_was_reported_is_mended_and_the_newest_stays_last(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        materialize(declared, instance)
        for _ in range(2):
            bench.topic.write(20)
            declared.pipeline.run(run_id="killed before it could report")
        for event in of_entry(declared, declared.pipeline.history()[2]):
            instance.report_runless_asset_event(event.materialization())
        assert versions(instance, declared.offsets) == [0, 2]

        cursor = apply(instance, reconcile(declared, instance, None))

        assert versions(instance, declared.offsets) == [0, 2, 1, 2]
        assert versions(instance, declared.table) == [2, 1, 2]
        assert "event log is complete up to version 2" in skipped(
            reconcile(declared, instance, cursor)
        )

    def test_a_run_that_is_working_reports_itself(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        bench.topic.write(20)
        declared.pipeline.run(run_id="0" * 32)
        instance.add_run(
            dg.DagsterRun(
                job_name=declared.job,
                run_id="0" * 32,
                tags=declared.run_tags,
                status=dg.DagsterRunStatus.STARTED,
            )
        )
        assert "reports its own commits" in skipped(reconcile(declared, instance, None))

    @pytest.mark.core
    def test_a_ledger_that_was_replaced_is_compared_from_its_start(
        self, bench: Bench, declared: DagsterPipeline, instance: dg.DagsterInstance
    ) -> None:
        bench.topic.write(20)
        declared.pipeline.run()
        cursor = apply(instance, reconcile(declared, instance, None))
        bench.table.execute("drop table events; drop table eo_ledger")
        fresh = DagsterPipeline(
            bench.pipeline(staging=bench.config["staging"] + "-2"), Automation()
        )
        fresh.pipeline.run()

        apply(instance, reconcile(fresh, instance, cursor))

        assert versions(instance, declared.offsets) == [0, 1, 0, 1]


@pytest.fixture
def postgres_down(postgres: EmbeddedPostgres) -> Iterator[None]:
    postgres.kill()
    yield
    postgres.start()


def test_a_store_that_is_down_fails_the_tick_of_every_sensor_with_a_sentence(
    declared: DagsterPipeline, instance: dg.DagsterInstance, postgres_down: None
) -> None:
    for sensor in build_sensors(declared):
        with (
            dg.build_sensor_context(instance=instance) as context,
            pytest.raises(SinkUnavailableError, match="PostgreSQL"),
        ):
            sensor(context)


@pytest.mark.core
def test_a_broker_that_is_down_fails_the_tick_with_the_reason_and_is_asked_once_by_all(
    bench: Bench, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    look = KafkaAdmin.cluster

    def counted(admin: KafkaAdmin) -> Cluster:
        looks.append("look")
        return look(admin)

    monkeypatch.setattr(KafkaAdmin, "cluster", counted)
    away = bench.pipeline(source={"bootstrap_servers": f"127.0.0.1:{free_port()}"})
    with dg.build_sensor_context(instance=instance) as context:
        for sensor in build_sensors(DagsterPipeline(away, Automation()))[:2]:
            with pytest.raises(SourceUnavailableError, match="Connection refused"):
                sensor(context)
        # another cluster is another matter
        check_lag(DagsterPipeline(bench.pipeline(), Automation()), instance)
    assert len(looks) == 2


def test_a_dagster_started_again_goes_on_with_its_cursor(
    bench: Bench, declared: DagsterPipeline, tmp_path: Path
) -> None:
    """The cursors, run tags and events that decide are all in Dagster's storage."""
    bench.topic.write(20)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as before:
        materialize(declared, before)
        cursor = apply(before, reconcile(declared, before, None))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as after:
        assert "lag 0" in skipped(check_lag(declared, after))
        assert "up to version 1" in skipped(reconcile(declared, after, cursor))
        assert versions(after, declared.offsets) == [0, 1]

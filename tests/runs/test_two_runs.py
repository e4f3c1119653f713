"""Two runs from one checkpoint, zombies, and servers that go away at the worst moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.errors import (
    BadRecordError,
    EoPipelineError,
    FencedError,
    LedgerBehindError,
    NothingToDoError,
    StalePlanError,
)
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.runs.report import RunReport
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedTable
from tests.support.engine import Bench, Watcher, staged_attempts
from tests.support.servers import own_kafka, own_postgres

kafka, postgres = own_kafka, own_postgres


def at(point: CrashPoint, action: Callable[[], object]) -> AbstractContextManager[None]:
    """Do ``action`` the first time a run within reaches ``point``: what the world does then."""
    done = threading.Event()

    def hook(reached: CrashPoint) -> None:
        if reached is point and not done.is_set():
            done.set()
            action()

    return reaching(hook)


@pytest.mark.core(only=["rows"])
@pytest.mark.parametrize("letters", [0, 3], ids=["rows", "dead letters"])
def test_a_run_whose_files_were_tidied_by_the_winner_is_told_that_it_was_fenced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, letters: int
) -> None:
    """Scenario: when Spark has written a run's last files another run commits that version, and
    deletes them. Outcome: fenced; not a word of rows that were not found.
    """
    lenient = {"source": {"on_bad_record": "dead_letter"}}
    bench.pipeline(**lenient).run()
    bench.topic.write(20, partitions=range(4))
    for _ in range(letters):
        bench.topic.write_value(b"not json")
    others, collect = iter([bench.pipeline(**lenient)]), Attempt.collect

    def tidied(attempt: Attempt, folder: Path, *schema: Any) -> StagedTable:
        is_last = folder.name == ("dead_letters" if letters else "rows")
        if is_last and (other := next(others, None)):
            other.run(run_id="other")
        return collect(attempt, folder, *schema)

    monkeypatch.setattr(Attempt, "collect", tidied)
    with pytest.raises(FencedError, match="another run was faster"):
        bench.pipeline(**lenient).run()
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.core
@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_a_run_that_slept_while_another_went_on_is_fenced_and_leaves_nothing(
    bench: Bench, inline_records: int
) -> None:
    bench.pipeline().run()
    bench.topic.write(80, partitions=range(4))
    other = bench.pipeline(inline_records=inline_records)

    with (
        Watcher(bench.table),
        at(CrashPoint.STAGED, lambda: other.run(run_id="other")),
        pytest.raises(FencedError, match="another run was faster"),
    ):
        bench.pipeline(inline_records=inline_records).run()

    bench.table.assert_holds_once(bench.topic.written)
    assert {e.run_id for e in bench.pipeline().history(1)} == {"other"}
    bench.pipeline().run()
    assert staged_attempts(bench) == []


def test_a_promise_kept_by_somebody_else_is_already_committed_not_an_error(bench: Bench) -> None:
    bench.pipeline().run()
    bench.topic.write(80, partitions=range(4))
    kept: list[RunReport] = []

    with at(CrashPoint.PRE_COMMITTED, lambda: kept.append(bench.pipeline().run())):
        report = bench.pipeline().run()

    assert [r.recovered for r in kept[0].checkpoints] == [True]
    assert report.checkpoints[0].outcome is CommitOutcome.ALREADY_COMMITTED
    bench.table.assert_holds_once(bench.topic.written)


def test_of_two_first_runs_ever_one_writes_the_start_and_the_other_is_told(bench: Bench) -> None:
    bench.topic.write(80, partitions=range(4))
    first = at(CrashPoint.RECOVERED, lambda: bench.pipeline().run())
    with first, pytest.raises(FencedError):
        bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.core
def test_postgres_killed_before_commit_is_sent_leaves_nothing_and_the_next_run_commits_the_promise(
    bench: Bench, postgres: EmbeddedPostgres
) -> None:
    bench.pipeline().run()
    bench.topic.write(80, partitions=range(4))
    try:
        with at(CrashPoint.ENTRY_SENT, postgres.kill), pytest.raises(EoPipelineError) as failed:
            bench.pipeline().run()
        assert failed.value.retryable
    finally:
        postgres.start()
    assert bench.table.versions() == [0]

    report = bench.pipeline().run()

    assert [r.recovered for r in report.checkpoints] == [True]
    bench.table.assert_holds_once(bench.topic.written)


def test_the_broker_killed_while_spark_reads_costs_time_and_no_record(
    bench: Bench, kafka: EmbeddedKafka
) -> None:
    bench.topic.write(400, partitions=range(4))

    def broker_dies_for_a_while() -> None:
        kafka.kill()
        threading.Timer(1.0, kafka.start).start()

    try:
        with at(CrashPoint.STAGING, broker_dies_for_a_while):
            bench.pipeline().run()
    except EoPipelineError as error:
        assert error.retryable, error  # noqa: PT017
    finally:
        kafka.start()
    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.core
def test_rows_the_table_refuses_are_refused_once_and_planned_afresh(bench: Bench) -> None:
    """Scenario: a constraint forbids one row. Outcome: nothing of that checkpoint is visible, its
    manifest is marked; once the transform leaves the row out, the next run goes on.
    """
    bench.topic.write(40, partitions=range(4))
    bench.pipeline().run()
    bench.table.execute("alter table events add constraint small check (id < 60)")
    bench.topic.write(40, partitions=range(4))
    for _ in range(2):
        with pytest.raises(BadRecordError, match=r"offset 15: .*small"):
            bench.pipeline().run()
        assert bench.table.query("select count(*) from events") == [(40,)]

    bench.pipeline(transform="tests.runs.transforms:only_small_ids").run()

    assert bench.table.query("select count(*), max(id) from events") == [(60, 59)]
    bench.table.assert_consistent()


@pytest.mark.core
def test_a_ledger_from_an_older_backup_is_refused_until_it_is_adopted(bench: Bench) -> None:
    bench.topic.write(80, partitions=range(4))
    bench.pipeline().run()
    backup = bench.table.dsn + "_backup"
    _copy_database(bench.table.dsn, backup)
    bench.topic.write(80, partitions=range(4))
    bench.pipeline().run()
    _copy_database(backup, bench.table.dsn)

    with pytest.raises(LedgerBehindError, match=r"version 2 .* does not hold it"):
        bench.pipeline().run()
    plan = bench.pipeline().plan_adopt()
    assert plan.lost_versions == [2]
    adopted = bench.pipeline().adopt("restored from backup")
    assert adopted is not None
    assert adopted.operation is Operation.ADOPT
    assert adopted.details["reason"] == "restored from backup"
    with pytest.raises(StalePlanError, match="at version 1; now it is at version 2"):
        plan.apply(reason="somebody else looked at the same")
    bench.pipeline().run()

    bench.table.assert_holds_once(bench.topic.written)
    with pytest.raises(NothingToDoError, match="nothing to adopt"):
        bench.pipeline().adopt("again")


def _copy_database(source: str, target: str) -> None:
    """Replace the target database by a copy of the source, as a restored backup would."""
    server, _, source_name = source.rpartition("/")
    target_name = target.rpartition("/")[2]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'drop database if exists "{target_name}" with (force)')
        connection.execute(f'create database "{target_name}" template "{source_name}"')

"""The next checkpoint's rows are staged while the last one is committed; see run/ahead.py."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from eo_pipeline import pipeline as pipeline_module
from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.errors import BadRecordError, DataLossError, FencedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.runs.report import CheckpointReport, Observer, PhaseTimes, RunReport
from eo_pipeline.runs.runner import Runner
from eo_pipeline.spark import interrupts
from tests.support.engine import (
    Bench,
    Table,
    left_over,
    spark_is_free,
    staged_attempts,
    staged_folders,
)
from tests.support.registry import AvroTopic, record
from tests.support.servers import MakeDatabase, wait_until
from tests.support.topics import delete_records

#: Nobody is told that a table is locked as long as a test locks it.
PATIENT = {"lock_timeout": 600}


@dataclass
class Points:
    """The crash points that a run came to, in order; ``at`` one of them something happens once."""

    passed: list[CrashPoint] = field(default_factory=list)
    at: CrashPoint | None = None
    happens: Callable[[], object] = field(default=lambda: None)

    def __call__(self, point: CrashPoint) -> None:
        self.passed.append(point)
        if point is self.at:
            self.at = None
            self.happens()

    @property
    def ahead(self) -> int:
        """How often a checkpoint's staging began before the one below it was committed."""
        count, is_promised = 0, False
        for point in self.passed:
            count += point is CrashPoint.STAGING and is_promised
            is_promised = point is CrashPoint.STAGED or (
                is_promised and point is not CrashPoint.COMMITTED
            )
        return count


@contextmanager
def locked(table: Table) -> Iterator[psycopg.Connection[Any]]:
    """Nobody writes the table within: whoever commits to it waits."""
    with psycopg.connect(table.dsn) as other:
        other.execute(f"lock table {table.name} in access exclusive mode")
        yield other


@contextmanager
def running(pipeline: Pipeline) -> Iterator[Future[RunReport]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(pipeline.run)


def folder_of(bench: Bench, version: int) -> Path | None:
    """The attempt's, if there is one."""
    staging = Path(bench.config["staging"]) / bench.config["name"]
    return next(iter(staging.glob(f"[0-9a-f]*/{version:012d}-*")), None)


def is_staged(bench: Bench, version: int) -> bool:
    """Whether rows lie in the attempt's folder, as Spark leaves them when its job is over."""
    folder = folder_of(bench, version)
    return bool(folder and list(folder.glob("rows/*.parquet")))


def is_promised(bench: Bench, version: int) -> bool:
    folder = folder_of(bench, version)
    return bool(folder and (folder / "manifest.json").exists())


@pytest.fixture
def begun(bench: Bench) -> Bench:
    """A table with one checkpoint of a hundred records, and records for three more."""
    bench.topic.write(100, partitions=range(4))
    bench.pipeline().run()
    bench.topic.write(300, partitions=range(4))
    return bench


def test_spark_stages_the_next_checkpoint_while_the_last_one_waits_for_the_table(
    begun: Bench,
) -> None:
    pipeline = begun.pipeline(overlap=True, sink=PATIENT)
    with running(pipeline) as run, locked(begun.table):
        wait_until(lambda: is_staged(begun, 3))
        assert is_promised(begun, 2)
        assert not is_promised(begun, 3)
        assert begun.table.versions() == [0, 1]
    report = run.result()
    assert [each.entry.version for each in report.checkpoints] == [2, 3, 4]
    assert begun.table.versions() == [0, 1, 2, 3, 4]
    begun.table.assert_holds_once(begun.topic.written)
    assert left_over(begun) == []


def test_one_after_the_other_nothing_is_staged_before_the_commit(begun: Bench) -> None:
    points = Points()
    with reaching(points):
        begun.pipeline(overlap=False).run()
    assert points.ahead == 0


def test_killed_between_the_next_run_commits_the_promise_and_drops_what_was_staged_ahead(
    begun: Bench,
) -> None:
    with locked(begun.table):
        killed = begun.run_in_a_process(overlap=True, sink=PATIENT)
        wait_until(lambda: is_staged(begun, 3))
        killed.kill()
        killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL
    lost = folder_of(begun, 3)

    report = begun.pipeline(overlap=True).run()

    assert [(r.entry.version, r.recovered) for r in report.checkpoints] == [
        (2, True),
        (3, False),
        (4, False),
    ]
    begun.table.assert_holds_once(begun.topic.written)
    assert lost is not None
    assert not lost.exists()
    assert left_over(begun) == []


def test_killed_before_anything_was_promised_on_top_nothing_is_there_twice(begun: Bench) -> None:
    """Scenario: killed where the next checkpoint's staging begins, and its folder is there."""
    killed = begun.run_in_a_process("--crash-at", CrashPoint.STAGING, "2", overlap=True)
    assert killed.wait(240) == -signal.SIGKILL
    assert is_promised(begun, 2)
    assert folder_of(begun, 3) is not None
    report = begun.pipeline(overlap=True).run()
    assert [r.recovered for r in report.checkpoints] == [True, False, False]
    begun.table.assert_holds_once(begun.topic.written)
    assert left_over(begun) == []


def test_fenced_the_error_is_of_the_commit_and_what_was_staged_ahead_is_gone(
    begun: Bench, tmp_path: Path
) -> None:
    """Scenario: a run on another host, with another staging, takes the version that is promised."""
    other = begun.pipeline(staging=str(tmp_path / "elsewhere"))
    points = Points(at=CrashPoint.PRE_COMMITTED, happens=lambda: other.run(run_id="other"))
    with reaching(points), pytest.raises(FencedError) as fenced:
        begun.pipeline(overlap=True).run()
    assert fenced.value.version == 2
    assert points.ahead == 1
    assert folder_of(begun, 3) is None
    begun.pipeline(overlap=True).run()
    begun.table.assert_holds_once(begun.topic.written)
    assert staged_attempts(begun) == []


def test_refused_the_error_is_of_the_commit_and_what_was_staged_ahead_is_gone(
    begun: Bench,
) -> None:
    begun.table.execute("alter table events add constraint odd check (_eo_checkpoint <> 2)")
    points = Points()
    with reaching(points), pytest.raises(BadRecordError, match="odd"):
        begun.pipeline(overlap=True).run()
    assert points.ahead == 1
    assert folder_of(begun, 3) is None
    assert begun.table.versions() == [0, 1]
    begun.table.execute("alter table events drop constraint odd")
    begun.pipeline(overlap=True).run()
    begun.table.assert_holds_once(begun.topic.written)


@pytest.mark.core
def test_a_listener_that_fails_ends_the_run_and_what_was_staged_ahead_is_gone(
    begun: Bench,
) -> None:
    def fails(report: CheckpointReport) -> None:
        wait_until(lambda: is_staged(begun, 3))
        spark_is_free(begun)  # a task that ends later than its job may make the folder again
        raise RuntimeError("nobody listens")

    with pytest.raises(RuntimeError, match="nobody listens"):
        begun.pipeline(overlap=True).run(on_checkpoint=fails)
    assert begun.table.versions() == [0, 1, 2]
    assert folder_of(begun, 3) is None


def test_what_fails_ahead_fails_after_the_commit_before_it_was_reported(bench: Bench) -> None:
    """Scenario: a bad record in the second checkpoint. Outcome: the first one stands, everybody
    heard of it, and the error is the second one's.
    """
    bench.topic.write(100)
    bench.topic.write_value(b"not json")
    points, heard = Points(), list[int]()
    with reaching(points), pytest.raises(BadRecordError):
        bench.pipeline(overlap=True).run(on_checkpoint=lambda r: heard.append(r.entry.version))
    assert points.ahead == 1
    assert heard == [0, 1]
    bench.table.assert_holds_once(bench.topic.written)
    assert staged_attempts(bench) == []


@pytest.mark.core
def test_whose_version_is_taken_while_it_is_staged_ahead_was_fenced(begun: Bench) -> None:
    """Scenario: between our commit and our next one another run takes the version that we stage,
    and rightly deletes the folder.
    """
    other = begun.pipeline()
    points = Points(at=CrashPoint.COMMITTED, happens=lambda: other.run(run_id="other"))
    with reaching(points), pytest.raises(FencedError) as fenced:
        begun.pipeline(overlap=True).run()
    assert points.ahead >= 1
    assert fenced.value.version == 3
    begun.table.assert_holds_once(begun.topic.written)
    begun.pipeline().run()
    assert left_over(begun) == []


def test_an_interrupted_run_leaves_no_job_and_nothing_staged(bench: Bench) -> None:
    """Scenario: Ctrl-C while the commit waits for the table and Spark has hours of work."""
    bench.topic.write(100)
    slow: dict[str, Any] = {
        "transform": "tests.runs.transforms:slow_from_the_hundredth",
        "source": {"max_records": 50},
    }
    bench.pipeline(**slow).run(max_checkpoints=1)
    bench.topic.write(100)
    with locked(bench.table):
        run = bench.run_in_a_process(overlap=True, sink=PATIENT, **slow)
        wait_until(lambda: writes_files_of(bench, 3))
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=120)
    assert "KeyboardInterrupt" in err
    assert "version 1 stands" in err
    assert "done" not in out
    assert folder_of(bench, 3) is None
    spark_is_free(bench)
    assert bench.table.versions() == [0, 1]


def writes_files_of(bench: Bench, version: int) -> bool:
    folder = folder_of(bench, version)
    return bool(folder and staged_folders(folder))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_ledger_and_reports_are_what_they_are_one_after_the_other(
    bench: Bench, make_database: MakeDatabase, tmp_path: Path, mode: str
) -> None:
    """Scenario: many checkpoints of one topic with bad records in it, in both ways."""
    key = {"mode": "upsert", "key": ["id"], "sequence_by": ["_eo_offset"]}
    sink = key if mode == "upsert" else {}
    for _ in range(4):
        bench.topic.write(110, partitions=range(4))
        bench.topic.write_value(b"not json", partition=1)
    lenient = {"source": {"on_bad_record": "dead_letter"}}
    other = replace(bench, table=Table(make_database()))
    plain, points = bench.pipeline(**lenient, sink=sink).run(), Points()
    with reaching(points):
        overlapped = other.pipeline(
            **lenient,
            sink={**sink, "dsn": other.table.dsn},
            staging=str(tmp_path / "other"),
            overlap=True,
        ).run()

    assert points.ahead >= 3
    assert told(overlapped) == told(plain)
    for table in ("events", "events_dead_letters"):
        assert rows_of(other.table, table) == rows_of(bench.table, table)
    assert_the_seconds_are_of_each(overlapped)


def told(report: RunReport) -> list[Any]:
    """All that does not tell one run from another."""
    return [
        report.lag,
        *(
            (comparable(r.entry), r.outcome, r.recovered, r.lag_before, r.lag_after, r.columns)
            for r in report.checkpoints
        ),
    ]


def comparable(entry: LedgerEntry) -> dict[str, Any]:
    said = entry.to_json()
    own = {"ledger_id", "transaction_id", "parent", "run_id", "started_at", "committed_at"}
    counts = {k: v for k, v in said["counts"].items() if k != "costs"}
    identity = {k: v for k, v in said["identity"].items() if k not in ("parent", "content")}
    sink = {k: v for k, v in identity["sink"].items() if k != "ledger"}
    return {
        **{k: v for k, v in said.items() if k not in own},
        "counts": counts,
        "identity": {**identity, "sink": sink},
    }


def rows_of(table: Table, name: str) -> list[str]:
    """All there are, whole, in one order."""
    found = table.query(f"select to_jsonb(t) from {name} t")
    return sorted(json.dumps(row, sort_keys=True) for (row,) in found)


def assert_the_seconds_are_of_each(report: RunReport) -> None:
    for each in report.checkpoints[1:]:
        assert set(each.seconds) == {"plan", "stage", "pre_commit", "commit"}
        costs = each.entry.counts.costs
        assert costs is not None
        assert costs.phases_ms["stage"] == pytest.approx(1000 * each.seconds["stage"], abs=100)


def test_who_watches_hears_of_each_phase_behind_the_checkpoint_before(
    begun: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, threads = list[str | int](), set[threading.Thread]()

    class Listener(Observer):
        def phase(self, times: PhaseTimes) -> None:
            assert times.began_ns <= times.ended_ns
            heard.append(times.name)
            threads.add(threading.current_thread())

        def committed(self, report: CheckpointReport) -> None:
            heard.append(report.entry.version)

    @contextmanager
    def listened(_: object) -> Iterator[Observer]:
        yield Listener()

    monkeypatch.setattr(pipeline_module, "observed", listened)
    points = Points()
    with reaching(points):
        begun.pipeline(overlap=True).run(max_checkpoints=2)
    assert points.ahead == 1
    one = ["plan", "stage", "pre_commit", "commit"]
    assert heard == ["recover", *one, 2, *one, 3]
    assert threads == {threading.current_thread()}


def test_what_the_commit_changed_of_the_table_holds_for_what_was_staged_ahead(
    begun: Bench,
) -> None:
    """Scenario: while version 2 waits, and 3 is staged with names that are null, somebody makes the
    column take none. Outcome: version 3 is staged anew, and sets those records aside.
    """
    begun.topic.write_value(b'{"id": 1000, "name": null}')
    lenient = {"source": {"on_bad_record": "dead_letter", "max_records": 200}}
    pipeline = begun.pipeline(overlap=True, sink=PATIENT, **lenient)
    with running(pipeline) as run, locked(begun.table) as other:
        wait_until(lambda: is_staged(begun, 3))
        other.execute("alter table events alter column name set not null")
    report = run.result()
    assert [each.entry.counts.dead_letters for each in report.checkpoints] == [0, 1]
    begun.table.assert_holds_once(begun.topic.written)
    assert left_over(begun) == []


def test_a_wrong_guess_costs_a_staging_and_no_row(
    begun: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Runner._guess

    def wrong(*known: Any) -> LedgerEntry | None:
        guess = right(*known)
        return guess and replace(guess, ranges=guess.ranges[:1])

    monkeypatch.setattr(Runner, "_guess", wrong)
    points = Points()
    with reaching(points):
        begun.pipeline(overlap=True).run()
    assert points.ahead == 2
    begun.table.assert_holds_once(begun.topic.written)
    assert staged_attempts(begun) == []


@pytest.mark.core(only=["continue"])
@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_records_that_retention_takes_meanwhile_are_a_loss_as_ever(
    begun: Bench, admin: AdminClient, policy: str
) -> None:
    """Scenario: the third checkpoint is staged, and retention takes its records while the second
    is committed. Outcome: no row of them is published without the ledger saying what is lost.
    """

    def retention() -> None:
        wait_until(lambda: is_staged(begun, 3))
        delete_records(admin, begun.topic.name, 0, 60)

    points = Points(at=CrashPoint.ENTRY_SENT, happens=retention)
    pipeline = begun.pipeline(overlap=True, source={"on_retention": policy})
    if policy == "fail":
        with reaching(points), pytest.raises(DataLossError):
            pipeline.run()
        assert begun.table.versions() == [0, 1, 2]
    else:
        with reaching(points):
            report = pipeline.run()
        operations = [each.entry.operation.value for each in report.checkpoints]
        assert operations == ["forward", "accept_loss", "forward", "forward"]
        lost = {(begun.topic.name, 0, offset) for offset in range(50, 60)}
        begun.table.assert_holds_once(begun.topic.written - lost)
    assert points.ahead >= 1
    assert staged_attempts(begun) == []


def test_by_default_where_there_are_two_cores_and_no_transform(
    begun: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checkpoints_ahead(**changes: Any) -> int:
        begun.topic.write(200, partitions=range(4))
        points = Points()
        with reaching(points):
            begun.pipeline(overlap=None, **changes).run()
        return points.ahead

    def have_cores(here: int, at_spark: int | None) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(here)})
        monkeypatch.setattr(interrupts, "cores", lambda _: at_spark)

    have_cores(1, 1)
    assert checkpoints_ahead() == 0
    have_cores(2, None)
    assert checkpoints_ahead() > 0
    assert checkpoints_ahead(transform="tests.runs.transforms:as_it_is") == 0
    assert checkpoints_ahead(inline_records=10_000) == 0
    have_cores(1, 40)
    assert checkpoints_ahead() > 0
    begun.table.assert_holds_once(begun.topic.written)


def test_schemas_that_the_last_checkpoint_was_the_first_to_meet_are_known_ahead(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    """Scenario: each checkpoint has records of another schema, whose texts only the ledger and the
    promised entry hold.
    """
    given: list[Any] = [("id", "long")]
    for column in (("name", "string", ""), ("quantity", "long", 1), ("note", "string", "-")):
        given.append(column)
        orders.write(record(*given), *({"id": n} for n in range(10)))
    points = Points()
    with reaching(points):
        report = avro_bench.pipeline(overlap=True, source={"max_records": 10}).run()
    assert points.ahead >= 1
    assert [each.entry.version for each in report.checkpoints] == [0, 1, 2, 3]
    avro_bench.table.assert_holds_once(orders.written)

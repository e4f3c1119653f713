"""Which Spark is started with the JVM's first compiler alone: that of a process which ends with
little work.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from eo_pipeline import _process
from eo_pipeline.dagster.processes import is_of_one_run
from eo_pipeline.ledger.entry import Costs, Counts, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.runs.checkpoint import (
    SMALL_BYTES,
    SMALL_OFFSETS,
    TINY_BYTES,
    TINY_OFFSETS,
    workload_of,
)
from eo_pipeline.spark.launch import JAVA_OPTIONS, launch_settings
from eo_pipeline.spark.startup import C1_ALONE, C2_LAST, C2_LATER, Workload, launched_for, work

MEASURED = Counts(records=1_000, bytes=200_000, costs=Costs(phases_ms={"stage": 9_000}))


def reading(offsets: int, operation: Operation = Operation.FORWARD) -> LedgerEntry:
    half = offsets // 2
    target = 0 if operation is Operation.REPLAY else None
    ranges = (OffsetRange("t", 0, 5, 5 + half), OffsetRange("t", 1, 7, 7 + offsets - half))
    start = LedgerEntry(
        pipeline="p",
        ledger_id="l",
        version=0,
        transaction_id="x",
        parent=None,
        operation=Operation.START,
        offsets={},
        topic_ids={},
        run_id="r",
    )
    return replace(start.child(operation, "r", {}), ranges=ranges, target=target)


def amount(entry: LedgerEntry, lag: int | None = 0, measured: Counts = MEASURED) -> Workload:
    return workload_of(entry, lag, measured, transformed=False)


def transformed(offsets: int, measured: Counts = MEASURED) -> Workload:
    return workload_of(reading(offsets), 0, measured, transformed=True)


@pytest.mark.parametrize(
    ("most", "that_is", "more_is"),
    [
        (TINY_OFFSETS, Workload.TINY, Workload.SMALL),
        (SMALL_OFFSETS, Workload.SMALL, Workload.LARGE),
    ],
)
def test_few_records_are_little_and_what_waits_after_them_counts(
    most: int, that_is: Workload, more_is: Workload
) -> None:
    entry = reading(most // 2)
    assert amount(entry, most // 2) is that_is
    assert amount(entry, most // 2 + 1) is more_is
    assert amount(entry, most // 2, Counts()) is that_is, "never measured"


@pytest.mark.parametrize(
    ("most", "that_is", "more_is"),
    [(TINY_BYTES, Workload.TINY, Workload.SMALL), (SMALL_BYTES, Workload.SMALL, Workload.LARGE)],
)
def test_few_large_records_are_not(most: int, that_is: Workload, more_is: Workload) -> None:
    large = replace(MEASURED, bytes=MEASURED.records * (most // 100))
    assert amount(reading(100), measured=large) is that_is
    assert amount(reading(101), measured=large) is more_is


def test_of_a_replay_nobody_knows() -> None:
    assert amount(reading(10, Operation.REPLAY)) is Workload.LARGE
    assert amount(reading(10), lag=None) is Workload.LARGE


def test_a_transform_is_little_if_it_was() -> None:
    assert transformed(2_000) is Workload.TINY
    assert transformed(2_001) is Workload.LARGE, "twice as many"
    for seconds, found in ((11, Workload.SMALL), (31, Workload.LARGE)):
        slow = replace(MEASURED, costs=Costs(phases_ms={"stage": seconds * 1_000}))
        assert transformed(10, slow) is found
    for other in (replace(MEASURED, costs=None), replace(MEASURED, costs=Costs()), Counts()):
        assert transformed(10, other) is Workload.LARGE


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends with its work."""
    monkeypatch.setattr(_process, "_ends", False)
    _process.this_process_ends()


def options(master: str = "local[*]", amount: Workload = Workload.SMALL) -> str:
    with work(amount):
        return launched_for(master, launch_settings(master, "2g", {}), {})[JAVA_OPTIONS]


@pytest.mark.usefixtures("ending")
def test_little_work_in_a_process_that_ends_gets_the_first_compiler_alone() -> None:
    assert options().split() == ["-XX:+UseParallelGC", C1_ALONE]
    assert options("spark://elsewhere:7077") == "-XX:+UseParallelGC", "its executors do the work"


@pytest.mark.usefixtures("ending")
def test_more_work_there_gets_the_second_for_what_runs_very_often() -> None:
    assert options(amount=Workload.LARGE) == f"-XX:+UseParallelGC {C2_LATER}"


@pytest.mark.usefixtures("ending")
def test_little_work_that_is_repeated_gets_the_second_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_process, "_repeats", False)
    _process.this_process_repeats()
    assert options() == f"-XX:+UseParallelGC {C2_LAST}"
    assert options(amount=Workload.LARGE) == f"-XX:+UseParallelGC {C2_LATER}"


@pytest.mark.usefixtures("ending")
def test_a_users_own_options_stay_as_they_are() -> None:
    own = {JAVA_OPTIONS: "-Dsaid=this"}
    with work(Workload.SMALL):
        settings = launched_for("local[*]", launch_settings("local[*]", "2g", own), own)
    assert settings[JAVA_OPTIONS] == "-Dsaid=this"


def test_a_process_that_stays_gets_both_whatever_its_first_work_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_process, "_ends", False)
    assert options() == options(amount=Workload.LARGE) == "-XX:+UseParallelGC"


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        ("/venv/bin/dagster asset materialize --select events -m defs", True),
        ("/venv/bin/dg launch --job events_job", True),
        ("/venv/lib/python3.11/site-packages/dagster/__main__.py api execute_run x", True),
        ("/venv/bin/dagster api grpc --module-name defs", False),
        ("/venv/bin/dagster-daemon run", False),
        ("/venv/bin/dagster dev", False),
        ("/venv/bin/ipython launch", False),
        ("-c", False),
    ],
)
def test_dagsters_processes_of_one_run_are_known(command: str, ends: bool) -> None:
    assert is_of_one_run(command.split()) is ends

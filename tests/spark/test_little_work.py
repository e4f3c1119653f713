"""Which Spark is started with the JVM's first compiler alone: that of a process which ends with
little work.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from eo_pipeline import lifetime
from eo_pipeline.dagster.processes import is_of_one_run
from eo_pipeline.ledger.entry import Costs, Counts, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.run.amount import LITTLE_BYTES, LITTLE_OFFSETS, is_little
from eo_pipeline.spark.launch import JAVA_OPTIONS, launch_settings
from eo_pipeline.spark.little import C1_ALONE, C2_LATER, launched_for, work

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


def test_few_records_are_little_and_what_waits_after_them_counts() -> None:
    entry = reading(LITTLE_OFFSETS // 2)
    assert is_little(entry, LITTLE_OFFSETS // 2, MEASURED, transformed=False)
    assert not is_little(entry, LITTLE_OFFSETS // 2 + 1, MEASURED, transformed=False)
    assert is_little(entry, 0, Counts(), transformed=False), "never measured"


def test_few_large_records_are_not() -> None:
    large = replace(MEASURED, bytes=MEASURED.records * (LITTLE_BYTES // 100))
    assert is_little(reading(100), 0, large, transformed=False)
    assert not is_little(reading(101), 0, large, transformed=False)


def test_of_a_replay_nobody_knows() -> None:
    assert not is_little(reading(10, Operation.REPLAY), 0, MEASURED, transformed=False)
    assert not is_little(reading(10), None, MEASURED, transformed=False)


def test_a_transform_is_little_if_it_was() -> None:
    assert is_little(reading(2_000), 0, MEASURED, transformed=True)
    assert not is_little(reading(2_001), 0, MEASURED, transformed=True), "twice as many"
    slow = replace(MEASURED, costs=Costs(phases_ms={"stage": 31_000}))
    for other in (slow, replace(MEASURED, costs=None), replace(MEASURED, costs=Costs()), Counts()):
        assert not is_little(reading(10), 0, other, transformed=True)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends with its work."""
    monkeypatch.setattr(lifetime, "_ends", False)
    lifetime.this_process_ends()


def options(master: str = "local[*]", *, is_little: bool = True) -> str:
    with work(little=is_little):
        return launched_for(master, launch_settings(master, "2g", {}), {})[JAVA_OPTIONS]


@pytest.mark.usefixtures("ending")
def test_little_work_in_a_process_that_ends_gets_the_first_compiler_alone() -> None:
    assert options().split() == ["-XX:+UseParallelGC", C1_ALONE]
    assert options("spark://elsewhere:7077") == "-XX:+UseParallelGC", "its executors do the work"


@pytest.mark.usefixtures("ending")
def test_more_work_there_gets_the_second_for_what_runs_very_often() -> None:
    assert options(is_little=False) == f"-XX:+UseParallelGC {C2_LATER}"


@pytest.mark.usefixtures("ending")
def test_a_users_own_options_stay_as_they_are() -> None:
    own = {JAVA_OPTIONS: "-Dsaid=this"}
    with work(little=True):
        settings = launched_for("local[*]", launch_settings("local[*]", "2g", own), own)
    assert settings[JAVA_OPTIONS] == "-Dsaid=this"


def test_a_process_that_stays_gets_both_whatever_its_first_work_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifetime, "_ends", False)
    assert options() == options(is_little=False) == "-XX:+UseParallelGC"


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

"""Which runs get a figure: those whose output is exact, and which ended in time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import ClassVar, cast

import polars as pl
import pytest

from benchmarks.suite.errors import MeasurementError
from benchmarks.suite.peers.peer import Peer
from benchmarks.suite.program import Program
from benchmarks.suite.records import frames
from benchmarks.suite.results import Measurement
from benchmarks.suite.room import Room
from benchmarks.suite.scenarios import Bulk
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from benchmarks.suite.workloads.workload import Workload

RECORDS = 100


@dataclass
class Place:
    """A store in this process."""

    store: Store
    held: list[pl.DataFrame] = field(default_factory=list)

    def rows(self) -> pl.DataFrame:
        return pl.concat(self.held)

    def remove(self) -> None:
        self.held.clear()


@dataclass
class Shelf:
    """As much of a room as a scenario needs."""

    left: float = 1_000.0

    def target(self, store: Store, workload: Workload) -> Place:
        return Place(store)

    def end_programs(self) -> None:
        """Nothing runs here."""


class Full(Topic):
    def filled(self) -> Topic:
        return self


class Writer(Peer):
    """Writes every record, but for what ``spoils`` does to them."""

    PROGRAM: ClassVar[str] = "writer"
    PROMISE: ClassVar[str] = ""
    SETTINGS: ClassVar[str] = ""

    def __init__(self, shelf: Shelf, spoils: Sequence[pl.DataFrame] | str | None = None) -> None:
        super().__init__(cast(Room, shelf), Store.DELTA)
        self.spoils = spoils
        self.runs = 0

    def run(self, topic: Topic, target: Target) -> float:
        self.runs += 1
        if isinstance(self.spoils, str):
            raise MeasurementError(self.spoils)
        whole = list(frames(0, topic.records))
        cast(Place, target).held = list(whole if self.spoils is None else self.spoils)
        return 1.5


def measured(*peers: Writer, shelf: Shelf | None = None, rounds: int = 1) -> list[Measurement]:
    found: list[Measurement] = []
    room = cast(Room, shelf or Shelf())
    scenario = Bulk("cold", room, peers, found.append, 40, Full("", "t", RECORDS, 8))
    for number in range(rounds):
        scenario.round(number)
    return found


def test_an_exact_output_gives_a_figure() -> None:
    [found] = measured(Writer(Shelf()))
    assert (found.seconds, found.fault) == (1.5, "")


def test_an_output_that_lacks_a_record_gives_none_and_says_so() -> None:
    [found] = measured(Writer(Shelf(), list(frames(0, RECORDS - 1))))
    assert found.seconds is None
    assert "1 lost" in found.fault


def test_who_failed_twice_is_not_tried_again() -> None:
    lame, well = Writer(Shelf(), "it fell"), Writer(Shelf())
    found = measured(lame, well, rounds=4)
    assert [each.fault for each in found if each.fault] == ["it fell", "it fell"]
    assert (lame.runs, well.runs) == (2, 4)


def test_each_round_begins_with_another_one() -> None:
    order: list[str] = []

    class Named(Writer):
        def run(self, topic: Topic, target: Target) -> float:
            order.append(str(self.spoils))
            raise MeasurementError("not needed")

    measured(Named(Shelf(), "a"), Named(Shelf(), "b"), rounds=2)
    assert order == ["a", "b", "b", "a"]


def test_a_warm_figure_is_never_that_of_a_process_which_has_just_begun() -> None:
    """A process that fails a job is ended: whoever shares it does its job once more before."""

    class Cooling(Writer):
        warm = False

        @property
        def ready(self) -> bool:
            return self.warm

        def run(self, topic: Topic, target: Target) -> float:
            seconds = super().run(topic, target)
            self.warm = True
            return seconds

    well, lame = Cooling(Shelf()), Cooling(Shelf(), "it fell")
    found = measured(well, lame)
    assert [(each.seconds, each.fault) for each in found] == [
        (1.5, ""),
        (None, "it did not get warm: its first run failed"),
    ]
    assert (well.runs, lame.runs) == (2, 1)


def test_no_run_is_begun_without_time_for_it() -> None:
    writer = Writer(Shelf())
    assert measured(writer, shelf=Shelf(left=10.0)) == []
    assert writer.runs == 0


def program(tmp_path: Path, text: str) -> Program:
    return Program([sys.executable, "-c", text], tmp_path / "log", dict(os.environ))


def test_a_program_answers_with_its_seconds_whatever_else_it_says(tmp_path: Path) -> None:
    text = "print('hello'); input(); print('{\"seconds\": 2.5}')"
    started = program(tmp_path, text)
    assert started.job("go", 60) == 2.5
    started.finish(60)


def test_a_program_that_gives_no_answer_is_ended(tmp_path: Path) -> None:
    started = program(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(MeasurementError, match="no answer in time"):
        started.job("go", 0.2)
    assert not started.alive


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    started = program(tmp_path, "input(); raise SystemExit('out of luck')")
    with pytest.raises(MeasurementError, match="out of luck"):
        started.job("go", 60)


def test_a_program_that_is_waited_for_ends_with_whoever_waits(tmp_path: Path) -> None:
    started = program(tmp_path, "import time; time.sleep(600)")
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(SystemExit):
            started.finish(60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not started.alive

"""Dagster evaluates sensors every five seconds at most: who waits sees at once what arrives."""

from __future__ import annotations

import time
from collections.abc import Callable

import dagster as dg
import pytest

from eo_pipeline.dagster import sensors
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.dagster.sensors import check_lag
from tests.dagster.steps import materialize
from tests.support.engine import Bench

#: Nearly until the next tick.
WAITING = Automation(lag_wait_seconds=4.5)


class Clock:
    """Stands still but for who sleeps."""

    def __init__(self, asleep: Callable[[], None] = lambda: None) -> None:
        self.looks = 1
        self._now, self._asleep = 0.0, asleep

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        self.looks += 1
        self._asleep()


@pytest.fixture
def waiting(bench: Bench, instance: dg.DagsterInstance) -> DagsterPipeline:
    """A pipeline that has read all there is."""
    bench.topic.write(10)
    declared = DagsterPipeline(bench.pipeline(), WAITING)
    assert materialize(declared, instance).success
    return declared


def test_a_record_that_arrives_while_a_tick_waits_starts_a_run_in_that_tick(
    bench: Bench,
    waiting: DagsterPipeline,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(asleep=lambda: bench.topic.write(3))
    monkeypatch.setattr(sensors, "time", clock)
    tick = check_lag(waiting, instance)
    [request] = tick.run_requests or []
    assert request.tags["eo/lag"] == "3"
    assert clock.looks == 2
    [seen] = [event for event in tick.asset_events if isinstance(event, dg.AssetObservation)]
    assert seen.metadata[f"lag_of_{waiting.identifier}"].value == 3, (
        "what is shown is the look that decided"
    )


@pytest.mark.parametrize(("seconds", "looks"), [(4.5, 10), (0.0, 1)])
def test_a_tick_waits_no_longer_than_it_is_told(
    seconds: float,
    looks: int,
    waiting: DagsterPipeline,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared = DagsterPipeline(waiting.pipeline, Automation(lag_wait_seconds=seconds))
    clock = Clock()
    monkeypatch.setattr(sensors, "time", clock)
    tick = check_lag(declared, instance)
    assert not tick.run_requests
    assert clock.looks == looks


def test_nobody_waits_who_did_not_ask_for_it() -> None:
    assert Automation().lag_wait_seconds == 0.0

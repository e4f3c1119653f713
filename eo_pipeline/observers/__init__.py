"""Observers of runs: failure notes for `eo metrics`, OpenTelemetry and OpenLineage.

The latter two are imported only if their own variables or files configure them.
"""

from __future__ import annotations

from collections.abc import Sequence

from eo_pipeline.boundary import harmless
from eo_pipeline.observers import detection
from eo_pipeline.observers.failures import FailureNotes
from eo_pipeline.runs.report import (
    CheckpointReport,
    MakeObserver,
    ObservedRun,
    Observer,
    PhaseTimes,
)


class observed:  # noqa: N801 - used as a function
    """Context of a run: its observers are notified of its phases and its end."""

    def __init__(self, run: ObservedRun) -> None:
        self._run = run

    def __enter__(self) -> Observer:
        self._observers = _AllObservers(self._run, makers())
        return self._observers

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self._observers.ended(error)


def makers() -> list[MakeObserver]:
    """Return the constructors of the observers configured now."""
    factories: list[MakeObserver] = [FailureNotes]
    if detection.for_opentelemetry():
        factories.append(_opentelemetry)
    if detection.for_openlineage():
        factories.append(_openlineage)
    return factories


def _opentelemetry(run: ObservedRun) -> Observer:
    from eo_pipeline.observers.otel import Telemetry

    return Telemetry(run)


def _openlineage(run: ObservedRun) -> Observer:
    from eo_pipeline.observers.openlineage import LineageEvents

    return LineageEvents(run)


class _AllObservers(Observer):
    """All observers; an error in one is logged, and affects neither the others nor the run."""

    def __init__(self, run: ObservedRun, makers: Sequence[MakeObserver]) -> None:
        self._list: list[Observer] = []
        self._name = run.pipeline
        for make in makers:
            with harmless(f"{run.pipeline}: watching the run"):
                self._list.append(make(run))

    def phase(self, times: PhaseTimes) -> None:
        for observer in self._list:
            with harmless(f"{self._name}: telling of a phase"):
                observer.phase(times)

    def committed(self, report: CheckpointReport) -> None:
        for observer in self._list:
            with harmless(f"{self._name}: telling of version {report.entry.version}"):
                observer.committed(report)

    def ended(self, error: BaseException | None) -> None:
        for observer in self._list:
            with harmless(f"{self._name}: telling of the run's end"):
                observer.ended(error)

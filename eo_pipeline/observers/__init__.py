"""Who watches runs from outside: what failed, for `eo metrics`; OpenTelemetry; OpenLineage.

The latter two only where their own variables or files ask for them; nothing is imported otherwise.
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
    """Within, ``run`` goes on, and whoever watches hears of it, and of its end."""

    def __init__(self, run: ObservedRun) -> None:
        self._run = run

    def __enter__(self) -> Observer:
        self._everyone = _Everyone(self._run, makers())
        return self._everyone

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self._everyone.ended(error)


def makers() -> list[MakeObserver]:
    """Who is to be told of a run that begins now."""
    found: list[MakeObserver] = [FailureNotes]
    if detection.for_opentelemetry():
        found.append(_traced)
    if detection.for_openlineage():
        found.append(_lineage)
    return found


def _traced(run: ObservedRun) -> Observer:
    from eo_pipeline.observers.otel import Telemetry

    return Telemetry(run)


def _lineage(run: ObservedRun) -> Observer:
    from eo_pipeline.observers.openlineage import LineageEvents

    return LineageEvents(run)


class _Everyone(Observer):
    """All of them, each for itself: what one cannot do is logged, and stops nothing."""

    def __init__(self, run: ObservedRun, makers: Sequence[MakeObserver]) -> None:
        self._all: list[Observer] = []
        self._name = run.pipeline
        for make in makers:
            with harmless(f"{run.pipeline}: watching the run"):
                self._all.append(make(run))

    def phase(self, times: PhaseTimes) -> None:
        for each in self._all:
            with harmless(f"{self._name}: telling of a phase"):
                each.phase(times)

    def committed(self, report: CheckpointReport) -> None:
        for each in self._all:
            with harmless(f"{self._name}: telling of version {report.entry.version}"):
                each.committed(report)

    def ended(self, error: BaseException | None) -> None:
        for each in self._all:
            with harmless(f"{self._name}: telling of the run's end"):
                each.ended(error)

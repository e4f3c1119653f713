"""Who else hears of a run: the one seam between what it does and whoever watches from outside.

A run tells an :class:`Observer`; which ones there are is decided in :mod:`eo_pipeline.observers`.
None of them can stop a run or decide anything in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from eo_pipeline.run.reports import CheckpointReport
from eo_pipeline.sinks.config import Sink
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.staging.attempt import StagingArea


@dataclass(frozen=True)
class ObservedRun:
    """A run that begins. ``operation`` is what the ledger calls it: forward, replay, rewind ...;
    ``transformed`` tells whether a transform stands between topic and table.
    """

    pipeline: str
    run_id: str
    operation: str
    source: KafkaSource
    sink: Sink
    staging: StagingArea
    transformed: bool


class PhaseTimes(NamedTuple):
    """A phase that ended, in nanoseconds since 1970 by this machine's clock."""

    name: str
    began_ns: int
    ended_ns: int
    failed: bool


class Observer:
    """Hears of one run, in the thread that works; this one does nothing."""

    def phase(self, times: PhaseTimes) -> None:
        """A phase of the checkpoint that is being made is over."""

    def committed(self, report: CheckpointReport) -> None:
        """It is in the ledger."""

    def ended(self, error: BaseException | None) -> None:
        """The run is over; with ``error`` if that ended it, an interruption too."""


class Starter(NamedTuple):
    """A scheduler's job that the runs of this context belong to, and its run's id."""

    job: str
    run_id: str


STARTER: ContextVar[Starter | None] = ContextVar("eo_pipeline.run.observing", default=None)


@contextmanager
def started_by(starter: Starter) -> Iterator[None]:
    """Within, runs say who started them."""
    token = STARTER.set(starter)
    try:
        yield
    finally:
        STARTER.reset(token)


#: Hears of nothing.
NOBODY = Observer()

#: Makes one for a run that begins.
MakeObserver = Callable[[ObservedRun], Observer]

"""How long the phases of a checkpoint take, whichever thread goes through them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from eo_pipeline.run.observing import PhaseTimes


class Timing:
    """A ``with`` block that is timed; ``seconds`` and ``times`` are there once it was left."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.seconds = 0.0
        self.times: PhaseTimes | None = None

    def __enter__(self) -> Self:
        self._began, self._began_ns = time.perf_counter(), time.time_ns()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self.times = PhaseTimes(self.phase, self._began_ns, time.time_ns(), exc is not None)


class Stopwatch:
    """Seconds by phase, for the next report; ``tell`` tells who watches."""

    def __init__(self, tell: Callable[[PhaseTimes], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._tell = tell

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count what goes on within."""
        timing = Timing(phase)
        try:
            with timing:
                yield
        finally:
            self.count(timing)

    def count(self, timing: Timing) -> None:
        """Count a phase that is over; the seconds of one that failed are told only."""
        if timing.times is None:
            return
        if not timing.times.failed:
            self.seconds[timing.phase] = self.seconds.get(timing.phase, 0.0) + timing.seconds
        self._tell(timing.times)

    def taken(self) -> dict[str, float]:
        """What was counted, for a report; the next one begins at nothing."""
        seconds, self.seconds = self.seconds, {}
        return seconds

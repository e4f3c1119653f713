"""A code location whose runs stop where a test says, so that the test may terminate them there.

The file that ``EO_TEST_HELD`` names holds ``{"pipeline": ..., "hold": ...}``. A run reads it when
it starts, so that one server serves many tests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from eo_pipeline.crashpoints import CrashPoint, Reach, reaching
from eo_pipeline.dagster.definitions import pipeline_definitions
from eo_pipeline.dagster.naming import Automation
from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.pipeline import Pipeline

VARIABLE = "EO_TEST_HELD"

#: Longer than any test waits.
FOR_EVER_S = 120.0

IN_PROCESSES = "events_in_processes"


class Held(Pipeline):
    """Stops at the point ``at`` when it is reached for the ``nth`` time, and says so by the file
    ``arrived``. With ``fails`` it raises a retryable error there instead, each time; with
    ``finalizing`` it is within a finalizer when the signal comes.
    """

    hold: dict[str, Any]

    @contextmanager
    def _open_context(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        with reaching(self._reach()), super()._open_context(*arguments, **options) as context:
            yield context

    def _reach(self) -> Reach:
        left = self.hold.get("nth", 1)

        def reach(point: CrashPoint) -> None:
            nonlocal left
            left -= point == self.hold.get("at")
            if point == self.hold.get("at") and left <= 0:
                self._hold()

        return reach

    def _hold(self) -> None:
        with Path(self.hold["arrived"]).open("a") as file:
            file.write("once\n")
        if self.hold.get("fails"):
            raise SinkUnavailableError("the sink is away, says the test")
        if self.hold.get("finalizing"):
            Sleeper()
        time.sleep(FOR_EVER_S)


class Sleeper:
    """Sleeps where whatever is raised is ignored."""

    def __del__(self) -> None:
        time.sleep(FOR_EVER_S)


@dg.definitions
def defs() -> dg.Definitions:
    """Read anew by every run."""
    told = json.loads(Path(os.environ[VARIABLE]).read_text())
    pipeline = Held.from_config({**told["pipeline"], "hold": told["hold"]})
    automation = Automation(sensors="stopped", retry_delay_seconds=told["delay"])
    in_processes = dg.define_asset_job(
        IN_PROCESSES,
        selection=dg.AssetSelection.assets("events", "events_offsets").without_checks(),
        executor_def=dg.multiprocess_executor,
    )
    return dg.Definitions.merge(
        pipeline_definitions(pipeline, automation), dg.Definitions(jobs=[in_processes])
    )

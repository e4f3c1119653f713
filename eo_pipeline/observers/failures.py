"""Failures by kind, kept where `eo metrics` and `eo report` find them."""

from __future__ import annotations

from eo_pipeline.errors import ConfigError, scrubbed
from eo_pipeline.runs.report import ObservedRun, Observer


def kind_of(error: BaseException | None) -> str | None:
    """The class of an error; None for a run that ended well, or that somebody interrupted."""
    return type(error).__name__ if isinstance(error, Exception) else None


class FailureNotes(Observer):
    """Notes in staging that the run failed. None of a wrong setting: that is not a pipeline's yet,
    and a folder that it names is not made.
    """

    def __init__(self, run: ObservedRun) -> None:
        self._run = run

    def ended(self, error: BaseException | None) -> None:
        if (kind := kind_of(error)) is not None and not isinstance(error, ConfigError):
            self._run.staging.failures.add(kind, self._run.run_id, scrubbed(str(error)))

"""Notes of failed runs in staging, for `eo metrics` and `eo report`."""

from __future__ import annotations

from eo_pipeline.errors import ConfigError, scrubbed
from eo_pipeline.runs.report import ObservedRun, Observer


def kind_of(error: BaseException | None) -> str | None:
    """Return the name of an error's class; None for a successful or interrupted run."""
    return type(error).__name__ if isinstance(error, Exception) else None


class FailureNotes(Observer):
    """Notes a failed run in staging; not a ConfigError: the staging folder itself may be wrong, and
    is not created.
    """

    def __init__(self, run: ObservedRun) -> None:
        self._run = run

    def ended(self, error: BaseException | None) -> None:
        if (kind := kind_of(error)) is not None and not isinstance(error, ConfigError):
            self._run.staging.failures.add(kind, self._run.run_id, scrubbed(str(error)))

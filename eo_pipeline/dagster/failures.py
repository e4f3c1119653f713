"""The engine's errors as Dagster's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from eo_pipeline.errors import EoPipelineError


@contextmanager
def failures_that_stay() -> Iterator[None]:
    """What would fail again in the same way is not retried; the retry policy takes the rest."""
    try:
        yield
    except EoPipelineError as error:
        if error.retryable:
            raise
        raise dg.Failure(description=str(error), allow_retries=False) from error

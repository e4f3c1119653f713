"""A real pipeline as Dagster sees it, on the session's servers."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from tests.support.engine import Bench

#: A failed step is tried again at once.
AT_ONCE = Automation(retries=2, retry_delay_seconds=0)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster of its own, gone after the test."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def declared(bench: Bench) -> DagsterPipeline:
    """The bench's pipeline, 100 offsets a checkpoint, as Dagster runs it."""
    return DagsterPipeline(bench.pipeline(), AT_ONCE)

"""Fixtures for tests of the demo's commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.demo import Demo


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """Nothing of it outlives the test."""
    running = Demo(tmp_path)
    yield running
    if running.runs:
        running.process.terminate()
        running.end(240)

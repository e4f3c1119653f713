"""Which tests run in one process: those of a file, which share servers and fixtures.

``make test`` runs the suite in several processes (WORKERS), each with servers of its own. The
files that take longest come first, so that all end together.

Not by xdist's ``loadgroup``: of its marks pytest 9.2 sees nothing, and every test goes to whichever
process is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: The folders in the order in which they are started.
_ORDER = ("demo", "cli", "run", "dagster", "audit", "source", "spark", "sinks", "jvm")

#: These files start the demo, which wants its usual ports: one after the other.
_DEMO = ("test_make_run.py", "test_make_dev.py", "test_interrupted.py")


def group_of(nodeid: str) -> str:
    """What the test must share a process with: its file, or whatever starts the demo."""
    file = nodeid.partition("::")[0]
    return "demo" if Path(file).name in _DEMO else file


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a process whole groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))  # stable: within a folder as it was


def _rank(path: Path) -> tuple[int, int]:
    folder = path.relative_to(Path(__file__).parent).parts[0]
    known: Sequence[str] = _ORDER
    # what must go one after the other begins at once
    return known.index(folder) if folder in known else len(known), path.name not in _DEMO

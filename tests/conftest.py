"""Fixtures live in plugins, one file a server family.

``make test`` runs the suite in two processes, each with servers of its own. A file's tests share
servers, so they stay together; the files that take longest come first.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import reaper

pytest_plugins = ["tests.chaos", "tests.servers", "tests.stores", "tests.engine"]

#: The folders in the order in which they are started.
_ORDER = ("demo", "cli", "run", "dagster", "audit", "source", "spark", "sinks", "jvm")

#: These files start the demo, which wants its usual ports: one after the other.
_DEMO = ("test_make_run.py", "test_make_dev.py", "test_interrupted.py")

#: What every Spark of the suite is started with: JVMs that live for minutes and see few rows.
_SPARK_CONF = Path(__file__).parent / "spark_conf"

_REAPER = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    # a shell starts what it sends to the background with SIGINT ignored. Dagster would make
    # SIGTERM the same, and every process a test starts would inherit both
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # asked to end, a session ends its servers first, as it does by Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["SPARK_CONF_DIR"] = str(_SPARK_CONF)
    if not hasattr(config, "workerinput"):  # the processes of xdist are its to end, too
        config.stash[_REAPER] = reaper.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))  # stable: within a folder as it was
    for item in items:
        name = "demo" if item.path.name in _DEMO else str(item.path)
        item.add_marker(pytest.mark.xdist_group(name))


def _rank(path: Path) -> int:
    folder = path.relative_to(Path(__file__).parent).parts[0]
    return _ORDER.index(folder) if folder in _ORDER else len(_ORDER)

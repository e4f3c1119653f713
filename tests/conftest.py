"""Fixtures live in plugins, one file a server family."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import reaper

pytest_plugins = [
    "tests.support.chaos",
    "tests.support.tiers",
    "tests.support.resuming",
    "tests.support.parallel",
    "tests.support.store_folder",
    "tests.support.servers",
    "tests.support.stores",
    "tests.support.engine",
    "tests.support.registry",
    "tests.support.nessie",
    "tests.support.rest_catalog",
    "tests.support.secured",
    "tests.support.clusters",
    "tests.support.google",
    "tests.support.hdfs",
    "tests.support.azure",
]

#: What every Spark of the suite is started with: JVMs that live for minutes and see few rows.
_SPARK_CONF = Path(__file__).parent / "spark_conf"

# how long an example takes says how busy the machine is, nothing of the code
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

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

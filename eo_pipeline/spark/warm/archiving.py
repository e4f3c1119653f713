"""Makes the class-data archive: a Spark that does a little of all that a run's does, and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from eo_pipeline.errors import SetupError
from eo_pipeline.files import sync
from eo_pipeline.jvm.archive import (
    CACHE_VARIABLE,
    UNFINISHED,
    NoArchiveError,
    archive_of,
    fits,
    folder,
    forget_unused,
    seal,
)
from eo_pipeline.jvm.java import find_java
from eo_pipeline.jvm.locks import hold
from eo_pipeline.jvm.submit import spark_home, submit_command, with_users_arguments
from eo_pipeline.spark.warm.keeping import environment

_WAIT_S = 600

#: Run by a process of its own: the JVM of this one, if it has one, is somebody's.
_REHEARSAL = "eo_pipeline.run.rehearsal"
_PACKAGES = Path(__file__).parents[3]
_HERE = "local[*]"


def archive_for(arguments: Sequence[str]) -> Path:
    """Where the archive is, or would be, for a Spark that ``arguments`` of ``spark-submit`` start.

    Raises:
        NoArchiveError: there can be none.
        SetupError: no Java, or Spark's launcher does not take them.
    """
    return archive_of(submit_command(find_java(), spark_home(), with_users_arguments(arguments)))


def make_archive(
    arguments: Sequence[str], *, wait_s: float = _WAIT_S, number_max: int | None = None
) -> tuple[Path, bool]:
    """The archive for a Spark that ``arguments`` of ``spark-submit`` start, and whether it was made
    now, which takes half a minute.

    Args:
        arguments: see :func:`eo_pipeline.spark.launch.submit_arguments`.
        wait_s: so long is waited for another process that makes one.
        number_max: no more archives than that are there afterwards because of this one.

    Raises:
        SetupError: there can be none, or it was not written.
    """
    try:
        archive = archive_for(arguments)
    except NoArchiveError as error:
        raise SetupError(f"No archive can be made: {error}. Spark starts without one.") from error
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(folder() / ".lock", wait_s=wait_s) as lock:
            if fits(archive):
                return archive, False
            forget_unused(number_max)
            _make(arguments, archive, lock)
    except BlockingIOError as error:
        raise SetupError(f"Another process makes an archive and does not end: {error}") from error
    except OSError as error:
        raise SetupError(
            f"No archive can be made in {folder()}: {error}. {CACHE_VARIABLE} names another folder."
        ) from error
    return archive, True


def _make(arguments: Sequence[str], archive: Path, lock: int) -> None:
    """Written aside, and renamed when it is whole."""
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=archive.parent) as place:
        aside, log = Path(place) / archive.name, Path(place) / "log"
        order = {"arguments": list(arguments), "archive": str(aside), "seconds": _WAIT_S}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", _REHEARSAL],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=place,
                env=environment(_PACKAGES, _HERE),
                text=True,
                # it ends with its JVM, or both are ended; until then nobody else makes one
                process_group=0,
                pass_fds=[lock],
            )
            code = _ended(process, json.dumps(order))
        if code is None:
            raise SetupError(f"No archive was made within {_WAIT_S} s. {_end(log)}")
        if code != 0 or not aside.is_file():
            raise SetupError(f"No archive was made (exit code {code}). {_end(log)}")
        _put(aside, archive)


def _ended(process: subprocess.Popen[str], order: str) -> int | None:
    """Its exit code; None if it took too long. Nothing of it is left, of an interrupt neither."""
    try:
        process.communicate(order, timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def _put(aside: Path, archive: Path) -> None:
    """Whole, or not at all: a JVM does not look through what it maps."""
    aside.chmod(0o600)
    sync(aside)
    aside.replace(archive)
    seal(archive)


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:]

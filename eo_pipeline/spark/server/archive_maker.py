"""Makes the class-data archive: a Spark that does a little of all that a run's does, and ends."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eo_pipeline._process import hold
from eo_pipeline.errors import SetupError
from eo_pipeline.spark.class_archive import (
    CACHE_VARIABLE,
    UNFINISHED,
    NoArchiveError,
    archive_of,
    fits,
    folder,
    forget_unused,
    has_any,
    seal,
)
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import spark_home, submit_command, with_users_arguments
from eo_pipeline.spark.server.manage import environment
from eo_pipeline.storage.paths import fsync

log = logging.getLogger(__name__)

_WAIT_S = 600

#: Run by a process of its own: the JVM of this one, if it has one, is somebody's.
_REHEARSAL = "eo_pipeline.batch.warmup"
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
    fsync(aside)
    aside.replace(archive)
    seal(archive)


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:]


#: Set to anything, no archive is made without being asked for; nor where a build service sets CI.
OFF_VARIABLE = "EO_NO_RENEWAL"
_CI_VARIABLE = "CI"

#: However often it is killed, and whatever changes with each start.
_PAUSE_S = 24 * 3600.0
#: Of this release, and of others or of other settings.
_ARCHIVES_MAX = 3
_FREE_BYTES_MIN = 1024**3
#: A tenth of what others get: with less it would not end in time where there is always work.
_NICE = 10
_OUT_OF_MEMORY = "1000"
#: The parent of whatever has lost its own, and of a container's or a service's command.
_FIRST_PROCESS = 1


def renew(arguments: Sequence[str]) -> bool:
    """Begin to make the archive for a Spark that ``arguments`` of ``spark-submit`` start, in a
    process that outlives this one; whether it was begun. It is said, and done where it is wanted,
    may work, and was not tried within a day.
    """
    if not (_is_wanted() and has_any()):
        return False
    try:
        if _was_tried() or shutil.disk_usage(folder()).free < _FREE_BYTES_MIN:
            return False
        _tried().touch()
        _begin(arguments)
    except OSError as error:
        log.debug("No archive is made in the background: %s", error)
        return False
    log.info(
        "The archive of Spark's classes is made anew in the background, for half a minute "
        "(%s=1 turns that off).",
        OFF_VARIABLE,
    )
    return True


def _is_wanted() -> bool:
    """Not if it was turned off, and not behind the command of a container or a service, which ends
    with all that it started.
    """
    if os.environ.get(OFF_VARIABLE) or os.environ.get(_CI_VARIABLE):
        return False
    return _FIRST_PROCESS not in (os.getpid(), os.getppid())


def _was_tried() -> bool:
    with suppress(FileNotFoundError):
        return 0 <= time.time() - _tried().stat().st_mtime < _PAUSE_S
    return False


def _tried() -> Path:
    """A file that is as old as the last try."""
    return folder() / "renewed"


def _begin(arguments: Sequence[str]) -> None:
    output = os.open(folder() / "renewal.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    packages = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": packages}
    if CACHE_VARIABLE in os.environ:  # which may be a path from this working directory
        variables[CACHE_VARIABLE] = str(folder().parent)
    with os.fdopen(output, "wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=written,
            cwd=folder(),
            env=os.environ | variables,
            text=True,
            # neither the terminal's signals nor its end are meant for it
            start_new_session=True,
        )
    if process.stdin is not None:
        with process.stdin as order:
            json.dump({"arguments": list(arguments)}, order)


def main() -> None:
    """See above; ends at once if another process makes one."""
    os.nice(_NICE)
    with suppress(OSError):  # where there is such a file: the first to go if memory is short
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY)
    order = json.load(sys.stdin)
    try:
        make_archive(order["arguments"], wait_s=0, number_max=_ARCHIVES_MAX)
    except SetupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

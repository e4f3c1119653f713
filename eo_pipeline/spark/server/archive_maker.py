"""Creation of the class-data archive, by a short warm-up run of Spark in its own process."""

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

#: Program of a separate process: this process's JVM may be in use.
_WARMUP_MODULE = "eo_pipeline.batch.warmup"
_PACKAGES = Path(__file__).parents[3]
_MASTER = "local[*]"


def archive_for(arguments: Sequence[str]) -> Path:
    """Return the path of the archive for a Spark started by ``arguments`` of ``spark-submit``.

    Raises:
        NoArchiveError: no archive is possible.
        SetupError: no Java, or Spark's launcher rejects the arguments.
    """
    return archive_of(submit_command(find_java(), spark_home(), with_users_arguments(arguments)))


def make_archive(
    arguments: Sequence[str], *, wait_s: float = _WAIT_S, number_max: int | None = None
) -> tuple[Path, bool]:
    """Return the archive for a Spark started by ``arguments`` of ``spark-submit``, and whether it
    was created now, which takes half a minute.

    Args:
        arguments: see :func:`eo_pipeline.spark.launch.submit_arguments`.
        wait_s: seconds to wait for another process that creates one.
        number_max: limit of archives, the new one included.

    Raises:
        SetupError: no archive is possible, or it was not written.
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
    """Write the archive in a temporary folder, then publish it."""
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=archive.parent) as build:
        new_archive, log = Path(build) / archive.name, Path(build) / "log"
        order = {"arguments": list(arguments), "archive": str(new_archive), "seconds": _WAIT_S}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", _WARMUP_MODULE],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=build,
                env=environment(_PACKAGES, _MASTER),
                text=True,
                # killed with its JVM, as a group; until then the inherited lock excludes others
                process_group=0,
                pass_fds=[lock],
            )
            code = _exit_code(process, json.dumps(order))
        if code is None:
            raise SetupError(f"No archive was made within {_WAIT_S} s. {_tail(log)}")
        if code != 0 or not new_archive.is_file():
            raise SetupError(f"No archive was made (exit code {code}). {_tail(log)}")
        _publish(new_archive, archive)


def _exit_code(process: subprocess.Popen[str], order: str) -> int | None:
    """Return the exit code; None at a timeout. Kills the process group, on an interrupt too."""
    try:
        process.communicate(order, timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def _publish(new_archive: Path, archive: Path) -> None:
    """Rename the complete archive to its name: a JVM does not verify a mapped archive."""
    new_archive.chmod(0o600)
    fsync(new_archive)
    new_archive.replace(archive)
    seal(archive)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:]


#: Variable that disables automatic creation, if set; CI of build services does, too.
OFF_VARIABLE = "EO_NO_RENEWAL"
_CI_VARIABLE = "CI"

#: Minimum interval between two attempts, even if one was killed or the settings change.
_PAUSE_S = 24 * 3600.0
#: Archives kept, of this and other releases or settings.
_ARCHIVES_MAX = 3
_FREE_BYTES_MIN = 1024**3
#: A tenth of a normal process's share: with less it would time out on a busy machine.
_NICE = 10
_OUT_OF_MEMORY = "1000"
#: Parent of orphans, and of a container's or a service's command.
_FIRST_PROCESS = 1


def renew(arguments: Sequence[str]) -> bool:
    """Start creating the archive for a Spark started by ``arguments`` of ``spark-submit``, in a
    process that outlives this one; return whether it was started. It is logged. Not started if
    disabled, short of disk space, or attempted within a day.
    """
    if not (_is_wanted() and has_any()):
        return False
    try:
        if _was_attempted() or shutil.disk_usage(folder()).free < _FREE_BYTES_MIN:
            return False
        _attempt_file().touch()
        _start_process(arguments)
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
    """Return False if disabled, or if this is the command of a container or a service, or its
    child: all processes end with that command.
    """
    if os.environ.get(OFF_VARIABLE) or os.environ.get(_CI_VARIABLE):
        return False
    return _FIRST_PROCESS not in (os.getpid(), os.getppid())


def _was_attempted() -> bool:
    with suppress(FileNotFoundError):
        return 0 <= time.time() - _attempt_file().stat().st_mtime < _PAUSE_S
    return False


def _attempt_file() -> Path:
    """Return the file whose modification time is the last attempt."""
    return folder() / "renewed"


def _start_process(arguments: Sequence[str]) -> None:
    output = os.open(folder() / "renewal.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    packages = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": packages}
    if CACHE_VARIABLE in os.environ:  # may be relative to this working directory
        variables[CACHE_VARIABLE] = str(folder().parent)
    with os.fdopen(output, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder(),
            env=os.environ | variables,
            text=True,
            # independent of the terminal's signals and its end
            start_new_session=True,
        )
    if process.stdin is not None:
        with process.stdin as order:
            json.dump({"arguments": list(arguments)}, order)


def main() -> None:
    """Create the archive; exit at once if another process is creating one."""
    os.nice(_NICE)
    with suppress(OSError):  # on Linux: the first process to kill when memory is short
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY)
    order = json.load(sys.stdin)
    try:
        make_archive(order["arguments"], wait_s=0, number_max=_ARCHIVES_MAX)
    except SetupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

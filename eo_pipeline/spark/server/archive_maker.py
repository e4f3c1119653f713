"""Creation of the class-data archive, by a short warm-up run of Spark in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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
    seal,
)
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import spark_home, submit_command, with_users_arguments
from eo_pipeline.spark.server.manage import environment
from eo_pipeline.storage.paths import fsync

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


def make_archive(arguments: Sequence[str]) -> tuple[Path, bool]:
    """Return the archive for a Spark started by ``arguments`` of ``spark-submit``, and whether it
    was created now, which takes half a minute.

    Args:
        arguments: see :func:`eo_pipeline.spark.launch.submit_arguments`.

    Raises:
        SetupError: no archive is possible, or it was not written.
    """
    try:
        archive = archive_for(arguments)
    except NoArchiveError as error:
        raise SetupError(f"No archive can be made: {error}. Spark starts without one.") from error
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(folder() / ".lock", wait_s=_WAIT_S) as lock:
            if fits(archive):
                return archive, False
            forget_unused()
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

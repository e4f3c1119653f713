"""A JVM for Spark that has been started and not yet been spoken to.

It takes a second until it listens. A process that knows that it will need one begins it, and
imports pyspark meanwhile; see :func:`eo_pipeline.jvm.driver.start_driver`. Nothing here imports
pyspark.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eo_pipeline.jvm.archive import making, with_archive
from eo_pipeline.jvm.java import find_java
from eo_pipeline.jvm.submit import (
    script_of_its_own,
    spark_home,
    submit_command,
    submit_environment,
    with_users_arguments,
)

#: A file into which Spark writes where it listens, and what PySpark then wants to know.
_CONNECTION_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"


@dataclass
class Begun:
    """A ``process`` that was started with ``arguments``; it will write to a file in ``folder``
    where it listens.
    """

    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]

    @property
    def connection(self) -> Path:
        """The file."""
        return Path(self.folder.name) / "connection"

    def end(self) -> None:
        """End it, whatever it is doing. Without its folder it would not end by itself: it cannot
        write where it listens, and never looks whether its owner is there.
        """
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


#: The one that was begun for this process's next session.
_waiting: list[Begun] = []


def begin(arguments: Sequence[str], archive: Path | None = None) -> Begun | None:
    """Start a JVM by ``arguments`` of ``spark-submit``; PYSPARK_SUBMIT_ARGS takes the place of the
    last. At its end it writes its classes to ``archive``, if that is given. None: only Spark's own
    scripts can start it.

    Raises:
        SetupError: no Java, or Spark's launcher failed.
    """
    java, home = find_java(), spark_home()
    if sys.platform == "win32" or script_of_its_own(home, java):
        return None
    command = submit_command(java, home, with_users_arguments(arguments))
    command = making(command, archive) if archive else with_archive(command, arguments)
    folder = tempfile.TemporaryDirectory(prefix="eo-spark-")
    told = str(Path(folder.name) / "connection")
    return Begun(tuple(arguments), _started(command, home, told), folder)


def begin_for_later(arguments: Sequence[str]) -> None:
    """:func:`begin` what :func:`taken` gives, unless there is one already.

    Raises:
        SetupError: see :func:`begin`.
    """
    if not _waiting and (begun := begin(arguments)) is not None:
        _waiting.append(begun)
        # before the folder goes, as all folders for a while do at the end
        atexit.register(_end_what_waits)


def taken(arguments: Sequence[str]) -> Begun | None:
    """The one that was begun for later with these ``arguments`` and lives; one of others ends."""
    if not _waiting:
        return None
    begun = _waiting.pop()
    if begun.arguments == tuple(arguments) and begun.process.poll() is None:
        return begun
    begun.end()
    return None


def _end_what_waits() -> None:
    while _waiting:
        _waiting.pop().end()


def _started(command: Sequence[str], home: Path, connection: str) -> subprocess.Popen[bytes]:
    """The JVM, which ends when the pipe to it is closed: by us, or as we die."""
    variables = {_CONNECTION_VARIABLE: connection, "SPARK_CONNECT_MODE": "0"}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        env=os.environ | submit_environment(home) | variables,
        # Ctrl-C at the terminal is this process's to handle, with Spark's help
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )

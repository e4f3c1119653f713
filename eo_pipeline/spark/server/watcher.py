"""The process beside a warm Spark: it starts the JVM, looks how busy it is, and ends it.

    eo spark start ──(an order: stdin)──> watcher ──(a pipe)──> JVM: Spark Connect, py4j

The JVM ends when the pipe to it is closed, so that it cannot outlive its watcher, however that
ends. The watcher ends it when nobody has used it for a while, when it is asked to (SIGTERM), and
when whoever started it is gone before the server was written down.

This file is run as a script, so that the watcher stays small: nothing but py4j and the standard
library.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

#: Names a file into which Spark's py4j server writes where it listens.
CONNECTION_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"

#: What the starter sends when the server was written down.
GO = "go\n"

#: Seconds between two looks at most, for the JVM to answer one, and to end in an orderly way.
LOOK_S = 5.0
ANSWER_S = 60.0
GRACE_S = 15.0
#: The same for its start, on a machine that is busy.
START_S = 600.0

_LOOK_S_MIN = 0.1
_STARTING_LOOK_S = 0.05


class Activity(NamedTuple):
    """What a server does at a moment."""

    #: operations that are executed now
    busy: int
    sessions: int
    #: seconds since a client asked for anything
    idle_s: float


def activity(jvm: Any) -> Activity:
    """What the server in ``jvm`` does; asked over py4j, of Spark Connect's own service.

    Raises:
        Py4JError, OSError: it does not answer.
    """
    service = spark_connect(jvm)
    executions = service.listActiveExecutions()
    sessions = service.sessionManager().listActiveSessions()
    count = sessions.size()
    if executions.isRight():
        return Activity(executions.right().get().size(), count, 0.0)
    # of the last execution by the JVM's own clock, of the sessions by that of the day
    last = (jvm.java.lang.System.nanoTime() - executions.left().get()) / 1e9
    now = jvm.java.lang.System.currentTimeMillis()
    seen = [(now - sessions.apply(n).lastAccessTimeMs()) / 1e3 for n in range(count)]
    return Activity(0, count, max(0.0, min([last, *seen])))


def spark_connect(jvm: Any) -> Any:
    """Scala's object for Spark Connect's service."""
    package = jvm.org.apache.spark.sql.connect.service
    return getattr(getattr(package, "SparkConnectService$"), "MODULE$")


def gateway(port: int, secret: str, answer_s: float) -> JavaGateway:
    """A connection to the JVM's py4j server; it is made with the first call."""
    for name in ("py4j.java_gateway", "py4j.clientserver"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its errors are raised as well
    return JavaGateway(
        gateway_parameters=GatewayParameters(
            port=port, auth_token=secret, auto_convert=True, read_timeout=answer_s
        )
    )


class _AskedToEndError(BaseException):
    """SIGTERM; no Exception, which py4j would take for one of its connection."""


class _Watcher:
    """The JVM, and what is to be known of it."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._artifacts = Path("artifacts")
        self._litter = not self._artifacts.exists()
        self._folder = tempfile.TemporaryDirectory(prefix="eo-spark-")
        connection = Path(self._folder.name) / "connection"
        self._process = subprocess.Popen(
            order["command"],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            env={**order["environment"], CONNECTION_VARIABLE: str(connection)},
        )
        self._connection = connection

    def serve(self) -> dict[str, Any]:
        """Start the server; where it is."""
        while not self._connection.is_file():
            if self._process.poll() is not None:
                raise OSError(f"Spark ended with exit code {self._process.returncode}")
            time.sleep(_STARTING_LOOK_S)
        port, secret = read_connection(self._connection.read_bytes())
        self._gateway = gateway(port, secret, ANSWER_S)
        jvm = gateway(port, secret, START_S).jvm
        settings = jvm.org.apache.spark.SparkConf()
        for key, value in self._order["settings"].items():
            settings.set(key, value)
        session = jvm.org.apache.spark.sql.classic.SparkSession.builder().config(settings)
        spark = session.getOrCreate()
        spark_connect(jvm).start(jvm.org.apache.spark.SparkContext.getOrCreate())
        return {
            "pid": self._process.pid,
            "port": spark_connect(jvm).localPort(),
            "gateway_port": port,
            "gateway_secret": secret,
            "spark": spark.version(),
            "java": jvm.java.lang.System.getProperty("java.version"),
        }

    def watch(self) -> None:
        """Until the server has ended, or nobody needs it any more."""
        timeout_s = self._order["idle_timeout_s"] or float("inf")
        look_s = max(_LOOK_S_MIN, min(LOOK_S, timeout_s / 4))
        while self._process.poll() is None:
            if self._is_idle(timeout_s):
                # a run that comes now finds no server; one that came just before is heard
                aside = self._take_record_away()
                time.sleep(look_s)
                if self._is_idle(timeout_s):
                    _say(f"ended after {timeout_s:g} s without use")
                    return
                self._put_record_back(aside)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(look_s)
        _say(f"Spark has ended by itself, with exit code {self._process.returncode}")

    def _is_idle(self, timeout_s: float) -> bool:
        try:
            now = activity(self._gateway.jvm)
        except (Py4JError, OSError):  # too busy to answer, or ending
            return False
        return not now.busy and now.idle_s >= timeout_s

    def _record(self) -> Path:
        return Path(self._order["record"])

    def _take_record_away(self) -> bytes | None:
        """The record, if it is this server's, and no longer where it was."""
        with contextlib.suppress(OSError, ValueError):
            text = self._record().read_bytes()
            if json.loads(text)["watcher_pid"] == os.getpid():
                self._record().unlink()
                return text
        return None

    def _put_record_back(self, text: bytes | None) -> None:
        """Unless somebody has started another server meanwhile."""
        with contextlib.suppress(OSError):
            if text is not None:
                handle = os.open(self._record(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write(text)

    def end(self) -> None:
        """End the JVM, by force after the grace, and take away what it leaves."""
        if self._process.poll() is None:
            self._take_record_away()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._litter:
            # Spark Connect makes this folder where it was started, and keeps nothing in it
            with contextlib.suppress(OSError):
                self._artifacts.rmdir()
        self._folder.cleanup()


def read_connection(told: bytes) -> tuple[int, str]:
    """Port and secret, as PySpark's gateway writes them: a number, and a text with its length."""
    port, length = struct.unpack_from("!ii", told)
    return port, told[8 : 8 + length].decode()


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
    sys.stderr.flush()


def _asked_to_end(*_: object) -> NoReturn:
    raise _AskedToEndError


def main() -> int:
    """One order on stdin, an answer on stdout, GO on stdin; then until the server is to end."""
    signal.signal(signal.SIGTERM, _asked_to_end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watcher = _Watcher(json.loads(sys.stdin.readline()))
    try:
        sys.stdout.write(json.dumps(watcher.serve()) + "\n")
        sys.stdout.flush()
        if sys.stdin.readline() == GO:
            watcher.watch()
    except _AskedToEndError:
        _say("ended as asked")
    except (Py4JError, OSError) as error:
        _say(f"Spark did not start: {error}")
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watcher.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())

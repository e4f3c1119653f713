"""The watcher of a warm Spark: a process that starts the JVM, polls its activity, and ends it.

    eo spark start ──(an order: stdin)──> watcher ──(a pipe)──> JVM: Spark Connect, py4j

The JVM ends when the pipe to it closes, so it cannot outlive its watcher. The watcher ends it after
an idle timeout, at SIGTERM, and if its starter dies before the record of the server is written.

This file is run as a script, and imports only py4j and the standard library, to stay small.
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

#: Variable with the path of the file to which Spark's py4j server writes its port and secret.
CONNECTION_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"

#: Sent by the starter once the server's record is written.
GO = "go\n"

#: Maximum poll interval; timeouts of an answer of the JVM, and of its orderly end.
_POLL_S = 5.0
ANSWER_S = 60.0
GRACE_S = 15.0
#: Timeout of the JVM's start, on a busy machine.
START_S = 600.0

_POLL_S_MIN = 0.1
_START_POLL_S = 0.05


class Activity(NamedTuple):
    """Current activity of a server."""

    #: running operations
    busy: int
    sessions: int
    #: seconds since the last request of a client
    idle_s: float


def activity(jvm: Any) -> Activity:
    """Return the activity of the server in ``jvm``, read over py4j from Spark Connect's service.

    Raises:
        Py4JError, OSError: it does not answer.
    """
    service = spark_connect(jvm)
    executions = service.listActiveExecutions()
    sessions = service.sessionManager().listActiveSessions()
    count = sessions.size()
    if executions.isRight():
        return Activity(executions.right().get().size(), count, 0.0)
    # the last execution is timed by the JVM's monotonic clock, the sessions by the wall clock
    last = (jvm.java.lang.System.nanoTime() - executions.left().get()) / 1e9
    now_ms = jvm.java.lang.System.currentTimeMillis()
    idle_times = [(now_ms - sessions.apply(n).lastAccessTimeMs()) / 1e3 for n in range(count)]
    return Activity(0, count, max(0.0, min([last, *idle_times])))


def spark_connect(jvm: Any) -> Any:
    """Return the Scala object of Spark Connect's service."""
    package = jvm.org.apache.spark.sql.connect.service
    return getattr(getattr(package, "SparkConnectService$"), "MODULE$")


def gateway(port: int, secret: str, answer_s: float) -> JavaGateway:
    """Return a client of the JVM's py4j server; it connects at the first call."""
    for name in ("py4j.java_gateway", "py4j.clientserver"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its errors are raised, too
    return JavaGateway(
        gateway_parameters=GatewayParameters(
            port=port, auth_token=secret, auto_convert=True, read_timeout=answer_s
        )
    )


class _TerminatedError(BaseException):
    """SIGTERM. A BaseException: py4j takes an Exception for a connection error."""


class _Watcher:
    """The JVM of a warm Spark, from its start to its end."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._artifacts = Path("artifacts")
        self._removes_artifacts = not self._artifacts.exists()
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
        """Start the server; return its address."""
        while not self._connection.is_file():
            if self._process.poll() is not None:
                raise OSError(f"Spark ended with exit code {self._process.returncode}")
            time.sleep(_START_POLL_S)
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
        """Wait until the server has ended or was idle for its timeout."""
        timeout_s = self._order["idle_timeout_s"] or float("inf")
        poll_s = max(_POLL_S_MIN, min(_POLL_S, timeout_s / 4))
        while self._process.poll() is None:
            if self._is_idle(timeout_s):
                # runs find no server from now on; one that found it before shows in the activity
                record = self._withdraw_record()
                time.sleep(poll_s)
                if self._is_idle(timeout_s):
                    _log(f"ended after {timeout_s:g} s without use")
                    return
                self._restore_record(record)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(poll_s)
        _log(f"Spark has ended by itself, with exit code {self._process.returncode}")

    def _is_idle(self, timeout_s: float) -> bool:
        try:
            now = activity(self._gateway.jvm)
        except (Py4JError, OSError):  # too busy to answer, or ending
            return False
        return not now.busy and now.idle_s >= timeout_s

    def _record(self) -> Path:
        return Path(self._order["record"])

    def _withdraw_record(self) -> bytes | None:
        """Delete the record if it is this server's; return its content."""
        with contextlib.suppress(OSError, ValueError):
            text = self._record().read_bytes()
            if json.loads(text)["watcher_pid"] == os.getpid():
                self._record().unlink()
                return text
        return None

    def _restore_record(self, text: bytes | None) -> None:
        """Write the record again, unless another server was started meanwhile."""
        with contextlib.suppress(OSError):
            if text is not None:
                handle = os.open(self._record(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write(text)

    def end(self) -> None:
        """End the JVM, by force after the grace period, and remove its files."""
        if self._process.poll() is None:
            self._withdraw_record()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._removes_artifacts:
            # Spark Connect creates this folder in its working directory, and leaves it empty
            with contextlib.suppress(OSError):
                self._artifacts.rmdir()
        self._folder.cleanup()


def read_connection(content: bytes) -> tuple[int, str]:
    """Parse port and secret from the file of PySpark's gateway: a number, a length and a text."""
    port, length = struct.unpack_from("!ii", content)
    return port, content[8 : 8 + length].decode()


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
    sys.stderr.flush()


def _terminate(*_: object) -> NoReturn:
    raise _TerminatedError


def main() -> int:
    """Read an order on stdin, answer on stdout, await GO on stdin; then watch the server."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watcher = _Watcher(json.loads(sys.stdin.readline()))
    try:
        sys.stdout.write(json.dumps(watcher.serve()) + "\n")
        sys.stdout.flush()
        if sys.stdin.readline() == GO:
            watcher.watch()
    except _TerminatedError:
        _log("ended as asked")
    except (Py4JError, OSError) as error:
        _log(f"Spark did not start: {error}")
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watcher.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())

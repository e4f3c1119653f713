"""Starting a warm Spark, and stopping it: nothing but what was started here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from eo_pipeline._process import hold, send_signal, start_of
from eo_pipeline.errors import SetupError
from eo_pipeline.spark.class_archive import archive_in, with_archive
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import (
    CLIENT_VARIABLES,
    spark_home,
    submit_command,
    submit_environment,
    with_users_arguments,
)
from eo_pipeline.spark.launch import is_local, submit_arguments
from eo_pipeline.spark.server import watcher
from eo_pipeline.spark.server.record import (
    ServerRecord,
    UnreadableRecordError,
    differences,
    forget,
    path_of,
    read,
    records,
    terms,
    write,
)
from eo_pipeline.spark.server.watcher import Activity, activity, gateway

#: Seconds until a server that does not answer is called hung.
ANSWER_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What a server does now, and what it takes."""

    activity: Activity
    heap_used_bytes: int
    heap_max_bytes: int
    #: of the whole process; None where the system does not tell
    resident_bytes: int | None
    #: of classes that it was started with; empty without
    archive: str


def answers(record: ServerRecord) -> bool:
    """Whether the server answers within :data:`ANSWER_S`."""
    return ask(record) is not None


def ask(record: ServerRecord) -> Answer | None:
    """What the server says; None if it is gone, hung, or another one."""
    if not record.alive:
        return None
    connection = gateway(record.gateway_port, record.gateway_secret, ANSWER_S)
    try:
        jvm = connection.jvm
        runtime = jvm.java.lang.Runtime.getRuntime()
        return Answer(
            activity(jvm),
            runtime.totalMemory() - runtime.freeMemory(),
            runtime.maxMemory(),
            _resident_bytes(record.pid),
            archive_in(_management(jvm).getRuntimeMXBean().getInputArguments()),
        )
    except (Py4JError, OSError):
        return None
    finally:
        connection.close()


def _management(jvm: Any) -> Any:
    return jvm.java.lang.management.ManagementFactory


def _resident_bytes(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None


#: On this machine only, and every address it has.
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - asked for by name, and then with a token

DEFAULT_IDLE_S = 1800.0

#: Seconds a start may take on a busy machine, with a download of the connector; and an end.
_START_S = 600.0
_END_S = watcher.GRACE_S + 10
_LOOK_S = 0.05
_LOG_TAIL_LINES = 15

#: What would make the JVM somebody's client, or another process's, or let others in.
_FOREIGN = (
    *CLIENT_VARIABLES,
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
)


@dataclass(frozen=True)
class Wanted:
    """What to start: a Spark's master and its settings, and for how long."""

    master: str
    launch: Mapping[str, str]
    host: str = LOOPBACK
    port: int = 0
    idle_timeout_s: float = DEFAULT_IDLE_S


def start(folder: Path, wanted: Wanted) -> tuple[ServerRecord, bool]:
    """The warm Spark of ``folder``, and whether it was started now; there is one at a time.

    Raises:
        SetupError: another one runs there already or does not answer, something is missing, or
            Spark did not start.
    """
    folder = folder.resolve()
    try:
        records().mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(path_of(folder).with_suffix(".lock"), wait_s=_START_S):
            there = _running(folder, wanted)
            return (there, False) if there else (_started(folder, wanted), True)
    except BlockingIOError as error:
        raise SetupError(f"Another `eo spark start` in {folder} does not end: {error}") from error
    except OSError as error:
        raise SetupError(f"A warm Spark of {folder} cannot be started: {error}") from error


def _running(folder: Path, wanted: Wanted) -> ServerRecord | None:
    try:
        there = read(path_of(folder))
    except UnreadableRecordError:
        return None  # it is replaced
    if there is None or not there.alive:
        return None
    differ = differences(there.terms, terms(wanted.master, wanted.launch))
    if differ:
        raise SetupError(
            f"{there} was started with other settings ({', '.join(differ)}): `eo spark stop` ends "
            "it."
        )
    if not answers(there):
        raise SetupError(f"{there} does not answer: `eo spark stop` ends it. Its log: {there.log}")
    return there


def _started(folder: Path, wanted: Wanted) -> ServerRecord:
    token = secrets.token_urlsafe(32)
    log = path_of(folder).with_suffix(".log")
    order = {
        "command": _command(wanted),
        "environment": environment(folder, wanted.master),
        "settings": {"spark.connect.authenticate.token": token},
        "record": str(path_of(folder)),
        "idle_timeout_s": wanted.idle_timeout_s,
    }
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        process = subprocess.Popen(
            # of its own session: it outlives the terminal
            [sys.executable, watcher.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=folder,
            text=True,
            start_new_session=True,
        )
    told = _told(process, order, log)
    record = ServerRecord(
        folder=str(folder),
        host=wanted.host,
        port=told["port"],
        token=token,
        gateway_port=told["gateway_port"],
        gateway_secret=told["gateway_secret"],
        pid=told["pid"],
        started=start_of(told["pid"]) or "",
        watcher_pid=process.pid,
        watcher_started=start_of(process.pid) or "",
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        idle_timeout_s=wanted.idle_timeout_s,
        log=str(log),
        terms=terms(wanted.master, wanted.launch),
        versions={
            "eo-pipeline": importlib.metadata.version("eo-pipeline"),
            "spark": told["spark"],
            "java": told["java"],
        },
    )
    write(record)
    _send(process, watcher.GO)
    return record


def _command(wanted: Wanted) -> list[str]:
    settings = {
        **wanted.launch,
        "spark.connect.grpc.binding.address": wanted.host,
        "spark.connect.grpc.binding.port": str(wanted.port),
        # a worker that is kept knows a transform's modules as they were when it first saw them
        "spark.python.worker.reuse": "false",
    }
    arguments = submit_arguments(wanted.master, settings)
    command = submit_command(find_java(), spark_home(), with_users_arguments(arguments))
    return with_archive(command, arguments)


def environment(folder: Path, master: str) -> dict[str, str]:
    """For a server started in ``folder``: what a Spark in this process would have."""
    ours = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    ours |= submit_environment(spark_home())
    ours |= {"SPARK_CONNECT_MODE": "0"}
    # Python's workers import from the working directory, but a session's of Spark Connect have
    # another one
    ours["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), ours.get("PYTHONPATH")]))
    ours.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        ours.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return ours


def _told(process: subprocess.Popen[str], order: Mapping[str, Any], log: Path) -> dict[str, Any]:
    """Where the watcher's server is. Interrupted meanwhile, it ends with the pipe to it."""
    _send(process, json.dumps(order) + "\n")
    if process.stdout is None:
        raise AssertionError("the watcher is always started with a pipe")
    with process.stdout as answer:
        line = answer.readline()
    if line:
        found: dict[str, Any] = json.loads(line)
        return found
    process.wait()
    tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
    raise SetupError(f"The warm Spark did not start. The end of {log}:\n  {tail}")


def _send(process: subprocess.Popen[str], text: str) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # it has ended, and its answer will say so
            process.stdin.write(text)
            process.stdin.flush()


def stop(folder: Path) -> ServerRecord | None:
    """End the warm Spark of ``folder``, by force if it does not; None if there was none.

    Raises:
        SetupError: it does not end.
    """
    try:
        there = read(path_of(folder))
    except UnreadableRecordError:
        there = None
    if there is None:
        forget(folder)
        return None
    was = there.alive or there.watched
    if there.watched:
        send_signal(there.watcher_pid, there.watcher_started, signal.SIGTERM)
        _wait_for_the_end(there)
    for pid, started in (
        (there.pid, there.started),
        (there.watcher_pid, there.watcher_started),
    ):
        send_signal(pid, started, signal.SIGKILL)
    _wait_for_the_end(there)
    if there.alive:
        raise SetupError(f"{there} cannot be ended, not by SIGKILL either.")
    forget(folder)
    return there if was else None


def _wait_for_the_end(record: ServerRecord) -> None:
    deadline = time.monotonic() + _END_S
    while (record.alive or record.watched) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)

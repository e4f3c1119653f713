"""Start, status and stop of a warm Spark."""

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

#: Seconds without an answer until a server counts as hung.
ANSWER_S = 5.0


@dataclass(frozen=True)
class Answer:
    """Activity and memory of a server."""

    activity: Activity
    heap_used_bytes: int
    heap_max_bytes: int
    #: of the whole process; None if the system does not report it
    resident_bytes: int | None
    #: class-data archive that it was started with; empty without
    archive: str


def answers(record: ServerRecord) -> bool:
    """Return whether the server answers within :data:`ANSWER_S`."""
    return ask(record) is not None


def ask(record: ServerRecord) -> Answer | None:
    """Request the server's status; None if it has ended, hangs, or is another one."""
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


#: Loopback address, and all addresses of this machine.
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - on request only, and with a token

DEFAULT_IDLE_S = 1800.0

#: Timeouts of a start on a busy machine, with a download of the connector, and of an end.
_START_S = 600.0
_END_S = watcher.GRACE_S + 10
_POLL_S = 0.05
_LOG_TAIL_LINES = 15

#: Variables that would make the JVM a client or another process's gateway, or set a token.
_CLIENT_VARIABLES = (
    *CLIENT_VARIABLES,
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
)


@dataclass(frozen=True)
class ServerOptions:
    """Options of a warm Spark: master, settings, address and idle timeout."""

    master: str
    launch: Mapping[str, str]
    host: str = LOOPBACK
    port: int = 0
    idle_timeout_s: float = DEFAULT_IDLE_S


def start(folder: Path, options: ServerOptions) -> tuple[ServerRecord, bool]:
    """Return the warm Spark of ``folder``, and whether it was started now.

    Raises:
        SetupError: another one runs there already or does not answer, something is missing, or
            Spark did not start.
    """
    folder = folder.resolve()
    try:
        records().mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(path_of(folder).with_suffix(".lock"), wait_s=_START_S):
            record = _running_server(folder, options)
            return (record, False) if record else (_start_server(folder, options), True)
    except BlockingIOError as error:
        raise SetupError(f"Another `eo spark start` in {folder} does not end: {error}") from error
    except OSError as error:
        raise SetupError(f"A warm Spark of {folder} cannot be started: {error}") from error


def _running_server(folder: Path, options: ServerOptions) -> ServerRecord | None:
    try:
        record = read(path_of(folder))
    except UnreadableRecordError:
        return None  # will be replaced
    if record is None or not record.alive:
        return None
    changed = differences(record.terms, terms(options.master, options.launch))
    if changed:
        raise SetupError(
            f"{record} was started with other settings ({', '.join(changed)}): `eo spark stop` "
            "ends it."
        )
    if not answers(record):
        raise SetupError(
            f"{record} does not answer: `eo spark stop` ends it. Its log: {record.log}"
        )
    return record


def _start_server(folder: Path, options: ServerOptions) -> ServerRecord:
    token = secrets.token_urlsafe(32)
    log = path_of(folder).with_suffix(".log")
    order = {
        "command": _command(options),
        "environment": environment(folder, options.master),
        "settings": {"spark.connect.authenticate.token": token},
        "record": str(path_of(folder)),
        "idle_timeout_s": options.idle_timeout_s,
    }
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        process = subprocess.Popen(
            # in a new session: it outlives the terminal
            [sys.executable, watcher.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=folder,
            text=True,
            start_new_session=True,
        )
    address = _start_watched(process, order, log)
    record = ServerRecord(
        folder=str(folder),
        host=options.host,
        port=address["port"],
        token=token,
        gateway_port=address["gateway_port"],
        gateway_secret=address["gateway_secret"],
        pid=address["pid"],
        started=start_of(address["pid"]) or "",
        watcher_pid=process.pid,
        watcher_started=start_of(process.pid) or "",
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        idle_timeout_s=options.idle_timeout_s,
        log=str(log),
        terms=terms(options.master, options.launch),
        versions={
            "eo-pipeline": importlib.metadata.version("eo-pipeline"),
            "spark": address["spark"],
            "java": address["java"],
        },
    )
    write(record)
    _send(process, watcher.GO)
    return record


def _command(options: ServerOptions) -> list[str]:
    settings = {
        **options.launch,
        "spark.connect.grpc.binding.address": options.host,
        "spark.connect.grpc.binding.port": str(options.port),
        # a reused worker would keep old versions of a transform's modules
        "spark.python.worker.reuse": "false",
    }
    arguments = submit_arguments(options.master, settings)
    command = submit_command(find_java(), spark_home(), with_users_arguments(arguments))
    return with_archive(command)


def environment(folder: Path, master: str) -> dict[str, str]:
    """Return the environment of a server in ``folder``, like that of a Spark of this process."""
    variables = {name: value for name, value in os.environ.items() if name not in _CLIENT_VARIABLES}
    variables |= submit_environment(spark_home())
    variables |= {"SPARK_CONNECT_MODE": "0"}
    # Python workers import from their working directory; Spark Connect's have another one
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(folder), variables.get("PYTHONPATH")])
    )
    variables.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        variables.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return variables


def _start_watched(
    process: subprocess.Popen[str], order: Mapping[str, Any], log: Path
) -> dict[str, Any]:
    """Have the watcher start its server; return the address. After an interrupt here the watcher
    ends, as its pipe closes.
    """
    _send(process, json.dumps(order) + "\n")
    if process.stdout is None:
        raise AssertionError("the watcher is always started with a pipe")
    with process.stdout as answer:
        line = answer.readline()
    if line:
        address: dict[str, Any] = json.loads(line)
        return address
    process.wait()
    tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
    raise SetupError(f"The warm Spark did not start. The end of {log}:\n  {tail}")


def _send(process: subprocess.Popen[str], text: str) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # it has ended; its answer is then empty
            process.stdin.write(text)
            process.stdin.flush()


def stop(folder: Path) -> ServerRecord | None:
    """End the warm Spark of ``folder``, by force if necessary; None if there was none.

    Raises:
        SetupError: it does not end.
    """
    try:
        record = read(path_of(folder))
    except UnreadableRecordError:
        record = None
    if record is None:
        forget(folder)
        return None
    existed = record.alive or record.watched
    if record.watched:
        send_signal(record.watcher_pid, record.watcher_started, signal.SIGTERM)
        _wait_for_the_end(record)
    for pid, started in (
        (record.pid, record.started),
        (record.watcher_pid, record.watcher_started),
    ):
        send_signal(pid, started, signal.SIGKILL)
    _wait_for_the_end(record)
    if record.alive:
        raise SetupError(f"{record} cannot be ended, not by SIGKILL either.")
    forget(folder)
    return record if existed else None


def _wait_for_the_end(record: ServerRecord) -> None:
    deadline = time.monotonic() + _END_S
    while (record.alive or record.watched) and time.monotonic() < deadline:
        time.sleep(_POLL_S)

"""What a warm Spark says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from eo_pipeline.jvm.archive import archive_in
from eo_pipeline.spark.warm.record import ServerRecord
from eo_pipeline.spark.warm.watcher import Activity, activity, gateway

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

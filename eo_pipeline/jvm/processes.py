"""Other processes: which one a pid means, and signals that cannot reach the wrong one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

#: Linux has descriptors that stand for a process.
_HAS_DESCRIPTORS = hasattr(signal, "pidfd_send_signal")


def start_of(pid: int) -> str | None:
    """When ``pid`` began, as a text no later process under the same pid will have.

    None if there is no such process, or it has ended and nobody collected it yet.
    """
    if not Path("/proc/self/stat").exists():
        return _start_by_ps(pid)
    try:
        # "pid (name) state parent ... start ...", where a name may hold spaces and brackets
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if fields[0] == "Z" else f"{boot} {fields[19]}"


def cpu_seconds(pid: int) -> float | None:
    """Processor time that ``pid`` has used, with that of children it has collected.

    None if there is no such process, or where the system does not tell.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # user, system, and both of children: fields 14 to 17 of proc_pid_stat(5), counted from 1
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _start_by_ps(pid: int) -> str | None:
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    return answer.stdout.strip() or None


def send_signal(pid: int, started: str, number: signal.Signals) -> bool:
    """Send ``number`` to the process ``pid`` that began at ``started``; False if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        if _HAS_DESCRIPTORS:
            return _send_by_descriptor(pid, started, number)
        if start_of(pid) == started:
            os.kill(pid, number)
            return True
    return False


def _send_by_descriptor(pid: int, started: str, number: signal.Signals) -> bool:
    """The descriptor stays with its process: checked after opening, it cannot mean another one."""
    process = os.pidfd_open(pid)
    try:
        if start_of(pid) != started:
            return False
        signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)
    return True

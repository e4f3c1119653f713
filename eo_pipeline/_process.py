"""This process and others on the host: signals, lifetime, threads, processor time and file locks.

An interruption is lost if it arrives while Python finalizes an object. A signal's handler runs
between any two steps of the main thread. If that thread is within a ``__del__``, or a callback of a
weak reference or of the garbage collector, an exception of the handler goes to
:func:`sys.unraisablehook` and no further (Python's documentation of ``object.__del__``). The run
then continues, although it was terminated: seen with Dagster's Terminate, for minutes, while
SQLAlchemy's weak references were collected. :func:`sent_again` sends the signal again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

#: Seconds until a dropped signal is sent again: finalizers are short, and it may be dropped again.
AGAIN_SECONDS = 0.05

log = logging.getLogger(__name__)


@contextmanager
def sent_again() -> Iterator[None]:
    """Send a signal again if Python dropped its handler's exception, within the block.

    Does nothing outside the main thread: signal handlers do not run there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = sys.unraisablehook

    def hook(ignored: UnraisableHookArgs) -> None:
        number = _raised_by_signal(ignored)
        if number is None:
            earlier(ignored)
            return
        log.debug("%s came while an object was finalized; it is sent again", number.name)
        again = threading.Timer(AGAIN_SECONDS, _send, [number])
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = earlier


def _send(number: signal.Signals) -> None:
    # to the thread and not the process: whatever call it waits in is to return
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, number)


def _raised_by_signal(ignored: UnraisableHookArgs) -> signal.Signals | None:
    """The signal whose handler raised what is ignored; None if it is of another origin."""
    if threading.current_thread() is not threading.main_thread():
        return None
    raised_in = _codes(ignored.exc_traceback)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler is signal.default_int_handler:  # in C: it has no code
            if ignored.exc_type is KeyboardInterrupt:
                return signal.Signals(number)
        elif getattr(handler, "__code__", None) in raised_in:
            return signal.Signals(number)
    return None


def _codes(traceback: TracebackType | None) -> set[object]:
    codes: set[object] = set()
    while traceback is not None:
        codes.add(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return codes


_ends = False
_is_ours = False
_repeats = False


def this_process_ends(*, is_ours: bool = False) -> None:
    """Declare that this process ends with its work: a command, a Dagster run. ``is_ours``: the
    only code in it besides this package's is what a document names.
    """
    global _ends, _is_ours
    _ends, _is_ours = True, is_ours


def process_ends() -> bool:
    """Return whether :func:`this_process_ends` was called. A notebook or a service may stay."""
    return _ends


def process_is_ours() -> bool:
    """Return whether :func:`this_process_ends` was called with ``is_ours``."""
    return _is_ours


def this_process_repeats() -> None:
    """Declare that this process does its work again and again until it is interrupted."""
    global _repeats
    _repeats = True


def process_repeats() -> bool:
    """Return whether :func:`this_process_repeats` was called."""
    return _repeats


_A = TypeVar("_A")
_B = TypeVar("_B")

#: A store answers more concurrent requests no faster.
_AT_ONCE = 16


def each(act: Callable[[_A], _B], of: Sequence[_A]) -> list[_B]:
    """Call ``act`` on each item in parallel, and return the results in the items' order.

    Raises the error of the first item, in that order, that fails, after the calls in progress
    have ended; the remaining calls are not started.
    """
    if len(of) < 2:
        return [act(one) for one in of]
    with ThreadPoolExecutor(min(_AT_ONCE, len(of))) as pool:
        return list(pool.map(act, of))


#: Linux has descriptors that stand for a process.
_HAS_DESCRIPTORS = hasattr(signal, "pidfd_send_signal")


def start_of(pid: int) -> str | None:
    """Return when ``pid`` began, as a text no later process under the same pid will have.

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


@contextlib.contextmanager
def hold(lock: Path, *, wait_s: float) -> Iterator[int]:
    """Hold the file ``lock``; yields its descriptor.

    A child that inherits the descriptor holds the lock too, for as long as it, or any process it
    forks, lives. So whoever gets the lock of a server's folder knows that nothing of an earlier
    server is left.

    Raises:
        BlockingIOError: others still held it after ``wait_s`` seconds.
        OSError: the file cannot be opened for writing.
    """
    with lock.open("ab") as file:
        deadline = time.monotonic() + wait_s
        while not _taken(file.fileno()):
            if time.monotonic() > deadline:
                raise BlockingIOError(f"{lock} is held by another process")
            time.sleep(0.05)
        yield file.fileno()


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

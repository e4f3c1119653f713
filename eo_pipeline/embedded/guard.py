"""A guard process: it runs a server that cannot outlive its owner, however the owner ends.

    owner ──(orders: a pipe)──> guard ──> server ──> what the server forks

The owner holds the write end of a pipe, which the kernel closes when the owner dies, also by
SIGKILL. The guard, a separate process, reads end-of-file and ends the server. A byte on the pipe is
a signal number for the server: only its parent can signal a pid that cannot have been reused. On
Linux the server also dies if the guard is killed (``PR_SET_PDEATHSIG``), and the guard adopts and
ends the orphans of a killed server (``PR_SET_CHILD_SUBREAPER``): PostgreSQL's backends outlive
their postmaster for a while, each in its own session.

The guard is this file, run as a script. It imports only the standard library, to start in 50 ms and
stay small.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Interval of checks of the parent's pid: a child forked by the owner may hold the pipe open after
#: the owner's death.
_POLL_S = 1.0
#: Seconds after the grace period until the guard itself is killed.
_SWEEP_S = 5.0


class Account(NamedTuple):
    """User and group of the server."""

    uid: int
    gid: int


class GuardedProcess:
    """A process that ends with this one. Created by :meth:`start`."""

    def __init__(self, guard: subprocess.Popen[bytes], pid: int, grace_s: float) -> None:
        self._guard = guard
        self._grace_s = grace_s
        #: pid of the server, not of its guard
        self.pid = pid

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        log: Path,
        keep: Sequence[int] = (),
        account: Account | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        grace_s: float = 10.0,
        variables: Mapping[str, str] | None = None,
    ) -> GuardedProcess:
        """Start ``command``; its output is appended to ``log``.

        ``variables`` are added to its environment; arguments are readable by every user of this
        machine. It inherits the descriptors ``keep`` (see :func:`eo_pipeline._process.hold`), and
        runs as ``account`` if given, which requires root. To stop, it gets ``stop_signal`` and,
        ``grace_s`` later, SIGKILL.

        Raises:
            OSError: ``command`` could not be started; the reason is in ``log``.
        """
        options = ["--stop-signal", str(stop_signal.value), "--grace-s", str(grace_s)]
        options += [f"--uid={account.uid}", f"--gid={account.gid}"] if account else []
        options += [f"--keep-fd={descriptor}" for descriptor in keep]
        with log.open("ab") as output:
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *options, "--", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                pass_fds=keep,
                env={**os.environ, **(variables or {})},
                start_new_session=True,  # the owner handles Ctrl-C at the terminal
            )
        return cls(guard, _read_pid(guard, command[0], log), grace_s)

    @property
    def alive(self) -> bool:
        return self._guard.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server alone; no effect if it has ended."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._guard.stdin.fileno(), bytes([number]))

    def kill(self) -> None:
        """SIGKILL the server, as in a crash, and wait for the end of all its processes."""
        self.send(signal.SIGKILL)
        self.terminate()

    def terminate(self) -> None:
        """End the server, by force after the grace period, and wait for its end."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        try:
            self._guard.wait(self._grace_s + _SWEEP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the server's end; return its exit code, or 128 + the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        return self._guard.wait(timeout_s)


def _read_pid(guard: subprocess.Popen[bytes], program: str, log: Path) -> int:
    """Read the server's pid, the only line that the guard prints."""
    if guard.stdout is None:
        raise AssertionError("the guard is always started with a pipe")
    with guard.stdout as report:
        line = report.readline()
    if line:
        return int(line)
    if guard.stdin is not None:
        guard.stdin.close()
    guard.wait()
    raise OSError(f"{program} could not be started; see {log}")


# ---- the guard's own process ----


class _Supervisor:
    """The guard: starts the server, forwards signals, ends the server with its owner."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._owner = os.getppid()
        self._exit_status: int | None = None
        # every signal, SIGCHLD too, arrives as a byte for select: no race with the loop
        self._signals, notify = socket.socketpair()
        for end in (self._signals, notify):
            end.setblocking(False)
        signal.set_wakeup_fd(notify.detach())
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        preexec = _die_with_guard()
        self._server = subprocess.Popen(
            options.command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            user=options.uid,
            group=options.gid,
            extra_groups=None if options.uid is None else [],
            pass_fds=options.keep_fd,
            start_new_session=True,
            preexec_fn=preexec,  # safe: this process has one thread
        )

    def run(self) -> int:
        """Wait for the server's end; return its exit code."""
        with contextlib.suppress(BrokenPipeError):  # the owner has died; the loop notices
            os.write(sys.stdout.fileno(), f"{self._server.pid}\n".encode())
        while self._exit_status is None and self._wait_for_event():
            pass
        if self._exit_status is None:
            self._end_server()
        self._sweep()
        code = os.waitstatus_to_exitcode(self._exit_status or 0)
        return 128 - code if code < 0 else code

    def _wait_for_event(self) -> bool:
        """Wait for a signal, an order or a timeout; return False if the server is to end."""
        stdin = sys.stdin.fileno()
        ready, _, _ = select.select([stdin, self._signals], [], [], _POLL_S)
        if self._signals in ready and set(self._signals.recv(64)) - {signal.SIGCHLD}:
            return False
        if stdin in ready:
            orders = os.read(stdin, 64)
            for number in orders:
                os.kill(self._server.pid, number)
            self._reap()
            return bool(orders)
        self._reap()
        return os.getppid() == self._owner

    def _end_server(self) -> None:
        self._signal_group(self._options.stop_signal)
        deadline = time.monotonic() + self._options.grace_s
        while self._exit_status is None and time.monotonic() < deadline:
            select.select([self._signals], [], [], 0.05)
            with contextlib.suppress(BlockingIOError):
                self._signals.recv(64)
            self._reap()

    def _sweep(self) -> None:
        """SIGKILL the server's process group and its orphans."""
        self._signal_group(signal.SIGKILL)
        while orphans := _children():
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.01)
        while self._exit_status is None:
            self._reap()
            time.sleep(0.01)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for zombies
            os.killpg(self._server.pid, number)

    def _reap(self) -> None:
        """Collect all ended children, adopted orphans included."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._server.pid:
                    self._exit_status = ended[1]
                    self._server.returncode = ended[1]  # else Popen would wait for it


def _die_with_guard() -> Callable[[], None] | None:
    """Adopt the server's orphans, and return the function that ties the server to this process;
    None except on Linux.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guard = os.getpid()

    def set_death_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:  # the guard died before the call
            os._exit(1)

    return set_death_signal


def _children() -> list[int]:
    """Return the pids of this process's children; empty without ``/proc``."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process ended after the listing
            # "pid (name) state parent ...", where a name may hold spaces and brackets
            if int(entry.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                pids.append(int(entry.parent.name))
    return pids


def main(arguments: Sequence[str]) -> int:
    """Run ``guard [options] -- command ...``; return the command's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stop-signal", type=int, default=signal.SIGTERM)
    parser.add_argument("--grace-s", type=float, default=10.0)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--keep-fd", type=int, action="append", default=[])
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        return _Supervisor(options).run()
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{options.command[0]}: {error}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs a server that cannot outlive its owner, however the owner ends.

    owner ──(orders: a pipe)──> guard ──> server ──> what the server forks

The owner holds the write end of a pipe, and the kernel closes it when the owner dies, also by
SIGKILL. The guard, a process of its own, reads end-of-file and ends the server. A byte on the
pipe is a signal number for the server: only its parent can signal a pid without the risk that
the pid already belongs to another process. On Linux the server also dies when the guard is
killed (``PR_SET_PDEATHSIG``), and what a killed server leaves behind falls to the guard
(``PR_SET_CHILD_SUBREAPER``), which ends that too: PostgreSQL's backends go on for a while
without their postmaster, each in a session of its own.

The guard is this file, run as a script: it must import nothing but the standard library, so that
a guard starts in 50 ms and stays small.
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

#: How often the guard looks at its parent's pid: a child forked by the owner may hold the pipe
#: open after the owner's death.
_LOOK_S = 1.0
#: Beyond the grace: how long a guard may take to sweep up before it is killed itself.
_SWEEP_S = 5.0


class Account(NamedTuple):
    """Whom to run as."""

    uid: int
    gid: int


class GuardedProcess:
    """A process that ends when this one does. Made by :meth:`start`."""

    def __init__(self, guard: subprocess.Popen[bytes], pid: int, grace_s: float) -> None:
        self._guard = guard
        self._grace_s = grace_s
        #: of the server itself, not of its guard
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

        It has the environment's ``variables`` besides: what a command's words say everybody on
        this machine can read. It inherits the descriptors ``keep`` (see
        :func:`eo_pipeline._process.hold`), and runs as ``account`` if one is given, which takes
        root. To stop, it gets ``stop_signal`` and, ``grace_s`` later, SIGKILL.

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
                start_new_session=True,  # Ctrl-C at the terminal is the owner's to handle
            )
        return cls(guard, _read_pid(guard, command[0], log), grace_s)

    @property
    def alive(self) -> bool:
        return self._guard.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server alone. Nothing happens if it has ended."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._guard.stdin.fileno(), bytes([number]))

    def kill(self) -> None:
        """SIGKILL the server, as a crash would end it, and wait until nothing of it is left."""
        self.send(signal.SIGKILL)
        self.terminate()

    def terminate(self) -> None:
        """End the server in an orderly way, by force after the grace, and wait until it is gone."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        try:
            self._guard.wait(self._grace_s + _SWEEP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def wait(self, timeout_s: float | None = None) -> int:
        """The server's exit code when it has ended, or 128 + the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: it lives on.
        """
        return self._guard.wait(timeout_s)


def _read_pid(guard: subprocess.Popen[bytes], program: str, log: Path) -> int:
    """The server's pid, which the guard reports as its first and only line."""
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
    """The guard: starts the server, obeys the pipe, ends the server when its owner is gone."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._owner = os.getppid()
        self._exit_status: int | None = None
        # every signal, SIGCHLD too, arrives as a byte to select on: no race with the loop
        self._signals, notify = socket.socketpair()
        for end in (self._signals, notify):
            end.setblocking(False)
        signal.set_wakeup_fd(notify.detach())
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        die_with_guard = _death_pact()
        self._server = subprocess.Popen(
            options.command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            user=options.uid,
            group=options.gid,
            extra_groups=None if options.uid is None else [],
            pass_fds=options.keep_fd,
            start_new_session=True,
            preexec_fn=die_with_guard,  # safe: this process has one thread
        )

    def run(self) -> int:
        """Until the server has ended; its exit code."""
        with contextlib.suppress(BrokenPipeError):  # the owner is gone already: the loop sees it
            os.write(sys.stdout.fileno(), f"{self._server.pid}\n".encode())
        while self._exit_status is None and self._owner_wants_it():
            pass
        if self._exit_status is None:
            self._end_server()
        self._sweep()
        code = os.waitstatus_to_exitcode(self._exit_status or 0)
        return 128 - code if code < 0 else code

    def _owner_wants_it(self) -> bool:
        """Wait for something to happen; False when the server is to end."""
        stdin = sys.stdin.fileno()
        ready, _, _ = select.select([stdin, self._signals], [], [], _LOOK_S)
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
        """SIGKILL what is left: the server after its grace, and what it leaves behind."""
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
        """Collect every child that has ended, the server's orphans included."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._server.pid:
                    self._exit_status = ended[1]
                    self._server.returncode = ended[1]  # so that Popen does not ask for it


def _death_pact() -> Callable[[], None] | None:
    """On Linux: adopt the server's orphans; and what the server calls to die with this process."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guard = os.getpid()

    def die_with_guard() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:  # it died before the call
            os._exit(1)

    return die_with_guard


def _children() -> list[int]:
    """Pids of this process's children; always empty where there is no ``/proc``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended between the listing and the reading
            # "pid (name) state parent ...", where a name may hold spaces and brackets
            if int(entry.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.parent.name))
    return found


def main(arguments: Sequence[str]) -> int:
    """``guard [options] -- command ...``: the exit code is the command's."""
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

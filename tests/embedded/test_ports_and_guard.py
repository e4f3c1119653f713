"""Free ports, folder locks, and a guard that lets no process outlive its owner."""

from __future__ import annotations

import ast
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from eo_pipeline._process import hold
from eo_pipeline.embedded import guard
from eo_pipeline.embedded.guard import GuardedProcess
from eo_pipeline.embedded.ports import HOST, free_port, is_free
from tests.support.servers import is_gone, wait_until

SLEEP = ["sleep", "300"]
#: prints its pid, then waits in a session of its own, as PostgreSQL's backends do
DETACHED = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(300)"
#: the shell stays the server; what it starts in the background is what a kill leaves behind
LEAVES_ORPHAN = ["sh", "-c", f'{sys.executable} -c "{DETACHED}" & wait']
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="by a service of the Linux kernel")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind((HOST, 0))
        yield server


def logged_pid(log: Path) -> int:
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    return int(log.read_text())


def test_the_preferred_port_is_taken_when_it_is_free() -> None:
    port = free_port()
    assert free_port(port) == port


def test_a_port_is_given_once_though_nobody_listens_there_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster has ports for six servers before the first one is started."""
    taken = free_port()
    drawn, randint = [taken, taken], random.randint
    monkeypatch.setattr(random, "randint", lambda *ends: drawn.pop() if drawn else randint(*ends))
    assert free_port() != taken


def test_another_port_is_taken_when_somebody_listens_on_the_preferred_one(
    listener: socket.socket,
) -> None:
    listener.listen()
    taken = listener.getsockname()[1]
    assert free_port(taken) != taken


def test_a_port_that_is_bound_but_not_yet_listened_on_is_not_free(listener: socket.socket) -> None:
    assert not is_free(listener.getsockname()[1])


def test_a_port_promised_to_another_process_is_not_given_before_that_process_ends() -> None:
    asks = (
        "from eo_pipeline.embedded.ports import free_port; print(free_port(), flush=True);input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", asks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert is_free(port)
        assert free_port(port) != port
        other.communicate("\n")
    assert free_port(port) == port


def test_a_port_to_avoid_is_not_given_even_if_preferred() -> None:
    port = free_port()
    assert free_port(port, avoid=[port]) != port


def test_ports_lie_below_the_range_from_which_clients_are_given_theirs() -> None:
    assert all(free_port() < 32768 for _ in range(20))


def test_a_lock_is_refused_while_another_holds_it_and_given_afterwards(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with hold(lock, wait_s=0), pytest.raises(BlockingIOError), hold(lock, wait_s=0.1):
        pass
    with hold(lock, wait_s=0):
        pass


def test_output_goes_to_the_log_and_the_exit_code_comes_back(log: Path) -> None:
    process = GuardedProcess.start(["sh", "-c", "echo out; echo err >&2; exit 7"], log=log)
    assert process.wait(120) == 7
    process.terminate()
    assert log.read_text() == "out\nerr\n"


def test_the_pid_is_the_servers_own(log: Path) -> None:
    process = GuardedProcess.start(SLEEP, log=log)
    assert psutil.Process(process.pid).cmdline() == SLEEP
    process.terminate()


def test_a_program_that_cannot_be_started_is_an_error_that_names_it(log: Path) -> None:
    with pytest.raises(OSError, match="no-such-program"):
        GuardedProcess.start(["no-such-program"], log=log)
    assert "No such file" in log.read_text()


def test_terminate_ends_the_server_with_its_stop_signal(log: Path) -> None:
    process = GuardedProcess.start(SLEEP, log=log, stop_signal=signal.SIGINT)
    process.terminate()
    assert process.wait() == 128 + signal.SIGINT
    assert is_gone(process.pid)
    assert not process.alive


def test_a_server_that_ignores_its_stop_signal_is_killed_after_the_grace(log: Path) -> None:
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); print(0, flush=True)"
    command = [sys.executable, "-c", f"{ignore}; time.sleep(300)"]
    process = GuardedProcess.start(command, log=log, grace_s=0.2)
    logged_pid(log)
    process.terminate()
    assert process.wait() == 128 + signal.SIGKILL


def test_kill_ends_the_server_by_sigkill_and_may_be_repeated(log: Path) -> None:
    process = GuardedProcess.start(SLEEP, log=log)
    process.kill()
    assert process.wait() == 128 + signal.SIGKILL
    process.kill()
    process.terminate()


def test_a_signal_reaches_the_server_alone(log: Path) -> None:
    report = "import signal; signal.signal(signal.SIGUSR1, lambda *_: print(1)); print(0)"
    command = [sys.executable, "-uc", f"{report}; signal.pause(); signal.pause()"]
    process = GuardedProcess.start(command, log=log)
    logged_pid(log)
    process.send(signal.SIGUSR1)
    wait_until(lambda: log.read_text() == "0\n1\n")
    assert process.alive
    process.terminate()


@on_linux
@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_what_a_server_started_in_sessions_of_its_own_ends_with_it(log: Path, end: str) -> None:
    process = GuardedProcess.start(LEAVES_ORPHAN, log=log)
    orphan = logged_pid(log)
    getattr(process, end)()
    assert is_gone(orphan)


def test_a_lock_is_held_until_the_last_process_of_a_server_is_gone(
    log: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    with hold(lock, wait_s=0) as descriptor:
        process = GuardedProcess.start(LEAVES_ORPHAN, log=log, keep=[descriptor])
    with pytest.raises(BlockingIOError), hold(lock, wait_s=0):
        pass
    orphan = logged_pid(log)
    process.kill()
    if sys.platform != "linux":
        os.kill(orphan, signal.SIGKILL)
    with hold(lock, wait_s=120):
        pass


def owner_of_a_server(log: Path, then: str = "time.sleep(300)") -> subprocess.Popen[str]:
    """A process that has a server guarded; the server's pid is its first line."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time\n"
            "from pathlib import Path\n"
            "from eo_pipeline.embedded.guard import GuardedProcess\n"
            f"process = GuardedProcess.start({SLEEP}, log=Path(sys.argv[1]))\n"
            f"print(process.pid, flush=True)\n{then}",
            str(log),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def first_number(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_server_ends_when_its_owner_gets_sigkill(log: Path) -> None:
    with owner_of_a_server(log) as owner:
        server = first_number(owner)
        owner.kill()
    wait_until(lambda: is_gone(server))


def test_a_server_ends_when_its_owner_just_exits(log: Path) -> None:
    with owner_of_a_server(log, then="os._exit(0)") as owner:
        server = first_number(owner)
    wait_until(lambda: is_gone(server))


def test_a_server_ends_with_its_owner_although_a_forked_child_holds_the_pipe_open(
    log: Path,
) -> None:
    fork = "child = os.fork()\nif child: print(child, flush=True)\ntime.sleep(300)"
    with owner_of_a_server(log, then=fork) as owner:
        server, child = first_number(owner), first_number(owner)
        owner.kill()
        try:
            wait_until(lambda: is_gone(server))
        finally:
            os.kill(child, signal.SIGKILL)


@on_linux
def test_a_server_ends_when_its_guard_gets_sigkill(log: Path) -> None:
    process = GuardedProcess.start(SLEEP, log=log)
    psutil.Process(process.pid).parent().kill()  # type: ignore[union-attr]
    wait_until(lambda: is_gone(process.pid))
    process.terminate()


def test_ctrl_c_at_the_terminal_reaches_neither_guard_nor_server(log: Path) -> None:
    """The owner decides what it means; it may have work to finish with the server's help."""
    process = GuardedProcess.start(SLEEP, log=log)
    assert os.getpgid(process.pid) != os.getpgid(0)
    assert os.getpgid(psutil.Process(process.pid).ppid()) != os.getpgid(0)
    process.terminate()


def test_a_guard_imports_only_the_standard_library() -> None:
    """So it is up in a moment, and stays small."""
    tree = ast.parse(Path(guard.__file__).read_text())
    modules = {
        name
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names

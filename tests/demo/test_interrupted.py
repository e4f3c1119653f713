"""A test session that is interrupted leaves nothing behind, whatever it had started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import reaper
from tests.support.servers import is_gone, wait_until

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
IN_PARALLEL = ("-n", "1", "-p", "tests.support.progress")


def ctrl_c(session: subprocess.Popen[str]) -> None:
    """What a terminal sends: to the whole process group."""
    os.killpg(session.pid, signal.SIGINT)


WAYS = [
    pytest.param(ctrl_c, IN_PARALLEL, id="Ctrl-C"),
    pytest.param(subprocess.Popen.terminate, IN_PARALLEL, id="SIGTERM"),
    pytest.param(subprocess.Popen.kill, IN_PARALLEL, id="SIGKILL", marks=pytest.mark.chaos),
    pytest.param(
        subprocess.Popen.terminate, (), id="SIGTERM, one process", marks=pytest.mark.chaos
    ),
]


@pytest.mark.parametrize(("interrupt", "options"), WAYS)
def test_an_interrupted_session_ends_its_servers_and_demos(
    interrupt: Callable[[subprocess.Popen[str]], None], options: tuple[str, ...], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    # a folder of its own: pytest closes the one that sessions share to other users when it starts,
    # and as root PostgreSQL, here and in the session that this test is part of, is one
    apart = ("--basetemp", str(tmp_path / "session"))
    command = [sys.executable, "-m", "pytest", "-q", "tests/demo/interrupted.py", *apart, *options]
    environment = os.environ | {"EO_TEST_PIDS": str(pids)}
    session = subprocess.Popen(
        command,
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: pids.exists() or session.poll() is not None, 600)
        assert pids.exists(), session.communicate()[0]
        started = [*map(int, pids.read_text().split())]
        assert len(started) > 5, "a server, a demo, its servers, and a guard for each"
        assert not any(map(is_gone, started))
        mark = psutil.Process(started[0]).environ()[reaper.VARIABLE]
        assert mark != os.environ[reaper.VARIABLE]
        interrupt(session)
        wait_until(lambda: all(map(is_gone, started)))
        said, _ = session.communicate(timeout=240)
    finally:
        session.kill()
    assert session.returncode != 0
    assert reaper.started_by(mark) == [], said

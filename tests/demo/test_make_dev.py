"""`make dev`: a table that grows by itself, and nothing that stays behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from typing import Any

import psutil
import pytest

from tests.demo.demo import Demo
from tests.support.servers import is_gone, those_alive, wait_until

pytestmark = pytest.mark.slow

_LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def beside(demo: Demo, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Another command on the same state."""
    command = [sys.executable, "-m", "demo", "--home", str(demo.home), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def in_a_shell_beside(demo: Demo, command: str) -> Any:
    """What a person in another terminal is told, as JSON."""
    script = f"source {demo.home}/.eo/env && cd / && {command}"
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def versions(demo: Demo) -> list[int]:
    """The checkpoints with rows that were shown."""
    return [int(version) for version in re.findall(r"version (\d+): [\d,]+ rows", demo.text)]


@pytest.mark.timeout(1800)
def test_the_table_grows_also_after_a_kill_and_nothing_is_left_behind(demo: Demo) -> None:
    demo.start("dev", "--rate", "200")
    demo.wait_for(r"version \d+: [\d,]+ rows")
    [ui] = re.findall(r"Dagster UI (http://127.0.0.1:\d+)", demo.text)
    with urllib.request.urlopen(ui, timeout=120) as answer:
        assert answer.status == 200
    refused = beside(demo, "run")
    assert refused.returncode == 1
    assert f"`make dev` (process {demo.process.pid}, {ui}) uses" in refused.stdout
    left = demo.descendants()
    assert listening_to_others(left) == []
    [status] = in_a_shell_beside(demo, "eo status --json")
    assert status["pipeline"] == "flights"
    assert status["version"] in versions(demo)

    shown = versions(demo)
    demo.kill()
    wait_until(lambda: all(is_gone(process.pid) for process in left))

    demo.start("dev", "--rate", "200")
    demo.wait_for(r"version \d+: [\d,]+ rows")
    assert min(versions(demo)) > max(shown)

    left = demo.descendants()
    stopped = beside(demo, "stop")
    assert (stopped.returncode, demo.end(120)) == (0, 0), stopped.stdout + demo.text
    assert "Ended `make dev`" in stopped.stdout
    assert all(is_gone(process.pid) for process in left)


def listening_to_others(processes: list[psutil.Process]) -> list[str]:
    """Addresses that another machine could reach."""
    return [
        f"{name} {connection.laddr}"
        for _, (name, connections) in those_alive(
            processes, lambda p: (p.name(), p.net_connections("tcp"))
        )
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr.ip not in _LOOPBACK
    ]

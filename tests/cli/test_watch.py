"""`eo watch`: one screen of all pipelines, on a terminal and where there is none."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from typing import Any

import pytest

from eo_pipeline.embedded.ports import free_port
from tests.cli.shell import Shell, eo
from tests.support.servers import wait_until

__all__ = ["eo"]

WATCH = [sys.executable, "-m", "eo_pipeline.cli", "watch", "--every", "0.2"]


def two_pipelines(eo: Shell) -> None:
    """One that is behind, and one whose broker is away."""
    eo.bench.topic.write(30)
    eo.document("pipelines/events.yaml", name="events")
    assert eo("run").code == 0
    eo.bench.topic.write(7)
    elsewhere = {**eo.sink(), "table": "elsewhere"}
    away = {**eo.bench.config["source"], "bootstrap_servers": f"127.0.0.1:{free_port()}"}
    eo.document("pipelines/away.yaml", name="away", source=away, sink=elsewhere)


def test_once_shows_every_pipeline_and_ends_with_the_code_of_the_one_that_is_away(
    eo: Shell,
) -> None:
    (eo.folder / "pipelines").mkdir()
    two_pipelines(eo)

    shown = eo("watch", "--once")
    assert shown.code == 4
    assert shown.err == ""
    rows = {line.split()[0]: line.split() for line in shown.out.splitlines()[1:]}
    assert rows["events"][1:5] == ["1", "forward", "7", "30"]
    assert rows["events"][-1] == "behind"
    assert "Connection refused" in " ".join(rows["away"])

    told: dict[str, Any] = eo("watch", "--once", "--json").json()
    by_name = {each["pipeline"]: each for each in told["pipelines"]}
    assert (by_name["events"]["lag"], by_name["events"]["error"]) == (7, None)
    assert by_name["events"]["rows_per_second"] > 0
    assert by_name["away"]["error"]["kind"] == "SourceUnavailableError"


def test_a_terminal_shows_what_changes_until_ctrl_c(eo: Shell) -> None:
    eo.bench.topic.write(30)
    eo.document()
    screen, theirs = pty.openpty()
    process = subprocess.Popen(WATCH, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    seen = bytearray()

    def shows(text: str) -> bool:
        seen.extend(os.read(screen, 65536))
        return text.encode() in seen

    wait_until(lambda: shows("never ran"))
    assert eo("run").code == 0
    wait_until(lambda: shows("up to date"))
    process.send_signal(signal.SIGINT)
    wait_until(lambda: process.poll() is not None or not shows("\0"))
    assert process.wait(120) == 130
    os.close(screen)


@pytest.mark.core
def test_a_pipe_gets_a_line_of_json_for_each_look(eo: Shell) -> None:
    eo.bench.topic.write(3)
    eo.document()
    process = subprocess.Popen([*WATCH, "--json"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lags = [json.loads(process.stdout.readline())["pipelines"][0].get("lag") for _ in range(6)]
    process.terminate()
    assert process.wait(120) == 143
    assert lags[-1] == 3

"""Verbs for tests of `make run` and `make dev`: the demo as a process, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.support.servers import those_alive

#: Other tests' servers must not be the demo's. SPARK_CONNECT_MODE_ENABLED, which pyspark leaves
#: behind in this process, stays: the demo has to get along with it.
_FOREIGN = ("SPARK_REMOTE", "DAGSTER_HOME", "EO_KAFKA_BOOTSTRAP", "EO_PG_DSN", "EO_STAGING")


class Demo:
    """`python -m demo`, started, watched and killed. Every process of it is a descendant."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.output = home / "output.txt"
        #: what it finds in its environment beside or instead of this process's
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Start it; its output is that of this start only."""
        environment = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "demo", "--home", str(self.home), *arguments],
                stdout=output,
                stderr=output,
                env=environment | self.environment,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, pattern: str, timeout_s: float = 600.0) -> None:
        """Until it has said that."""
        deadline = time.monotonic() + timeout_s
        ended = False
        while not re.search(pattern, self.text):
            if ended or time.monotonic() > deadline:
                how = f"exit code {self.process.returncode}" if ended else f"{timeout_s} s"
                pytest.fail(f"no {pattern!r} until {how}:\n{self.text}")
            ended = self.process.poll() is not None  # before the look: its last words count
            time.sleep(0.05)

    def end(self, timeout_s: float = 600.0) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s:\n{self.text}")

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the command alone: what it started has to notice."""
        self.process.kill()
        self.process.wait()

    def descendants(self) -> list[psutil.Process]:
        """Everything it started and what that started; also after this command was killed."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill_descendant(self, mark: str) -> bool:
        """SIGKILL the one whose command holds ``mark``, not its guard; False if there is none."""
        for process, command in those_alive(self.descendants(), psutil.Process.cmdline):
            if _holds(command, mark):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                    return True
        return False

    def javas(self) -> set[str]:
        """What runs on a Java virtual machine at this moment: names of main classes."""
        found: set[str] = set()
        for _, command in those_alive(self.descendants(), psutil.Process.cmdline):
            if command and Path(command[0]).name == "java":
                found |= {word for word in command if word in _MAIN_CLASSES}
        return found


_MAIN_CLASSES = {"kafka.Kafka", "kafka.tools.StorageTool", "org.apache.spark.deploy.SparkSubmit"}


def _holds(command: Sequence[str], mark: str) -> bool:
    is_guard = any(word.endswith("guard.py") for word in command)
    return not is_guard and any(mark in word for word in command)

"""Operations under way, each in a process of its own: killed, frozen, waited for."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.kills.clocks import Clock
from tests.kills.operations import operate

ROOT = Path(__file__).parents[2]

#: Copies of one process that has imported what a run needs.
_COPIES = multiprocessing.get_context("forkserver")
_COPIES.set_forkserver_preload(["tests.kills.warm"])

#: Seconds after which an operation is given up, on a machine that is busy with other things.
PATIENCE_S = 120.0


@dataclass
class Outcome:
    """``ok``; ``fail``, by its own words; ``info``: nobody knows what it did."""

    kind: str
    value: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    killed: bool = False
    hung: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.kind == "ok"


class Operation:
    """One that has begun, in a process of its own."""

    def __init__(self, config: dict[str, Any], asked: dict[str, Any]) -> None:
        self._began = time.monotonic()
        self._said: list[tuple[str, Any]] = []
        self._hung = False
        self._pipe, said = _COPIES.Pipe(duplex=False)
        self._process = _COPIES.Process(target=operate, args=(config, asked, said))
        self._process.start()
        said.close()

    def alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: signal.Signals) -> bool:
        """Whether it was there to hear it."""
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self._process.pid or 0), number)
            return True
        return False

    def told(self) -> Mapping[str, Any]:
        """What it aims at, if it has said so by now."""
        self._join(0.0)
        told: Mapping[str, Any] = dict(self._said).get("told", {})
        return told

    def kill_after(self, seconds: float) -> None:
        """SIGKILL, unless it is through before."""
        self._join(seconds)
        self.signal(signal.SIGKILL)

    def wait(self, seconds: float = PATIENCE_S) -> Outcome:
        """Until it has ended; by force if it takes too long."""
        self._join(seconds)
        if self.alive():
            self._hung = True
            self.signal(signal.SIGKILL)
        self._join(PATIENCE_S)
        spent = time.monotonic() - self._began
        said = dict(self._said)
        outcome = Outcome("info", told=said.get("told", {}), hung=self._hung, seconds=spent)
        for kind in ("ok", "fail"):
            if kind in said:
                outcome.kind, outcome.value = kind, said[kind]
        outcome.killed = self._process.exitcode == -signal.SIGKILL and not self._hung
        if outcome.kind == "fail" and outcome.value["error"] == "CommitUnknownError":
            outcome.kind = "info"
        if outcome.kind == "info" and not outcome.killed and not outcome.value:
            outcome.value = {
                "error": "hung" if self._hung else f"exit code {self._process.exitcode}"
            }
        return outcome

    def _join(self, seconds: float) -> None:
        """Wait, at most so long, and take in what it says."""
        self._process.join(seconds)
        with contextlib.suppress(EOFError, OSError):
            while self._pipe.poll():
                self._said.append(self._pipe.recv())


def get_ready(clock: Clock | None) -> None:
    """Start the process of which operations are copies. They have this clock."""
    before = {**os.environ}
    os.environ.update(clock.environment() if clock else {})
    try:
        forkserver.ensure_running()
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]

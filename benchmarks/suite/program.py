"""A peer's own process: it takes a line for each job and answers with its seconds."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.suite.errors import MeasurementError

_ANSWER = b'{"seconds"'
_TAIL_LINES = 12


class Program:
    """A process in a group of its own, ended with all that it started.

    Args:
        command: what to execute.
        log: where its words go.
        environment: its whole environment.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._buffer = b""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def job(self, line: str, limit: float) -> float:
        """The seconds that the program says the job took.

        Raises:
            MeasurementError: it failed, or gave no answer within ``limit`` seconds.
        """
        self.begin(line)
        return self._answer(time.monotonic() + limit)

    def begin(self, line: str) -> None:
        """Give it a job that is not waited for.

        Raises:
            MeasurementError: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise MeasurementError(f"it had ended: {self.last_words()}") from error

    def finish(self, limit: float) -> None:
        """Let it end by itself.

        Raises:
            MeasurementError: it failed, or did not end within ``limit`` seconds.
        """
        try:
            output, _ = self._process.communicate(timeout=max(limit, 0.1))
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"it did not end within {limit:.0f} s") from error
        finally:
            if self.alive:  # after an interrupt, too
                self.kill()
        if self._process.returncode != 0:
            with self._log.open("ab") as log:
                log.write(output)
            code = self._process.returncode
            raise MeasurementError(f"it ended with code {code}: {self.last_words()}")

    def kill(self) -> None:
        """Nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """The end of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-_TAIL_LINES:])[-600:]

    def _answer(self, deadline: float) -> float:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                while b"\n" in self._buffer:
                    line, _, self._buffer = self._buffer.partition(b"\n")
                    if line.startswith(_ANSWER):
                        return float(json.loads(line)["seconds"])
                if not selector.select(timeout=max(deadline - time.monotonic(), 0)):
                    self.kill()
                    raise MeasurementError(f"no answer in time: {self.last_words()}")
                read = os.read(self._process.stdout.fileno(), 65536)
                if not read:
                    self._process.wait()
                    raise MeasurementError(f"it ended: {self.last_words()}")
                self._buffer += read

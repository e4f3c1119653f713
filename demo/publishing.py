"""The publisher's process, as its owner sees it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from types import TracebackType
from typing import Self

from demo.servers import Servers
from demo.state import State
from eo_pipeline.embedded.guard import GuardedProcess
from eo_pipeline.errors import SourceUnavailableError

#: A publisher that fails is started again after a pause; so often without any progress.
_TRIES_MAX = 5
_PAUSE_S = 2.0
_REPORT_BYTES = 65_536


class Publishing:
    """Keeps a publisher at work, through every death of it or of the broker."""

    def __init__(self, state: State, lock: int, servers: Servers, *what: str) -> None:
        self._lock = lock
        self._what = what
        self._kafka = servers.kafka
        self._log = state.logs / "publisher.log"
        state.logs.mkdir(parents=True, exist_ok=True)
        #: in the topic, by the newest report; 0 before the first
        self.flights = 0
        #: the topic holds the total
        self.done = False
        self._failures = 0
        self._begin()

    def look(self) -> None:
        """Take in its reports; start it again if it has ended and is not done.

        Raises:
            SourceUnavailableError: it fails again and again.
        """
        ended = not self._process.alive  # before the reports: the last one must not be missed
        self._read_reports()
        if not ended or self.done:
            return
        self.done = self._process.wait() == 0
        if not self.done:
            self._try_again()

    def restart(self) -> None:
        """For a broker that was started again: the old one's publisher may wait for ever."""
        self._end()
        self._begin()

    def _end(self) -> None:
        self._process.kill()  # at any moment: the topic holds whole transactions
        os.close(self._reports)

    def _begin(self) -> None:
        self._reports, reports = os.pipe()
        os.set_blocking(self._reports, False)
        command = [sys.executable, "-m", "demo.publisher", self._kafka.bootstrap_servers]
        try:
            self._process = GuardedProcess.start(
                [*command, str(reports), *self._what], log=self._log, keep=[self._lock, reports]
            )
        finally:
            os.close(reports)

    def _try_again(self) -> None:
        self._failures += 1
        if self._failures >= _TRIES_MAX:
            raise SourceUnavailableError(
                f"The flights could not be published in {_TRIES_MAX} tries; see {self._log}. "
                "Nothing is lost: run again, and it goes on where the last transaction ended."
            )
        time.sleep(_PAUSE_S)
        self.restart()

    def _read_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):  # nothing new
            if lines := os.read(self._reports, _REPORT_BYTES).split():
                self.flights = int(lines[-1])
                self._failures = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

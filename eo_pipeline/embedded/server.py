"""What the embedded servers have in common: one folder, one life cycle."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from eo_pipeline._process import hold
from eo_pipeline.embedded.guard import Account, GuardedProcess
from eo_pipeline.embedded.ports import HOST, is_free
from eo_pipeline.errors import SetupError

_POLL_S = 0.05
_LOG_TAIL_LINES = 20


class EmbeddedServer(ABC):
    """A real server on 127.0.0.1 with all its files in one folder. It dies with its owner.

    It may be started again after :meth:`stop` and :meth:`kill`: on the same data and ports.
    """

    #: as messages call it
    NAME: ClassVar[str]
    STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGTERM
    START_TIMEOUT_S: ClassVar[float] = 180.0
    #: how long to wait for what is left of an earlier server of the same folder, after a crash
    FOLDER_WAIT_S: ClassVar[float] = 20.0
    #: how long an orderly shutdown may take before it is cut short
    STOP_GRACE_S: ClassVar[float] = 10.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / "server.log"
        self._process: GuardedProcess | None = None

    @abstractmethod
    def _prepare(self) -> None:
        """Make data folder and configuration if they are missing. No other server runs on them."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What to execute once prepared. It must stay in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server can be used. Asked again and again, so False must come soon."""

    @abstractmethod
    def _ports(self) -> Sequence[int]:
        """Where it listens. Chosen once, so that clients find it again after a restart."""

    def _account(self) -> Account | None:
        """Whom to run as, if not as this process's user."""
        return None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """Of the server itself, for faults that a test inflicts.

        Raises:
            SetupError: it was not started.
        """
        if self._process is None:
            raise SetupError(f"{self.NAME} in {self.folder} was not started: call start()")
        return self._process.pid

    def start(self) -> Self:
        """Start, and return once the server answers. Nothing happens if it runs already.

        Raises:
            SetupError: something it needs is missing, another program uses its folder or its port,
                or it ended or gave no answer in time; then the end of its log is in the message.
        """
        if self.alive:
            return self
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with hold(self.folder / ".lock", wait_s=self.FOLDER_WAIT_S) as lock:
                self._check_ports()
                self._prepare()
                before = self.log.stat().st_size if self.log.exists() else 0
                self._process = GuardedProcess.start(
                    self._command(),
                    log=self.log,
                    keep=[lock],
                    account=self._account(),
                    stop_signal=self.STOP_SIGNAL,
                    grace_s=self.STOP_GRACE_S,
                )
        except BlockingIOError as error:
            raise SetupError(
                f"Another {self.NAME} is running on {self.folder}: end the program that owns it."
            ) from error
        except OSError as error:
            raise SetupError(f"{self.NAME} cannot be started in {self.folder}: {error}") from error
        self._wait_until_it_answers(self._process, before)
        return self

    def stop(self) -> None:
        """Shut down in an orderly way. Nothing happens if it does not run."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, as a crash would end it. Returns when no process of it is left."""
        if self._process is not None:
            self._process.kill()

    def _check_ports(self) -> None:
        for port in self._ports():
            if not is_free(port):
                raise SetupError(
                    f"{self.NAME} in {self.folder} cannot listen on {HOST}:{port}: "
                    "another program does. End that program, or choose another port."
                )

    def _wait_until_it_answers(self, process: GuardedProcess, log_from: int) -> None:
        deadline = time.monotonic() + self.START_TIMEOUT_S
        while not self._answers():
            ended = not process.alive
            if ended or time.monotonic() > deadline:
                process.terminate()
                what = "ended" if ended else f"gave no answer in {self.START_TIMEOUT_S:.0f} s"
                raise SetupError(f"{self.NAME} {what} while starting.{self._log_tail(log_from)}")
            time.sleep(_POLL_S)

    def _log_tail(self, log_from: int) -> str:
        """The last lines that were logged behind byte ``log_from``."""
        with self.log.open("rb") as log:
            log.seek(log_from)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n  ".join([f" The end of {self.log}:", *lines[-_LOG_TAIL_LINES:]])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

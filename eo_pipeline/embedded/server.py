"""Base class of the embedded servers: one folder, one life cycle."""

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
    """A real server on 127.0.0.1 with all its files in one folder. It ends with its owner.

    After :meth:`stop` or :meth:`kill` it can be started again, with the same data and ports.
    """

    #: name in messages
    NAME: ClassVar[str]
    STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGTERM
    START_TIMEOUT_S: ClassVar[float] = 180.0
    #: seconds to wait for the end of an earlier server in the same folder, after a crash
    FOLDER_WAIT_S: ClassVar[float] = 20.0
    #: seconds for an orderly shutdown until SIGKILL
    STOP_GRACE_S: ClassVar[float] = 10.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / "server.log"
        self._process: GuardedProcess | None = None

    @abstractmethod
    def _prepare(self) -> None:
        """Create data folder and configuration if missing. No other server uses them."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return the command of the prepared server. It must stay in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether the server can be used. Polled: must return False quickly."""

    @abstractmethod
    def _ports(self) -> Sequence[int]:
        """Return its ports, which stay the same after a restart."""

    def _account(self) -> Account | None:
        """Return the user to run as; None for this process's user."""
        return None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """The pid of the server, for fault injection in tests.

        Raises:
            SetupError: it was not started.
        """
        if self._process is None:
            raise SetupError(f"{self.NAME} in {self.folder} was not started: call start()")
        return self._process.pid

    def start(self) -> Self:
        """Start, and return once the server answers. Does nothing if it runs already.

        Raises:
            SetupError: a requirement is missing, another program uses its folder or its port, or it
                ended or gave no answer in time; then the message has the end of its log.
        """
        if self.alive:
            return self
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with hold(self.folder / ".lock", wait_s=self.FOLDER_WAIT_S) as lock:
                self._check_ports()
                self._prepare()
                log_from = self.log.stat().st_size if self.log.exists() else 0
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
        self._wait_until_ready(self._process, log_from)
        return self

    def stop(self) -> None:
        """Shut down in an orderly way. Does nothing if it does not run."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, as in a crash. Returns once all its processes have ended."""
        if self._process is not None:
            self._process.kill()

    def _check_ports(self) -> None:
        for port in self._ports():
            if not is_free(port):
                raise SetupError(
                    f"{self.NAME} in {self.folder} cannot listen on {HOST}:{port}: "
                    "another program does. End that program, or choose another port."
                )

    def _wait_until_ready(self, process: GuardedProcess, log_from: int) -> None:
        deadline = time.monotonic() + self.START_TIMEOUT_S
        while not self._answers():
            ended = not process.alive
            if ended or time.monotonic() > deadline:
                process.terminate()
                problem = "ended" if ended else f"gave no answer in {self.START_TIMEOUT_S:.0f} s"
                raise SetupError(f"{self.NAME} {problem} while starting.{self._log_tail(log_from)}")
            time.sleep(_POLL_S)

    def _log_tail(self, log_from: int) -> str:
        """Return the last lines of the log from byte ``log_from`` on."""
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

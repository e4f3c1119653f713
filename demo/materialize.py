"""Has Dagster materialize the pipeline in a process of its own, and watches from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import ClassVar, Self

import psycopg

from demo.observe import Checkpoint, Observer
from demo.run_result import RunResult
from demo.servers import Servers
from demo.state import PROJECT, State
from eo_pipeline.embedded.guard import GuardedProcess
from eo_pipeline.errors import EoPipelineError

_LOOK_S = 0.2
_LOG_TAIL_LINES = 15
#: After SIGINT a run writes down that it was interrupted, and Spark ends.
_GRACE_S = 10.0


class RunFailedError(EoPipelineError):
    """The Dagster run failed or was killed. Everything it committed is whole."""

    retryable = True


def prepare_dagster_home(state: State) -> None:
    """DAGSTER_HOME, with the instance's settings in it."""
    for folder in (state.dagster, state.logs):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(PROJECT / "dagster_defs" / "dagster.yaml", state.dagster / "dagster.yaml")


class RunProcess:
    """One run of the pipeline, by a ``module`` that says how, in a process that ends when this one
    does.

    The process loads everything at once, and begins the run when told to :meth:`go`.
    """

    WHAT: ClassVar[str] = "eo run"

    def __init__(
        self, state: State, lock: int, servers: Servers, module: str, options: Sequence[str] = ()
    ) -> None:
        state.logs.mkdir(parents=True, exist_ok=True)
        self._result = state.folder / "result.json"
        self._result.unlink(missing_ok=True)
        self._log = state.logs / f"{module.rpartition('.')[2].replace('_', '-')}.log"
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        waits, starts = os.pipe()
        self._starts = os.fdopen(starts, "wb", buffering=0)
        try:
            arguments = [str(self._result), f"--wait-for={waits}", *options]
            self._process = GuardedProcess.start(
                servers.client(module, *arguments),
                variables=servers.environment,
                log=self._log,
                keep=[lock, waits],
                stop_signal=signal.SIGINT,
                grace_s=_GRACE_S,
            )
        finally:
            os.close(waits)

    def go(self) -> None:
        """Begin the run. Nothing happens if the process is dead already: see :meth:`result`."""
        with contextlib.suppress(BrokenPipeError):
            self._starts.write(b"go")

    @property
    def alive(self) -> bool:
        return self._process.alive

    def result(self) -> RunResult:
        """Once it has ended.

        Raises:
            RunFailedError: it did not end well.
        """
        self.wait()
        result = RunResult.read(self._result)
        if result is None:
            raise RunFailedError(f"The process of {self.WHAT} left no result. {self._remedy()}")
        if not result.success:
            raise RunFailedError(
                f"{self.WHAT} {result.run_id} failed: {result.error} {self._remedy()}"
            )
        return result

    def wait(self) -> None:
        """Until it has ended.

        Raises:
            RunFailedError: it was killed, or could not even begin.
        """
        code = self._process.wait()
        if code != 0 and not self._result.exists():
            raise RunFailedError(
                f"The process of {self.WHAT} ended with exit code {code}. {self._remedy()}"
                f"{self._log_tail()}"
            )

    def _remedy(self) -> str:
        return f"Nothing is lost or half-applied: run again. The log is {self._log}"

    def _log_tail(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_from)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n  ".join(["", *lines[-_LOG_TAIL_LINES:]])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._starts.close()  # one that still waits ends
        self._process.terminate()


class DagsterRun(RunProcess):
    """One run of the pipeline's job in Dagster's instance."""

    WHAT: ClassVar[str] = "Dagster run"

    def __init__(
        self, state: State, lock: int, servers: Servers, options: Sequence[str] = ()
    ) -> None:
        prepare_dagster_home(state)
        super().__init__(state, lock, servers, "demo.dagster_run", options)


class Watch:
    """Checkpoints as they come, each told once."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.began = datetime.now(UTC)
        self._known = observer.checkpoints()[-1:]
        self.seen: list[Checkpoint] = []

    @property
    def newest(self) -> Checkpoint | None:
        return (self._known + self.seen)[-1] if self._known or self.seen else None

    @property
    def rows(self) -> int:
        """In the table, by its ledger."""
        return self.newest.rows_total if self.newest else 0

    def look(self) -> list[Checkpoint]:
        """Those that are new; none while PostgreSQL does not answer."""
        fresh: list[Checkpoint] = []
        with contextlib.suppress(psycopg.OperationalError):
            fresh = self._observer.checkpoints(self.newest.version if self.newest else -1)
        fresh = [replace(each, recovered=each.started_at < self.began) for each in fresh]
        self.seen += fresh
        return fresh


def follow(run: RunProcess, watch: Watch) -> Iterator[list[Checkpoint]]:
    """What is new, again and again until the run has ended."""
    ended = False
    while not ended:
        ended = not run.alive  # before the look: the last checkpoint must not be missed
        yield watch.look()
        time.sleep(0 if ended else _LOOK_S)

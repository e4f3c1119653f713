"""Where the demo keeps what it makes, and which process uses it at the moment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from eo_pipeline._process import hold, send_signal, start_of
from eo_pipeline.errors import SetupError

PROJECT = Path(__file__).parents[1]

#: What a killed command leaves behind ends by itself; the broker takes longest, some 10 s.
REMAINS_WAIT_S = 40.0

#: Called with the name of the folder in which something of an earlier command still runs.
OnWait = Callable[[str], None]


@dataclass(frozen=True)
class State:
    """Everything below ``home/.eo``, or ``home/.eo/<name>``; ``make clean`` removes it."""

    home: Path = PROJECT
    name: str = ""

    @property
    def base(self) -> Path:
        """What all states of a home share: jars."""
        return self.home / ".eo"

    @property
    def folder(self) -> Path:
        return self.base / self.name

    @property
    def kafka(self) -> Path:
        return self.folder / "kafka"

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"

    @property
    def spark(self) -> Path:
        return self.folder / "spark"

    @property
    def registry(self) -> Path:
        return self.folder / "registry"

    @property
    def dagster(self) -> Path:
        """DAGSTER_HOME."""
        return self.folder / "dagster"

    @property
    def staging(self) -> Path:
        return self.folder / "staging"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def owner_file(self) -> Path:
        return self.folder / "owner.json"

    @property
    def environment_file(self) -> Path:
        """Shell commands that tell a terminal where the servers are, while they run."""
        return self.folder / "env"

    @property
    def locks(self) -> tuple[Path, ...]:
        """The state's own lock, then its servers': each is held until nothing of it is left."""
        servers = (self.kafka, self.postgres, self.spark, self.registry)
        return (self.folder / ".lock", *(folder / ".lock" for folder in servers))


@dataclass(frozen=True)
class Owner:
    """The process that uses a state: ``make run`` or ``make dev``."""

    command: str
    pid: int
    #: see :func:`eo_pipeline._process.start_of`: a pid alone may by now be another process
    started: str
    ui: str | None = None

    @classmethod
    def current(cls, command: str) -> Owner:
        return cls(command, os.getpid(), start_of(os.getpid()) or "")

    @classmethod
    def of(cls, state: State) -> Owner | None:
        """Who uses ``state`` now; None if nobody does, whatever a killed process wrote down."""
        try:
            owner = cls(**json.loads(state.owner_file.read_text()))
        except FileNotFoundError:
            return None
        return owner if start_of(owner.pid) == owner.started else None

    def write(self, state: State) -> None:
        fresh = state.owner_file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.rename(state.owner_file)

    def at(self, ui: str) -> Owner:
        return replace(self, ui=ui)

    def __str__(self) -> str:
        where = f", {self.ui}" if self.ui else ""
        return f"`make {self.command}` (process {self.pid}{where})"


@contextlib.contextmanager
def claimed(state: State, command: str, on_wait: OnWait) -> Iterator[int]:
    """Have ``state`` for this process alone.

    Yields the lock's descriptor, for children that use the state: while one of them lives, a
    killed owner's successor waits.

    Raises:
        SetupError: another process uses it.
    """
    with contextlib.ExitStack() as held:
        lock = _take(state, held, on_wait)
        Owner.current(command).write(state)
        held.callback(state.owner_file.unlink, missing_ok=True)
        yield lock


def _take(state: State, held: contextlib.ExitStack, on_wait: OnWait) -> int:
    owner = Owner.of(state)
    if owner is not None:
        raise SetupError(
            f"{owner} uses {state.folder}: wait until it has ended, or end it with `make stop`."
        )
    try:
        state.folder.mkdir(parents=True, exist_ok=True)
        lock = _hold(state.locks[0], held, on_wait)
        _wait_for_servers(state, on_wait)
    except BlockingIOError as error:
        raise SetupError(
            f"{error} since {REMAINS_WAIT_S:.0f} s: end the program that uses {state.folder}."
        ) from error
    except OSError as error:
        raise SetupError(f"Nothing can be written below {state.folder}: {error}") from error
    return lock


def _wait_for_servers(state: State, on_wait: OnWait) -> None:
    """Until the servers of a killed owner have ended, so that their ports are free again."""
    for lock in state.locks[1:]:
        if lock.exists():
            with contextlib.ExitStack() as held:
                _hold(lock, held, on_wait)


def _hold(lock: Path, held: contextlib.ExitStack, on_wait: OnWait) -> int:
    try:
        return held.enter_context(hold(lock, wait_s=0))
    except BlockingIOError:
        on_wait(lock.parent.name)
    return held.enter_context(hold(lock, wait_s=REMAINS_WAIT_S))


def stop(state: State, on_wait: OnWait) -> Owner | None:
    """End what uses ``state``, and wait until nothing of it is left; who that was.

    Raises:
        SetupError: it did not end.
    """
    owner = Owner.of(state)
    if not state.locks[0].exists():
        return None
    for number in (signal.SIGTERM, signal.SIGKILL):
        if owner is not None:
            send_signal(owner.pid, owner.started, number)
        with contextlib.suppress(BlockingIOError):
            _wait_until_free(state, on_wait)
            return owner
    raise SetupError(f"Something still uses {state.folder}: end it by hand.")


def _wait_until_free(state: State, on_wait: OnWait) -> None:
    with contextlib.ExitStack() as held:
        _hold(state.locks[0], held, on_wait)
        _wait_for_servers(state, on_wait)

"""What the runner knows of a peer."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar

from benchmarks.suite.program import Program
from benchmarks.suite.room import Room
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from benchmarks.suite.workloads.plain import PLAIN
from benchmarks.suite.workloads.workload import REGISTRY, Workload


class Mode(StrEnum):
    """What is there already when the clock starts."""

    COLD = "cold"  # nothing: a new process, from its start to its end
    SERVER = "server"  # a warm Spark Connect server; the process that uses it is new
    WARM = "warm"  # the process, which has done it before


class Peer(ABC):
    """One program into one kind of store, in one mode.

    ``run`` reads everything that is new in a topic, leaves it in the target, and gives the seconds.
    """

    #: as tables call it
    PROGRAM: ClassVar[str]
    #: one sentence each, for the page
    PROMISE: ClassVar[str]
    SETTINGS: ClassVar[str]

    def __init__(
        self, room: Room, store: Store, mode: Mode = Mode.COLD, workload: Workload = PLAIN
    ) -> None:
        self.room = room
        self.store = store
        self.mode = mode
        self.workload = workload

    @classmethod
    def takes(cls, workload: Workload, store: Store) -> bool:
        """Whether it can do the workload into a store of this kind."""
        return store in workload.stores

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{self.PROGRAM} → {self.store}"

    def install(self) -> None:  # noqa: B027 - most need nothing
        """What it needs, once; nothing is timed.

        Raises:
            PeerMissingError: it cannot be had here, and why.
        """

    @property
    def ready(self) -> bool:
        """False while what a warm run needs is not warm yet."""
        return True

    def versions(self) -> Mapping[str, str]:
        """Of what was installed."""
        return {}

    def filled_in(self, text: str) -> str:
        """A job's text with the addresses of this room's servers."""
        if REGISTRY in text:
            text = text.replace(REGISTRY, self.room.registry)
        return text

    def check(self, topic: Topic, target: Target) -> None:  # noqa: B027 - most leave rows alone
        """Look at what it leaves beside the rows.

        Raises:
            MeasurementError: it is not what there should be.
        """

    @abstractmethod
    def run(self, topic: Topic, target: Target) -> float:
        """Seconds.

        Raises:
            MeasurementError: it failed or took too long.
        """


class ProgramPeer(Peer):
    """A peer that is a process which takes a line for each job."""

    #: the process that has done this job once
    _warm: Program | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The process."""

    @abstractmethod
    def line(self, topic: Topic, target: Target) -> str:
        """The job."""

    @property
    def _key(self) -> str:
        """Jobs of peers with one key share a warm process."""
        return self.PROGRAM.lower().replace(" ", "-")

    @property
    def ready(self) -> bool:
        """A process that failed another's job was ended: the next one has done nothing yet."""
        return self.mode is not Mode.WARM or (self._warm is not None and self._warm.alive)

    def run(self, topic: Topic, target: Target) -> float:
        line = self.line(topic, target)
        if self.mode is not Mode.COLD:
            program = self.room.program(self._key, self.command())
            seconds = program.job(line, self.room.limit)
            self._warm = program
            return seconds
        started = time.perf_counter()
        program = self.room.start(self._key, self.command())
        program.job(line, self.room.limit)
        program.finish(self.room.limit)
        return time.perf_counter() - started

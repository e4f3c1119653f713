"""What the runner knows of a peer."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar

from benchmarks.suite.room import Room
from benchmarks.suite.target import Store, Target
from benchmarks.suite.topic import Topic


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

    def __init__(self, room: Room, store: Store, mode: Mode = Mode.COLD) -> None:
        self.room = room
        self.store = store
        self.mode = mode

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{self.PROGRAM} → {self.store}"

    def install(self) -> None:  # noqa: B027 - most need nothing
        """What it needs, once; nothing is timed.

        Raises:
            PeerMissingError: it cannot be had here, and why.
        """

    def versions(self) -> Mapping[str, str]:
        """Of what was installed."""
        return {}

    @abstractmethod
    def run(self, topic: Topic, target: Target) -> float:
        """Seconds.

        Raises:
            MeasurementError: it failed or took too long.
        """


class ProgramPeer(Peer):
    """A peer that is a process which takes a line for each job."""

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

    def run(self, topic: Topic, target: Target) -> float:
        line = self.line(topic, target)
        if self.mode is not Mode.COLD:
            return self.room.program(self._key, self.command()).job(line, self.room.limit)
        started = time.perf_counter()
        program = self.room.start(self._key, self.command())
        program.job(line, self.room.limit)
        program.finish(self.room.limit)
        return time.perf_counter() - started

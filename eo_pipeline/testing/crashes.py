"""What a test may do at a named moment of a checkpoint: kill, raise, wait.

Each function here makes a hook for :func:`eo_pipeline.crashpoints.reaching`, or for
``SinkSession.publish``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from threading import Event

from eo_pipeline.crashpoints import CrashPoint, Reach

#: Seconds after which a paused publisher gives up, so that a broken test ends.
PAUSE_SECONDS_MAX = 60.0


class CrashRequested(BaseException):
    """Raised by :func:`raise_at`. No Exception: nothing may take it for an error and go on."""


def crash_at(point: CrashPoint, nth: int = 1) -> Reach:
    """Kill this process by SIGKILL when ``point`` is reached for the ``nth`` time.

    No handler, no ``finally``, no closing of connections: what a lost machine looks like.
    """
    return _at(point, nth, lambda: os.kill(os.getpid(), signal.SIGKILL))


def raise_at(point: CrashPoint, nth: int = 1) -> Reach:
    """Raise :class:`CrashRequested` when ``point`` is reached for the ``nth`` time."""

    def fail() -> None:
        raise CrashRequested(point)

    return _at(point, nth, fail)


def pause_at(point: CrashPoint, go_on: Event, arrived: Event | None = None) -> Reach:
    """Wait at ``point`` until ``go_on`` is set, as a zombie does; ``arrived`` is set before.

    Raises:
        TimeoutError: nobody set ``go_on`` within :data:`PAUSE_SECONDS_MAX`.
    """

    def wait() -> None:
        if arrived is not None:
            arrived.set()
        if not go_on.wait(PAUSE_SECONDS_MAX):
            raise TimeoutError(f"paused at {point} for {PAUSE_SECONDS_MAX} s")

    return _at(point, 1, wait)


def _at(point: CrashPoint, nth: int, act: Callable[[], object]) -> Reach:
    left = nth

    def reach(reached: CrashPoint) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                act()

    return reach

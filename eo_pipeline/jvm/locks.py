"""A folder used by one at a time: a lock that no crash can leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def hold(lock: Path, *, wait_s: float) -> Iterator[int]:
    """Hold the file ``lock``; yields its descriptor.

    A child that inherits the descriptor holds the lock too, for as long as it, or any process it
    forks, lives. So whoever gets the lock of a server's folder knows that nothing of an earlier
    server is left.

    Raises:
        BlockingIOError: others still held it after ``wait_s`` seconds.
        OSError: the file cannot be opened for writing.
    """
    with lock.open("ab") as file:
        deadline = time.monotonic() + wait_s
        while not _taken(file.fileno()):
            if time.monotonic() > deadline:
                raise BlockingIOError(f"{lock} is held by another process")
            time.sleep(0.05)
        yield file.fileno()


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

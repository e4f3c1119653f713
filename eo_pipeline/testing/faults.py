"""Faults at a named moment of a checkpoint: kill, raise, wait.

Each function here makes a hook for :func:`eo_pipeline.crashpoints.reaching`, or for
``SinkSession.publish``.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import fields
from threading import Event
from typing import Any

import pyarrow.parquet as pq

from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.storage.paths import Place

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


_PADDING_MAX = 1 << 16


def _missing(path: Place) -> None:
    path.unlink()


def _cut_short(path: Place) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _unreadable(path: Place) -> None:
    """As long as before, and nothing in it is what it was."""
    path.write_bytes(bytes(len(path.read_bytes())))


def _other_rows(path: Place) -> None:
    """As long as before, whole, and a row shorter: what another attempt might have left."""
    whole = path.read_bytes()
    table = pq.read_table(io.BytesIO(whole), partitioning=None)
    fewer = table.slice(0, table.num_rows - 1)
    for padding in range(_PADDING_MAX):
        held = io.BytesIO()
        with pq.ParquetWriter(held, fewer.schema, store_schema=False) as writer:
            writer.write_table(fewer)
            writer.add_key_value_metadata({"": " " * padding})
        if len(held.getvalue()) == len(whole):
            path.write_bytes(held.getvalue())
            return
    raise ValueError(f"{path} cannot be made {len(whole)} bytes long")


#: By a name for tests: what happens to the file of a path.
DAMAGES: Mapping[str, Callable[[Place], None]] = {
    "missing": _missing,
    "cut short": _cut_short,
    "unreadable": _unreadable,
    "other rows": _other_rows,
}


class _Altered(LedgerEntry):
    def to_json(self) -> dict[str, Any]:
        raw = super().to_json()
        moved = {topic: dict.fromkeys(at, 0) for topic, at in raw["offsets"].items()}
        return {**raw, "offsets": moved}


def altered_where_it_is_kept(entry: LedgerEntry) -> LedgerEntry:
    """``entry``, of which every store will hold other offsets than were committed."""
    made_of = (f.name for f in fields(LedgerEntry) if f.init)
    return _Altered(**{name: getattr(entry, name) for name in made_of})


#: Seconds for one to reach its end, on a machine that is busy with other things.
_WAIT_S = 240.0

#: Each process begins as a copy of one that has imported what all need and done nothing: a second
#: and more of imports less than for a new one, and without this process's threads and connections.
_COPIES = multiprocessing.get_context("forkserver")
_COPIES.set_forkserver_preload(["eo_pipeline.testing.contract"])


def dies(target: Callable[..., object], *arguments: Any, prints: bool = False) -> None:
    """Call ``target`` in a process of its own, which has to die of SIGKILL.

    ``target`` is a function of a module, and what it is given can be pickled. What it ``prints``
    comes out here: copies have the standard output that there was when the first one was made.
    """
    context = multiprocessing.get_context("spawn") if prints else _COPIES
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join(_WAIT_S)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"still running after {_WAIT_S:.0f} s")
    assert process.exitcode == -signal.SIGKILL, f"ended with {process.exitcode} instead"

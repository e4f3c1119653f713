"""Named moments in the life of a checkpoint at which a test may kill the process.

The run calls ``reach(CrashPoint.X)`` at each moment, and passes :func:`current_hook` to the sink,
which calls it at its own moments. In production nothing happens. A test installs a hook::

    with crashpoints.reaching(crash_at(CrashPoint.PRE_COMMITTED)):
        pipeline.run()

``eo_pipeline.testing`` ships hooks that kill the process, raise or wait, so that no test has to
patch anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum


class CrashPoint(StrEnum):
    """Moments of a checkpoint, in its order; numbers are the runner's steps."""

    RECOVERED = "recovered"  # 1: head known, nothing planned
    PLANNED = "planned"  # 2: ranges decided, nothing read
    STAGING = "staging"  # 5: attempt folder exists, Spark job not started
    STAGED = "staged"  # 5: files (or Arrow table) complete, no manifest
    PRE_COMMITTED = "pre_committed"  # 6: manifest written; anyone may commit it
    ROWS_SENT = "rows_sent"  # 7: rows in the sink's open transaction, ledger entry not
    ENTRY_SENT = "entry_sent"  # 7: ledger entry in the open transaction, COMMIT not sent
    COMMITTED = "committed"  # 7: the sink confirmed the commit; nothing was reported
    REPORTED = "reported"  # 8: reported, staging not cleaned


Reach = Callable[[CrashPoint], None]


def keep_going(point: CrashPoint) -> None:
    """Do nothing: the hook in production."""


_HOOK: ContextVar[Reach] = ContextVar("eo_pipeline.crashpoints", default=keep_going)


@contextmanager
def reaching(hook: Reach) -> Iterator[None]:
    """Call ``hook`` at every crash point that this thread reaches within the block, for tests.

    Crash points that the hook itself reaches, by another run for example, do not call it.
    """
    token = _HOOK.set(hook)
    try:
        yield
    finally:
        _HOOK.reset(token)


def reach(point: CrashPoint) -> None:
    """Call the hook of this thread at ``point``."""
    current_hook()(point)


def current_hook() -> Reach:
    """Return the hook of this thread, which may be called from another thread."""
    hook = _HOOK.get()
    if hook is keep_going:
        return keep_going

    def unnoticed(point: CrashPoint) -> None:
        with reaching(keep_going):
            hook(point)

    return unnoticed

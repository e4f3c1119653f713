"""Named moments in the life of a checkpoint at which a test may kill the process.

The runner and the sinks call ``reach(CrashPoint.X)`` when they get there. In production ``reach``
is :func:`keep_going`. ``eo_pipeline.testing`` ships one that kills the process, one that raises
and one that waits, so that no test has to patch anything.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class CrashPoint(StrEnum):
    """In the order in which one checkpoint passes them; numbers are the runner's steps."""

    RECOVERED = "recovered"  # 1: head known, nothing planned
    PLANNED = "planned"  # 2: ranges decided, nothing read
    STAGING = "staging"  # 5: attempt folder exists, Spark job not started
    STAGED = "staged"  # 5: files (or Arrow table) complete, no manifest
    PRE_COMMITTED = "pre_committed"  # 6: manifest written; anyone may commit it
    ROWS_SENT = "rows_sent"  # 7: rows in the sink's open transaction, ledger entry not
    ENTRY_SENT = "entry_sent"  # 7: ledger entry in the open transaction, COMMIT not sent
    COMMITTED = "committed"  # 7: the sink said yes; nobody else knows
    REPORTED = "reported"  # 8: reported, staging not cleaned


Reach = Callable[[CrashPoint], None]


def keep_going(point: CrashPoint) -> None:
    """What production does at a crash point: nothing."""

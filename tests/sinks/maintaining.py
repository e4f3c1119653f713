"""Maintenance of a table by hand, and what may happen while it goes on."""

from __future__ import annotations

from collections.abc import Callable

from eo_pipeline import crashpoints
from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.sinks.capabilities import Maintenance, Upkeep
from eo_pipeline.sinks.config import Sink
from eo_pipeline.testing import crash_at

#: Nothing is kept that left the table, for which a document cannot ask; and as by default.
AT_ONCE = Maintenance.model_construct(target_file_size="128MB", keep="0h")
A_WEEK = Maintenance()

#: Where a maintenance is killed: with its turn; with a list of what is to go; with new files that
#: nothing refers to; after a commit.
POINTS = [CrashPoint.PLANNED, CrashPoint.STAGED, CrashPoint.ROWS_SENT, CrashPoint.COMMITTED]


def maintain(
    sink: Sink,
    pipeline: str,
    rules: Maintenance = A_WEEK,
    *,
    dry_run: bool = False,
    reach: Reach = keep_going,
) -> dict[str, Upkeep]:
    """By the kind of work."""
    with crashpoints.reaching(reach), sink.open(pipeline) as session:
        return {each.work: each for each in session.maintain(rules, dry_run=dry_run)}


def at(point: CrashPoint, event: Callable[[], object]) -> Reach:
    """``event`` happens when ``point`` is reached first."""
    left = [event]

    def reach(reached: CrashPoint) -> None:
        if reached == point and left:
            left.pop()()

    return reach


def killed_at(sink: Sink, pipeline: str, point: CrashPoint) -> None:
    """To be called in a process that ``dies``."""
    maintain(sink, pipeline, AT_ONCE, reach=crash_at(point))

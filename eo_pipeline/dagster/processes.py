"""What the process is for in which code of a Dagster run is called."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAMS = frozenset({"dg", "dagster"})
#: Their words for one run, or one step of it; ``asset materialize``, ``job execute``.
_ONE_RUN = frozenset({"launch", "materialize", "execute", "execute_run", "execute_step"})


def is_of_one_run(command: Sequence[str] | None = None) -> bool:
    """Whether this process, which was started by ``command``, ends with its run, or its step.

    So do those that Dagster's server and its executors start, and its commands that run. Whoever
    calls ``materialize`` in a notebook, or in tests, has a process that stays.
    """
    if multiprocessing.parent_process() is not None:
        return True
    program, *words = command or sys.argv
    name = Path(program).name if Path(program).name != "__main__.py" else Path(program).parent.name
    return name in _PROGRAMS and not _ONE_RUN.isdisjoint(words)

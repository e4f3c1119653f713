"""Detection of processes that end with one run of Dagster."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAMS = frozenset({"dg", "dagster"})
#: Subcommands that execute one run or one step: ``asset materialize``, ``job execute``.
_ONE_RUN = frozenset({"launch", "materialize", "execute", "execute_run", "execute_step"})


def is_of_one_run(command: Sequence[str] | None = None) -> bool:
    """Return whether this process, started by ``command``, ends with its run or its step.

    True for processes of Dagster's server and executors, and for the commands that run. A process
    that calls ``materialize`` in a notebook or in tests stays.
    """
    if multiprocessing.parent_process() is not None:
        return True
    program, *words = command or sys.argv
    name = Path(program).name if Path(program).name != "__main__.py" else Path(program).parent.name
    return name in _PROGRAMS and not _ONE_RUN.isdisjoint(words)

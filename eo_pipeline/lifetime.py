"""Whether this process ends with the work it was started for, which decides what pays off in it."""

from __future__ import annotations

_ends = False


def this_process_ends() -> None:
    """Told by what was started for one thing: a command, a run of Dagster's."""
    global _ends
    _ends = True


def process_ends() -> bool:
    """Whether it was told. Any other may stay, and do more: a notebook, a service."""
    return _ends

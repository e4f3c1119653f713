"""Whether this process ends with the work it was started for, which decides what pays off in it."""

from __future__ import annotations

_ends = False
_is_ours = False


def this_process_ends(*, is_ours: bool = False) -> None:
    """Told by what was started for one thing: a command, a run of Dagster's. ``is_ours``: of code
    that is not this package's it runs nothing but what a document names.
    """
    global _ends, _is_ours
    _ends, _is_ours = True, is_ours


def process_ends() -> bool:
    """Whether it was told. Any other may stay, and do more: a notebook, a service."""
    return _ends


def process_is_ours() -> bool:
    """Whether it was told that."""
    return _is_ours

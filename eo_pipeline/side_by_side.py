"""Things that wait, done side by side: the footers of many files, each some round trips to a store,
or the disk's time to flush one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_A = TypeVar("_A")
_B = TypeVar("_B")

#: More requests than that a store answers no sooner.
_AT_ONCE = 16


def each(act: Callable[[_A], _B], of: Sequence[_A]) -> list[_B]:
    """What ``act`` gives for each, in their order.

    The error of the first in that order that has one is raised, when those that had begun are
    through; the others are not begun.
    """
    if len(of) < 2:
        return [act(one) for one in of]
    with ThreadPoolExecutor(min(_AT_ONCE, len(of))) as pool:
        return list(pool.map(act, of))

"""Where in Python code a step of an expression was written, which Spark shows in its errors.

pyspark tells the JVM of it in a dozen requests for each step. Of a user's transform that is worth
it; an expression of ours is never what a user has to look for, and a cold JVM takes a second for
all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.errors import utils

_told: ContextVar[bool] = ContextVar("told", default=True)
_is_enabled = utils.is_debugging_enabled


@contextmanager
def origins(*, told: bool) -> Iterator[None]:
    """Whether Spark is told of them in the block; if it is to, as its settings say."""
    before = _told.set(told)
    try:
        yield
    finally:
        _told.reset(before)


def _is_wanted() -> bool:
    return _told.get() and _is_enabled()


# looked up by its name at each step; there is a setting, but pyspark reads it once in a process
utils.is_debugging_enabled = _is_wanted

"""Origins: the Python source lines of an expression's steps, which Spark shows in its errors.

pyspark sends the JVM a dozen requests for each step. That is useful for a user's transform, not for
this package's expressions, which take a cold JVM a second in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.errors import utils

_enabled: ContextVar[bool] = ContextVar("enabled", default=True)
_is_enabled = utils.is_debugging_enabled


@contextmanager
def origins(*, enabled: bool) -> Iterator[None]:
    """Enable or disable origins within the block; enabled, Spark's settings decide."""
    before = _enabled.set(enabled)
    try:
        yield
    finally:
        _enabled.reset(before)


def _is_wanted() -> bool:
    return _enabled.get() and _is_enabled()


# pyspark calls this function at each step; it reads its own setting only once in a process
utils.is_debugging_enabled = _is_wanted

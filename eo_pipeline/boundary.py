"""The edge of the package: every exception that leaves it is one of its errors."""

from __future__ import annotations

import errno
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from eo_pipeline.errors import (
    EoPipelineError,
    SetupError,
    SinkUnavailableError,
    UnexpectedError,
    scrubbed,
)
from eo_pipeline.storage.backend import StoreUnreachableError
from eo_pipeline.storage.paths import passes

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: File system errors that a person must remove.
_FOR_A_PERSON = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
)


#: Attribute of an error that a caller's function raised.
_OF_CALLER = "_eo_of_caller"


def callers(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Mark the errors of a caller's function: they pass every :func:`boundary` unchanged."""

    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            setattr(error, _OF_CALLER, True)
            raise

    return called


@contextmanager
def callers_block() -> Iterator[None]:
    """Mark the errors of a caller's ``with`` block, as :func:`callers` does."""
    try:
        yield
    except Exception as error:
        setattr(error, _OF_CALLER, True)
        raise


@contextmanager
def boundary(pipeline: str) -> Iterator[None]:
    """Translate the errors of the block, which works on one pipeline.

    Raises:
        EoPipelineError: for any error, except one of a :func:`callers` function.
    """
    try:
        yield
    except EoPipelineError:
        raise
    except Exception as error:
        if hasattr(error, _OF_CALLER):
            raise
        raise _ours(f"Pipeline {pipeline!r}", error) from error


@contextmanager
def harmless(what: str) -> Iterator[None]:
    """Log any error of the block, and continue: it serves an observer only."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - of a library that the run does not depend on
        log.warning("%s failed: %s: %s", what, type(error).__name__, scrubbed(str(error)))


def _ours(what: str, error: Exception) -> EoPipelineError:
    if isinstance(error, OSError) and error.errno in _FOR_A_PERSON:
        return SetupError(
            f"{what}: {error.filename or 'a file'} cannot be written or read: {error.strerror}. "
            "Free space there, or let this process have it; what was reported as committed stays."
        )
    if isinstance(error, StoreUnreachableError):
        return SinkUnavailableError(
            f"{what}: {error.filename} cannot be reached: {error.strerror}. What was reported as "
            "committed stays; try again."
        )
    if isinstance(error, OSError) and passes(error):
        return SinkUnavailableError(
            f"{what}: {error.filename or 'a file'} cannot be written or read just now: "
            f"{error.strerror}. What was reported as committed stays; try again."
        )
    place = traceback.extract_tb(error.__traceback__)[-1]
    return UnexpectedError(
        f"{what}: unexpected error: {type(error).__name__}: {error} (in "
        f"{place.filename}, line {place.lineno}). What was reported as committed stays, and a "
        "later run finds out the rest. Please report it, with this text."
    )

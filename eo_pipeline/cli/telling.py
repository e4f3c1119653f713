"""What the engine says while it works, on stderr: one handler of its log for all commands."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from eo_pipeline.errors import EoPipelineError
from eo_pipeline.progress import Phase
from eo_pipeline.scrubbing import printable, scrubbed

_ENGINE = "eo_pipeline"
#: What librdkafka says by itself; silent unless somebody sets its level.
_KAFKA = "eo_pipeline.kafka"

#: A line with ``-v``.
_VERBOSE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def note(text: str) -> None:
    """A sentence on stderr."""
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    console.print(printable(text), soft_wrap=True)


class _Lines(logging.Handler):
    """A line for each record; where something live shows the phases, only of the others."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter(_VERBOSE if verbose else None))
        self._from = logging.DEBUG if verbose else logging.INFO
        self._verbose = verbose
        #: that go on, the one that spoke last at the end
        self.phases: list[Phase] = []
        self.shows_phases = False
        self.is_muted = False

    def emit(self, record: logging.LogRecord) -> None:
        phase: Phase | None = getattr(record, "phase", None)
        if phase is not None:
            going_on = [each for each in self.phases if each is not phase and not each.has_ended]
            self.phases = [*going_on, phase]
        shown = self.shows_phases and hasattr(record, "phase") and not self._verbose
        if record.levelno >= self._from and not shown and not self.is_muted:
            note(self.format(record))


_lines: _Lines | None = None


@contextmanager
def telling(*, verbose: bool) -> Iterator[None]:
    """Within, stderr has what the engine logs; with ``verbose`` all of it, librdkafka's too."""
    global _lines
    logger, kafka, _lines = logging.getLogger(_ENGINE), logging.getLogger(_KAFKA), None
    levels = logger.level, kafka.level
    _lines = _Lines(verbose=verbose)
    logger.addHandler(_lines)
    logger.setLevel(logging.DEBUG)
    kafka.setLevel(logging.DEBUG if verbose else logging.NOTSET)
    try:
        yield
    finally:
        logger.removeHandler(_lines)
        logger.setLevel(levels[0])
        kafka.setLevel(levels[1])


@contextmanager
def phases_are_shown() -> Iterator[None]:
    """Within, something live shows :func:`now`."""
    if _lines is not None:
        _lines.shows_phases = True
    try:
        yield
    finally:
        if _lines is not None:
            _lines.shows_phases = False


@contextmanager
def muted() -> Iterator[None]:
    """Within, nothing is said."""
    if _lines is not None:
        _lines.is_muted = True
    yield


def now() -> str:
    """What goes on just now, and how far it is; empty if nothing does."""
    phases = _lines.phases if _lines else []
    return next((str(each) for each in reversed(phases) if not each.has_ended), "")


def causes(error: EoPipelineError) -> list[str]:
    """What an error came from, the nearest first, a line each and without secrets."""
    found, cause = [], error.__cause__
    while cause is not None:
        found.append(
            scrubbed(f"because of {type(cause).__module__}.{type(cause).__qualname__}: {cause}")
        )
        cause = cause.__cause__ or cause.__context__
    return found

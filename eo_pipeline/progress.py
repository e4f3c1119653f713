"""Progress messages, logged while an operation runs, so that a user sees why it takes time.

Every message is a record of the logger ``eo_pipeline.progress``: the command line shows it on the
terminal, a Dagster step in its run's log, and another program where it sends its log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

log = logging.getLogger(__name__)

#: Seconds without a message after which a phase reports its progress.
QUIET_SECONDS_MAX = 10.0


class Phase:
    """A piece of work that may take a while. ``str()`` gives its progress, from any thread."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.has_ended = False
        self._began = time.monotonic()
        self._done: tuple[int, int, str] | None = None
        self._inner = 0
        self._saying = threading.Lock()

    def __str__(self) -> str:
        seconds = f"{time.monotonic() - self._began:.0f} s"
        if self._done is None:
            return f"{self.text}: {seconds}"
        done, total, unit = self._done
        return f"{self.text}: {done:,} of {total:,} {unit}, {seconds}"

    def advance(self, done: int, total: int, unit: str) -> None:
        """Record that ``done`` of the ``total`` units are done."""
        self._done = (done, total, unit)

    def says(self, text: str) -> None:
        """Report what the phase does from now on."""
        self.text, self._done, self._began = text, None, time.monotonic()
        _record(logging.INFO, text, self)

    def repeat_until(self, ended: threading.Event) -> None:
        """Report progress periodically; an inner phase reports its own instead."""
        while not ended.wait(QUIET_SECONDS_MAX):
            with self._saying:
                if not self.has_ended and not self._inner:
                    _record(logging.INFO, str(self), self)

    def end(self) -> None:
        """End the phase: no message follows once this returns."""
        with self._saying:
            self.has_ended = True

    @contextmanager
    def interrupted_by_another(self) -> Iterator[None]:
        """Suppress this phase's messages within the block, where an inner phase reports."""
        self._inner += 1
        try:
            yield
        finally:
            self._inner -= 1


#: Work outside of every phase: its progress is not reported.
_NOBODY = Phase("")
_CURRENT: ContextVar[Phase] = ContextVar("eo_pipeline.progress", default=_NOBODY)


def current() -> Phase:
    """Return the innermost phase of this thread."""
    return _CURRENT.get()


@contextmanager
def apart() -> Iterator[None]:
    """Make phases that begin within the block outermost, for a thread beside the main work."""
    token = _CURRENT.set(_NOBODY)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def say(text: str) -> None:
    """Log one message now."""
    _record(logging.INFO, text, None)


@contextmanager
def phase(text: str, *, usually_short: bool = False) -> Iterator[Phase]:
    """Run the block as a phase named ``text``: logged at its beginning, and at least every
    :data:`QUIET_SECONDS_MAX` until its end.

    The beginning of a phase that is ``usually_short`` is logged at level DEBUG only.
    """
    outer, inner, ended = current(), Phase(text), threading.Event()
    token = _CURRENT.set(inner)
    try:
        with outer.interrupted_by_another():
            _record(logging.DEBUG if usually_short else logging.INFO, text, inner)
            threading.Thread(target=inner.repeat_until, args=(ended,), daemon=True).start()
            yield inner
    finally:
        ended.set()
        inner.end()
        _CURRENT.reset(token)


def _record(level: int, text: str, of: Phase | None) -> None:
    log.log(level, "%s", text, extra={"phase": of})

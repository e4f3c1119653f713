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

#: The longest silence of a phase, in seconds; then it says how far it is.
QUIET_SECONDS_MAX = 10.0


class Phase:
    """A stretch of work that may take a while. ``str()`` says how far it is: from any thread."""

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
        """So many of the ``total`` units are done."""
        self._done = (done, total, unit)

    def says(self, text: str) -> None:
        """What it does from now on."""
        self.text, self._done, self._began = text, None, time.monotonic()
        _record(logging.INFO, text, self)

    def repeat_until(self, ended: threading.Event) -> None:
        """Say how far it is, again and again; a phase within speaks for itself."""
        while not ended.wait(QUIET_SECONDS_MAX):
            with self._saying:
                if not self.has_ended and not self._inner:
                    _record(logging.INFO, str(self), self)

    def end(self) -> None:
        """Nothing is said of it any more once this returns."""
        with self._saying:
            self.has_ended = True

    @contextmanager
    def interrupted_by_another(self) -> Iterator[None]:
        """Within, another phase speaks."""
        self._inner += 1
        try:
            yield
        finally:
            self._inner -= 1


#: Work outside of every phase: nobody hears how far it is.
_NOBODY = Phase("")
_CURRENT: ContextVar[Phase] = ContextVar("eo_pipeline.progress", default=_NOBODY)


def current() -> Phase:
    """The innermost phase of this thread."""
    return _CURRENT.get()


@contextmanager
def apart() -> Iterator[None]:
    """Within, no phase is outside of those that begin: of a thread beside the one they are of."""
    token = _CURRENT.set(_NOBODY)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def say(text: str) -> None:
    """One sentence, now."""
    _record(logging.INFO, text, None)


@contextmanager
def phase(text: str, *, usually_short: bool = False) -> Iterator[Phase]:
    """Work that ``text`` names. It is said at the beginning, and never is there a silence of more
    than :data:`QUIET_SECONDS_MAX` before its end.

    Of one that is ``usually_short`` nobody hears who does not want to know everything (level
    DEBUG), unless it takes that long.
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

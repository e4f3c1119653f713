"""An interruption that Python drops, for it came while an object was finalized.

A signal's handler runs between any two steps of the main thread. If that thread is within a
``__del__``, or a callback of a weak reference or of the garbage collector, what the handler raises
goes to :func:`sys.unraisablehook` and no further (Python's documentation of ``object.__del__``).
Whoever terminated the run is told nothing, and it goes on: seen with Dagster's Terminate, for
minutes, while SQLAlchemy's weak references were collected.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

#: Seconds until a dropped signal is sent again: finalizers are short, and it may be dropped again.
AGAIN_SECONDS = 0.05

log = logging.getLogger(__name__)


@contextmanager
def sent_again() -> Iterator[None]:
    """Within, in the main thread, a signal whose handler raised in vain is sent once more.

    In other threads nothing is done: no handler of a signal runs there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = sys.unraisablehook

    def hook(ignored: UnraisableHookArgs) -> None:
        number = _raised_by_signal(ignored)
        if number is None:
            earlier(ignored)
            return
        log.debug("%s came while an object was finalized; it is sent again", number.name)
        again = threading.Timer(AGAIN_SECONDS, _send, [number])
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = earlier


def _send(number: signal.Signals) -> None:
    # to the thread and not the process: whatever call it waits in is to return
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, number)


def _raised_by_signal(ignored: UnraisableHookArgs) -> signal.Signals | None:
    """The signal whose handler raised what is ignored; None if it is of another origin."""
    if threading.current_thread() is not threading.main_thread():
        return None
    raised_in = _codes(ignored.exc_traceback)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler is signal.default_int_handler:  # in C: it has no code
            if ignored.exc_type is KeyboardInterrupt:
                return signal.Signals(number)
        elif getattr(handler, "__code__", None) in raised_in:
            return signal.Signals(number)
    return None


def _codes(traceback: TracebackType | None) -> set[object]:
    codes: set[object] = set()
    while traceback is not None:
        codes.add(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return codes

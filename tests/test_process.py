"""An interruption within a finalizer, which Python drops, reaches whoever it was for."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from eo_pipeline._process import sent_again

Finalizing = Callable[[Callable[[], object]], object]


class Terminated(BaseException):
    """What the handler of a host program raises."""


class Thing:
    """Something that a weak reference can be made of."""


def by_del(ends: Callable[[], object]) -> None:
    class Finalized:
        def __del__(self) -> None:
            ends()

    Finalized()


def by_a_weak_reference(ends: Callable[[], object]) -> weakref.ref[Thing]:
    thing = Thing()
    reference = weakref.ref(thing, lambda _: ends())
    del thing
    return reference


def interrupted(number: int) -> Callable[[], object]:
    """The signal comes while this runs."""

    def ends() -> None:
        os.kill(os.getpid(), number)
        time.sleep(30)

    return ends


def awaited(*finalized: Callable[[], object]) -> None:
    """Finalizers, one behind the other, and then work that goes on for a while."""
    with sent_again():
        for one in finalized:
            one()
        time.sleep(30)


@contextmanager
def handled(number: signal.Signals) -> Iterator[None]:
    def handler(_number: int, _frame: object) -> None:
        raise Terminated

    earlier = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, earlier)


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was raised in a finalizer and is of no further concern."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: told.append(one.exc_type))
    return told


@pytest.mark.parametrize("finalized", [by_del, by_a_weak_reference])
def test_a_ctrl_c_within_a_finalizer_interrupts_what_follows_it(
    finalized: Finalizing, ignored: list[Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        awaited(lambda: finalized(interrupted(signal.SIGINT)))

    assert ignored == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_a_handler_of_the_host_raised_is_raised_again(
    number: signal.Signals, ignored: list[Any]
) -> None:
    with handled(number), pytest.raises(Terminated):
        awaited(lambda: by_del(interrupted(number)))

    assert ignored == []


def test_a_signal_is_sent_until_it_is_heard(ignored: list[Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        awaited(
            lambda: by_del(interrupted(signal.SIGINT)),
            lambda: by_del(lambda: time.sleep(30)),
        )

    assert ignored == []


def test_without_it_python_drops_the_signal(ignored: list[Any]) -> None:
    by_del(interrupted(signal.SIGINT))
    time.sleep(0.3)

    assert ignored == [KeyboardInterrupt]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_of_the_finalizer_itself_is_ignored_as_ever(
    error: type[BaseException], ignored: list[Any]
) -> None:
    def fails() -> None:
        raise error

    with handled(signal.SIGINT), sent_again():
        by_del(fails)
        time.sleep(0.3)

    assert ignored == [error]


def test_behind_it_the_hook_of_the_host_is_there_again_and_other_threads_leave_it_alone(
    ignored: list[Any],
) -> None:
    hook, seen = sys.unraisablehook, []

    def in_a_thread() -> None:
        with sent_again():
            seen.append(sys.unraisablehook)

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    with sent_again():
        assert sys.unraisablehook is not hook

    assert seen == [hook]
    assert sys.unraisablehook is hook

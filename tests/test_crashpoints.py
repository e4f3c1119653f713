"""How a test gets to the named moments, with no word of it in the public signatures."""

from __future__ import annotations

import inspect
from threading import Thread

import pytest

from eo_pipeline import Pipeline
from eo_pipeline.crashpoints import CrashPoint, current_hook, keep_going, reach, reaching

STAGED, COMMITTED = CrashPoint.STAGED, CrashPoint.COMMITTED


def test_a_hook_hears_what_is_reached_within_and_nothing_before_or_after() -> None:
    heard: list[CrashPoint] = []
    reach(STAGED)
    with reaching(heard.append):
        reach(COMMITTED)
    reach(STAGED)
    assert heard == [COMMITTED]


def test_a_hook_that_raises_is_gone_all_the_same() -> None:
    def fail(point: CrashPoint) -> None:
        raise ValueError(point)

    with pytest.raises(ValueError, match="staged"), reaching(fail):
        reach(STAGED)
    assert current_hook() is keep_going


def test_what_the_hook_does_itself_passes_unnoticed() -> None:
    heard: list[CrashPoint] = []

    def run_another(point: CrashPoint) -> None:
        heard.append(point)
        reach(COMMITTED)

    with reaching(run_another):
        reach(STAGED)
        reach(STAGED)
    assert heard == [STAGED, STAGED]


def test_a_run_in_another_thread_is_not_disturbed_but_a_sinks_threads_are_heard() -> None:
    heard: list[CrashPoint] = []
    with reaching(heard.append):
        hook = current_hook()
        for work in (lambda: reach(STAGED), lambda: hook(COMMITTED)):
            thread = Thread(target=work)
            thread.start()
            thread.join()
    assert heard == [COMMITTED]


def test_no_public_method_of_a_pipeline_knows_of_it() -> None:
    methods = inspect.getmembers(Pipeline, inspect.isfunction)
    assert [
        name for name, method in methods if "reach" in inspect.signature(method).parameters
    ] == []

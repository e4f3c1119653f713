"""The engine's errors, and an interruption, as Dagster's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from eo_pipeline.dagster.automation import Automation
from eo_pipeline.dagster.run_log import into_run_log
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.run.interruption import notes

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext


@contextmanager
def retried(context: StepContext, automation: Automation) -> Iterator[None]:
    """What may succeed when tried again is, as often as ``automation`` says; nothing else.

    Ops of ours have no retry policy: Dagster would apply it to an interruption, too, so that a
    run somebody terminated would start again and commit. The wait is part of the step that
    failed: between two attempts Dagster's in-process executor sleeps and hears nothing.
    """
    with failing(context):
        try:
            yield
        except EoPipelineError as error:
            if not error.retryable or context.retry_number >= automation.retries:
                raise
            _wait(context, automation, error)
            raise dg.RetryRequested(automation.retries, seconds_to_wait=0) from error


@contextmanager
def failing(context: StepContext | dg.AssetCheckExecutionContext) -> Iterator[None]:
    """A step of ours: what the engine says is in the run's log. An error of ours fails the step
    with its sentence. An interruption goes on to Dagster; the run's log says what it left behind.
    """
    try:
        with into_run_log(context):
            yield
    except EoPipelineError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as interruption:
        for note in notes(interruption):
            context.log.warning(note)
        raise


def _wait(context: StepContext, automation: Automation, error: EoPipelineError) -> None:
    retry = context.retry_number + 1
    seconds = automation.seconds_before_retry(retry)
    context.log.warning(f"{error} Retry {retry} of {automation.retries} in {seconds:g} s")
    try:
        time.sleep(seconds)
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as interruption:
        interruption.add_note(f"interrupted before retry {retry}, after: {error}")
        raise

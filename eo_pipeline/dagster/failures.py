"""The engine's errors, and an interruption, as Dagster's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.run_log import into_run_log
from eo_pipeline.dagster.tables import Columns, table_of
from eo_pipeline.dagster.wording import in_dagster
from eo_pipeline.dropped_signals import sent_again
from eo_pipeline.errors import (
    BadRecordError,
    DataLossError,
    EoPipelineError,
    Loss,
    RangesGoneError,
)
from eo_pipeline.run.interruption import notes
from eo_pipeline.run.observing import Starter, started_by

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext

#: Losses a failure lists: a topic may have 10,000 partitions, and an event is kept for ever.
LOSSES_SHOWN = 100


@contextmanager
def retried(context: StepContext, declared: DagsterPipeline) -> Iterator[None]:
    """What may succeed when tried again is, as often as the automation says; nothing else.

    Ops of ours have no retry policy: Dagster would apply it to an interruption, too, so that a
    run somebody terminated would start again and commit. The wait is part of the step that
    failed: between two attempts Dagster's in-process executor sleeps and hears nothing.
    """
    retries = declared.automation.retries
    with failing(context, declared):
        try:
            yield
        except EoPipelineError as error:
            if not error.retryable or context.retry_number >= retries:
                raise
            _wait(context, declared, error)
            raise dg.RetryRequested(retries, seconds_to_wait=0) from error


@contextmanager
def failing(
    context: StepContext | dg.AssetCheckExecutionContext, declared: DagsterPipeline
) -> Iterator[None]:
    """A step of ours: what the engine says is in the run's log. An error of ours fails the step
    with its sentence. An interruption goes on to Dagster; the run's log says what it left behind.
    """
    try:
        starter = Starter(context.run.job_name, context.run.run_id)
        with sent_again(), into_run_log(context), started_by(starter):
            yield
    except EoPipelineError as error:
        raise dg.Failure(
            description=in_dagster(declared, str(error)),
            metadata=failure_metadata(error),
            allow_retries=False,
        ) from error
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as interruption:
        for note in notes(interruption):
            context.log.warning(note)
        raise


def failure_metadata(error: EoPipelineError) -> dict[str, Any]:
    """What an error knows beside its sentence: for tables, and for programs that ask Dagster."""
    known: dict[str, Any] = {"error": type(error).__name__, "retryable": error.retryable}
    if isinstance(error, DataLossError | RangesGoneError):
        return known | {"losses": len(error.losses), "lost": _losses(error.losses)}
    if isinstance(error, BadRecordError) and error.example is not None:
        record = error.example
        return known | {
            "bad_records": error.count,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "reason": record.reason,
        }
    return known


def _losses(losses: Sequence[Loss]) -> dg.MetadataValue:
    columns: Columns = {
        "topic": "string",
        "partition": "int",
        "expected": ("int", "the offset that comes next"),
        "beginning": ("int", "the first offset that Kafka holds now"),
        "end": ("int", "the offset after the last one"),
        "cause": "string",
    }
    return table_of(columns, losses[:LOSSES_SHOWN])


def _wait(context: StepContext, declared: DagsterPipeline, error: EoPipelineError) -> None:
    automation, retry = declared.automation, context.retry_number + 1
    seconds = automation.seconds_before_retry(retry)
    told = in_dagster(declared, str(error))
    context.log.warning(f"{told} Retry {retry} of {automation.retries} in {seconds:g} s")
    try:
        time.sleep(seconds)
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as interruption:
        interruption.add_note(f"interrupted before retry {retry}, after: {error}")
        raise

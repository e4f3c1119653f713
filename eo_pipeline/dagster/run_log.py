"""What the engine says goes into the run's log, whatever dagster.yaml says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

#: The logger above all of the engine's.
ENGINE = "eo_pipeline"

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext


class _IntoRunLog(logging.Handler):
    def __init__(self, context: StepContext) -> None:
        super().__init__(logging.INFO)
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        self._context.log.log(record.levelno, self.format(record))


@contextmanager
def into_run_log(context: StepContext) -> Iterator[None]:
    """Within, what the engine logs (level INFO and above) is in the log of the run, too.

    Nothing is done where the instance has it there already, by its ``managed_python_loggers``.
    """
    if {ENGINE, "root"} & {*context.instance.managed_python_loggers}:
        yield
        return
    logger, handler = logging.getLogger(ENGINE), _IntoRunLog(context)
    level = logger.level
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)

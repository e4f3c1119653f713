"""The thread in which a checkpoint's rows are staged ahead; see :mod:`eo_pipeline.runs.runner`."""

from __future__ import annotations

import logging
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from eo_pipeline.ledger.entry import Counts, LedgerEntry
from eo_pipeline.progress import apart, phase
from eo_pipeline.runs.report import Timing
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eo_pipeline.batch.stage import Stager

log = logging.getLogger(__name__)


class BackgroundStaging:
    """Rows of ``entry``, being staged into ``attempt`` in a thread of their own."""

    def __init__(
        self,
        entry: LedgerEntry,
        attempt: Attempt,
        stager: Stager,
        spark: SparkSession,
        message: str,
    ) -> None:
        self.entry = entry
        self.attempt = attempt
        self.stager = stager
        self.spark = spark
        self.timing = Timing("stage")
        self._said = message
        self._unwanted: Future[None] = Future()
        self._done: Future[tuple[StagedOutput, Counts]] | None = None
        self._is_taken = False

    def begin(self) -> None:
        """Returns at once."""
        # here, because it takes pyspark, which is there by now
        from eo_pipeline.spark.interrupts import beside

        # with what this thread's context says: a test's crash points, who started the run
        self._done = beside(self.spark, partial(copy_context().run, self._stage))

    def result(self) -> tuple[StagedOutput, Counts]:
        """Wait for the staged output; an interruption of the wait ends it first. From now on the
        attempt is the caller's, to promise or to abort.

        Raises:
            EoPipelineError, OSError: as ``Stager.stage``.
        """
        assert self._done is not None
        self._is_taken = True
        try:
            return self._done.result()
        finally:
            if not self._done.done():
                self._end()

    def identified(self, entry: LedgerEntry) -> LedgerEntry:
        """``entry`` as the very attempt that is being staged."""
        ours = self.entry
        return replace(entry, transaction_id=ours.transaction_id, started_at=ours.started_at)

    def drop(self) -> None:
        """Unless it was taken nobody wants it: its job ends, and its folder goes, in which nothing
        was promised.
        """
        if self._is_taken:
            return
        self._end()
        try:
            self.attempt.delete()
        except OSError as error:  # what is left is no promise; the error that led here says more
            log.warning("%s was not removed, a later run will: %s", self.attempt.folder, error)

    def _stage(self) -> tuple[StagedOutput, Counts]:
        from eo_pipeline.spark.interrupts import until

        with until(self._unwanted), apart(), phase(self._said), self.timing:
            return self.stager.stage(self.spark, self.entry, self.attempt)

    def _end(self) -> None:
        """Return when it has ended, or did not within the time that an interrupted job has."""
        from eo_pipeline.spark.interrupts import CANCEL_SECONDS

        if not self._unwanted.done():
            self._unwanted.set_result(None)
        if self._done is not None and wait([self._done], CANCEL_SECONDS).not_done:
            log.warning("version %d is still being staged, for nobody", self.entry.version)

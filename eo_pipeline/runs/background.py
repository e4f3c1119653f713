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
    from eo_pipeline.batch.tables import TablesStager

log = logging.getLogger(__name__)


class BackgroundStaging:
    """Stage the rows of ``entry`` into ``attempt`` in a background thread."""

    def __init__(
        self,
        entry: LedgerEntry,
        attempt: Attempt,
        stager: Stager | TablesStager,
        spark: SparkSession,
        message: str,
    ) -> None:
        self.entry = entry
        self.attempt = attempt
        self.stager = stager
        self.spark = spark
        self.timing = Timing("stage")
        self._message = message
        self._cancelled: Future[None] = Future()
        self._result: Future[tuple[StagedOutput, Counts]] | None = None
        self._is_taken = False

    def begin(self) -> None:
        """Start the thread."""
        # imported here, because it takes pyspark, which is loaded by now
        from eo_pipeline.spark.interrupts import beside

        # in a copy of this thread's context: a test's crash points, the job that started the run
        self._result = beside(self.spark, partial(copy_context().run, self._stage))

    def result(self) -> tuple[StagedOutput, Counts]:
        """Wait for the staged output, and hand the attempt over to the caller, to promise or to
        abort. An interruption of the wait ends the staging first.

        Raises:
            EoPipelineError, OSError: as ``Stager.stage``.
        """
        assert self._result is not None
        self._is_taken = True
        try:
            return self._result.result()
        finally:
            if not self._result.done():
                self._end()

    def identified(self, entry: LedgerEntry) -> LedgerEntry:
        """Return ``entry`` under the transaction id that is being staged."""
        ours = self.entry
        return replace(entry, transaction_id=ours.transaction_id, started_at=ours.started_at)

    def drop(self) -> None:
        """End the job and delete the folder, in which nothing was promised, unless the result was
        taken.
        """
        if self._is_taken:
            return
        self._end()
        try:
            self.attempt.delete()
        except OSError as error:  # no promise remains; the error that led here says more
            log.warning("%s was not removed, a later run will: %s", self.attempt.folder, error)

    def _stage(self) -> tuple[StagedOutput, Counts]:
        from eo_pipeline.spark.interrupts import until

        with until(self._cancelled), apart(), phase(self._message), self.timing:
            return self.stager.stage(self.spark, self.entry, self.attempt)

    def _end(self) -> None:
        """Cancel the job, and wait for its end as long as for an interrupted job."""
        from eo_pipeline.spark.interrupts import CANCEL_SECONDS

        if not self._cancelled.done():
            self._cancelled.set_result(None)
        if self._result is not None and wait([self._result], CANCEL_SECONDS).not_done:
            log.warning(
                "version %d: its cancelled Spark job still runs; its rows will not be used",
                self.entry.version,
            )

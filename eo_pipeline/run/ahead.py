"""The next checkpoint's rows, staged by Spark while the last one is committed.

Once version n is promised, nearly all is known of version n + 1: its parent, and which offsets it
reads. So it is guessed, and a thread beside the run's own stages the guess, while the run's own, to
which the sink's session belongs alone, commits n. Nothing else is done ahead. When n is reported
the run plans n + 1 as ever, from what Kafka and the ledger hold then. It takes the staged rows only
if that plan is the guess, and if they would be staged in the same way now. Otherwise their folder
goes, and n + 1 is staged like any other.

No manifest of n + 1 is written before n is in the ledger: it would be a promise on top of one that
may not be kept. Whatever ends the run meanwhile costs the staging of n + 1, and never a row.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.ledger.entry import Counts, LedgerEntry
from eo_pipeline.run.beside import Staging
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.telling import reading
from eo_pipeline.sinks.config import StagingFolders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: On one core a commit and a job that run at the same time only make each other slower. On two the
#: one uses what the other leaves: bench_overlap.
_CORES_MIN = 2


class Ahead:
    """At most one :class:`Staging` at a time.

    ``wanted``: as ``Pipeline.overlap``.
    """

    def __init__(self, steps: Steps, wanted: bool | None) -> None:
        self._steps = steps
        self._wanted = wanted if self._is_possible() else False
        self._staging: Staging | None = None

    def begin(self, promised: LedgerEntry, guess: Callable[[], LedgerEntry | None]) -> None:
        """Stage ``guess()``, the version on top of ``promised``, if that is worth it. What stands
        in the way is met, and told, when it is that version's turn.
        """
        self._staging = None  # it was taken, or dropped
        if self._wanted is False or (guessed := guess()) is None:
            return
        from eo_pipeline.spark import SPARK_ERRORS

        try:
            self._staging = self._prepared(promised, guessed)
            if self._staging is not None:
                reach(CrashPoint.STAGING)
                self._staging.begin()
        except (EoPipelineError, *SPARK_ERRORS) as error:
            log.info("version %d is not staged ahead: %s", guessed.version, error)
            self.close()

    def taken(self, planned: LedgerEntry, measured: Counts) -> Staging | None:
        """The staging of the version that is ``planned``, if it was guessed right. ``measured``:
        see ``Steps.promised``.
        """
        staging = self._staging
        if staging is None:
            return None
        # a commit may have made the table, whose columns then say what they do not take
        alike = staging.stager == self._steps.knowing_stager(measured)
        if not alike or staging.identified(planned) != staging.entry:
            log.info("version %d was guessed otherwise, and is staged anew", planned.version)
            self.close()
            return None
        return staging

    def _is_possible(self) -> bool:
        """Not where a commit copies nothing, and is over in no time: files that become the table;
        nor where the form of rows is agreed upon in every checkpoint.
        """
        sink = self._steps.sink
        beside = sink.staging_folders() == StagingFolders()
        return sink.copies_rows and beside and not sink.needs_agreement

    def _prepared(self, promised: LedgerEntry, guess: LedgerEntry) -> Staging | None:
        """What is asked of the sink for it is asked here, in the thread of the session."""
        steps = self._steps
        spark = steps.spark_in_use
        if spark is None or steps.fits_inline(guess, promised.counts):
            return None
        if self._wanted is None:
            # a transform may read the table that it feeds, and must see the last checkpoint there
            self._wanted = steps.transform is None and _has_cores_for_both(spark)
        if not self._wanted:
            return None
        steps.entries.gather(promised)
        stager = steps.knowing_stager(promised.counts)
        attempt = steps.recovery.staging.begin(guess)
        said = f"{steps.pipeline}: {reading(guess)} ahead"
        return Staging(guess, attempt, stager, spark, said)

    def close(self) -> None:
        """Drop what was not taken."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.drop()


def _has_cores_for_both(spark: SparkSession) -> bool:
    """Spark's may be elsewhere: then a commit takes none of them."""
    from eo_pipeline.spark.cores import cores

    here = len(os.sched_getaffinity(0))
    return here >= _CORES_MIN or (cores(spark) or 0) >= _CORES_MIN

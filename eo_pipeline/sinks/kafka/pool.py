"""The shards a session keeps from checkpoint to checkpoint, and how a decided entry is completed.

Fencing is ``init_transactions`` (KIP-98): it ends what a dead run left open and shuts out every
producer of this pipeline that is still alive, older or newer. That is no compare-and-swap. But the
ledger, read to its end after it, hides nothing any more, and whoever moves it later has to fence us
first, so that our commit fails.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack

import tenacity

from eo_pipeline.errors import CommitUnknownError, SinkError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.kafka.config import KafkaSink
from eo_pipeline.sinks.kafka.ledger import LedgerTopic
from eo_pipeline.sinks.kafka.ledger_records import DecidedEntry
from eo_pipeline.sinks.kafka.shards import Shards
from eo_pipeline.sinks.kafka.store import KafkaStore, TransactionLostError, UnansweredError
from eo_pipeline.sinks.kafka.transaction import shut_out
from eo_pipeline.staging.rows import StagedOutput

log = logging.getLogger(__name__)

#: How often the missing shards of a decided entry are published, with new producers each time.
_TRIES = 2

#: Seconds to wait, after a commit, for its rows to be readable.
READERS_SECONDS = 2.0

#: What may go wrong on the way to a decided entry's other shards: made good, not undone.
Incomplete = (SinkError, TransactionLostError, UnansweredError)


class ShardPool:
    """Fenced shards, or none: from the first checkpoint on until something goes wrong."""

    def __init__(
        self, sink: KafkaSink, pipeline: str, store: KafkaStore, ledger: LedgerTopic
    ) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._store = store
        self._ledger = ledger
        self._shards: Shards | None = None

    def shards(self) -> Shards:
        """Those of the checkpoint before, or new ones; see :meth:`fence`."""
        return self._shards or self.fence()

    def fence(self) -> Shards:
        """New shards, and the certainty that the ledger shows its last entry.

        Raises:
            SinkUnavailableError, ConfigError: the cluster cannot be used.
        """
        self.drop()
        topic = self._ledger.topic
        shards = Shards(self._sink, self._pipeline, topic, self._store.settings)
        with ExitStack() as unless_fenced:
            unless_fenced.callback(shards.close)
            shards.fence(1)
            shards.fence(self._producers())
            self._fence_earlier_release()
            self._ledger.wait_for_open_transactions()
            if len(shards) < self._producers():  # told by what was hidden
                shards.fence(self._producers())
                self._ledger.wait_for_open_transactions()
            unless_fenced.pop_all()
        self._shards = shards
        return shards

    def drop(self) -> None:
        """Close them, if there are any: what is open is aborted."""
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    def complete(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        """Publish the shards of a decided ``entry`` that are not there.

        Raises:
            CommitUnknownError: they are still not there. Whoever tries the same entry again, with
                the same staged files, goes on here.
        """
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Incomplete),
            stop=tenacity.stop_after_attempt(_TRIES),
            reraise=True,
        )
        try:
            again(self._complete_once, entry, staged)
        except Incomplete as error:
            raise CommitUnknownError(
                f"{self._sink.topic}: version {entry.version} is decided, and not all of its "
                f"shards could be published yet: {error} Nothing is lost while its staged files "
                "are there; the next run goes on with them."
            ) from error

    def _complete_once(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        try:
            if self._ledger.missing(entry):
                self._publish_missing(entry, staged)
        except Incomplete as error:
            self.drop()
            if isinstance(error, TransactionLostError):  # somebody else is completing it
                self._ledger.is_complete_soon(entry)
            raise

    def _publish_missing(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        staged.verify(entry)
        shards = self.fence()
        # only now: a zombie's shard may have landed until it was fenced
        decided = self._ledger.decided(entry.version)
        if decided is None or not decided.missing:
            return
        log.info("%s", unfinished(self._sink, decided))
        shards.complete(decided, staged, self._store.row_partitions())
        self._ledger.wait_for_open_transactions()
        partitions = self._store.all_partitions(self._ledger.topic)
        ends = self._store.ends(partitions, committed=False)
        self._store.wait_until_readable(ends, READERS_SECONDS)

    def _fence_earlier_release(self) -> None:
        """Shut out the producers of a release that gave them other ids, which may still be alive
        below the last entry of such a release; nobody else shuts them out.
        """
        newest = self._ledger.newest()
        if newest is not None and newest.shards.is_apart:
            return
        for shard in range(newest.shards.producers if newest else 1):
            shut_out(self._sink, self._pipeline, self._store.settings, shard)

    def _producers(self) -> int:
        """How many shards may have a transaction open, of this run or of an earlier one."""
        newest = self._ledger.newest()
        return max(self._sink.shards, newest.shards.producers if newest else 1)


def unfinished(sink: KafkaSink, decided: DecidedEntry) -> str:
    """What is missing of ``decided``, for the log."""
    missing = ", ".join(map(str, sorted(decided.missing)))
    return (
        f"{sink.topic}: version {decided.entry.version} (transaction "
        f"{decided.entry.transaction_id}) is decided, its shards {missing} of "
        f"{len(decided.shards.rows)} are not there yet. They are published by the run that "
        "finds its staged files; until then no later version can be."
    )

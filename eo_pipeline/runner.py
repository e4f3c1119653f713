"""The life of one checkpoint.

1. **recover**: the ledger's head (version n) is read from the sink; what a dead run left is
   settled. No data is read, no Spark started.
2. **plan**: the Kafka admin client gives partitions, topic ids, beginning and end offsets; the
   planner gives a batch: one half-open range a partition. Nothing new: the run ends here.
3. **read**: Spark's Kafka connector, in batch mode, exactly these ranges.
4. **transform**: the user's ``DataFrame -> DataFrame``; bad records by policy.
5. **stage**: one Spark job writes the result where no reader looks; a small batch goes from Arrow
   to the driver instead.
6. **pre_commit**: the manifest is written last and atomically; from here on anyone may commit.
7. **commit**: the sink publishes rows and ledger entry in one transaction, if the head is still n.
8. **report**: the caller hears of it, offsets go back to Kafka for lag tools, staging is cleaned.

A run repeats 2 to 8 until it reaches the end offsets it saw when it started.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from eo_pipeline.checkpoint import (
    START_VERSION,
    LedgerEntry,
    Operation,
    new_transaction_id,
)
from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.discovery import (
    Cluster,
    Discovery,
    LossKind,
    describe_loss,
    discover,
    past_losses,
)
from eo_pipeline.errors import (
    DataLossError,
    EoPipelineError,
    FencedError,
    Loss,
    SetupError,
    SourceUnavailableError,
    SparkJobError,
)
from eo_pipeline.offsets import Offsets, TopicPartition
from eo_pipeline.planner import ASSUMED_RECORD_BYTES, Batch, lag, plan
from eo_pipeline.recovery import Recovery
from eo_pipeline.report import CheckpointReport, RunReport
from eo_pipeline.sinks.base import CommitOutcome, SinkSession
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.spark import SparkProvider
from eo_pipeline.stage import Stager
from eo_pipeline.staged import StagedOutput
from eo_pipeline.transaction import SinkTransaction

log = logging.getLogger(__name__)

#: Values of a batch that may go to the driver as Arrow instead of through files, in bytes.
INLINE_BYTES = 64 * 1024 * 1024


@dataclass
class Runner:
    """One run of one pipeline, from the ledger's head to the end offsets seen at its start."""

    pipeline: str
    source: KafkaSource
    session: SinkSession
    stager: Stager
    recovery: Recovery
    spark: SparkProvider
    reach: Reach
    run_id: str
    inline_records: int
    checkpoints_max: int
    on_checkpoint: Callable[[CheckpointReport], None]
    admin: KafkaAdmin = field(init=False)
    _seconds: dict[str, float] = field(init=False, default_factory=dict)
    _reports: list[CheckpointReport] = field(init=False, default_factory=list)

    def run(self) -> RunReport:
        """Go through as many checkpoints as it takes; see the module's text."""
        self.admin = KafkaAdmin(self.source)
        head = self._recover()
        cluster = self.admin.cluster()
        ends = cluster.ends()
        head = head or self._start(cluster)
        committed = 0
        while committed < self.checkpoints_max:
            head = self._settle_losses(head, cluster)
            with self._timed("plan"):
                batch = self._plan(head, cluster, ends)
            if batch.is_empty:
                break
            head = self._checkpoint(head, batch, cluster)
            self.recovery.tidy(head)
            committed += 1
            cluster = self.admin.cluster()
        return RunReport(
            pipeline=self.pipeline,
            run_id=self.run_id,
            head=head,
            checkpoints=tuple(self._reports),
            lag=lag(head.offsets, cluster),
        )

    def _recover(self) -> LedgerEntry | None:
        """Step 1."""
        with self._timed("recover"):
            head, committed = self.recovery.settle(self.reach)
        for entry in committed:
            self._committed(entry, lag_before=None, cluster=None, recovered=True)
        self.reach(CrashPoint.RECOVERED)
        return head

    def _start(self, cluster: Cluster) -> LedgerEntry:
        """The first entry: the start mode as numbers, in the ledger before any record is read."""
        entry = LedgerEntry(
            pipeline=self.pipeline,
            ledger_id=new_transaction_id(),
            version=START_VERSION,
            transaction_id=new_transaction_id(),
            parent=None,
            operation=Operation.START,
            offsets=self.admin.start_offsets(cluster),
            topic_ids=cluster.topic_ids,
            run_id=self.run_id,
        )
        return self._publish_alone(entry)

    def _settle_losses(self, head: LedgerEntry, cluster: Cluster) -> LedgerEntry:
        """Refuse to go on past a hole, or put it into the ledger where the policy says so."""
        found = self._discover(head, cluster)
        if not found.losses:
            return head
        losses = {
            tp: describe_loss(tp, kind, head.offsets[tp], cluster)
            for tp, kind in sorted(found.losses.items())
        }
        refused = [
            loss for tp, loss in losses.items() if self.source.policy(found.losses[tp]) == "fail"
        ]
        if refused:
            raise DataLossError(self.pipeline, refused)
        moved = past_losses(head.offsets, found.losses, cluster)
        log.warning("%s: going on past %d holes, by policy", self.pipeline, len(losses))
        return self._publish_alone(self._accept_loss(head, moved, losses, cluster))

    def _accept_loss(
        self,
        head: LedgerEntry,
        moved: Mapping[TopicPartition, int],
        losses: Mapping[TopicPartition, Loss],
        cluster: Cluster,
    ) -> LedgerEntry:
        topics = {tp.topic for tp in moved}
        known = {**head.topic_ids, **cluster.topic_ids}
        return replace(
            head.child(Operation.ACCEPT_LOSS, self.run_id, moved),
            topic_ids={topic: uuid for topic, uuid in known.items() if topic in topics},
            details={"holes": [str(loss) for loss in losses.values()]},
        )

    def _discover(self, head: LedgerEntry, cluster: Cluster) -> Discovery:
        subscribed = frozenset(
            topic
            for topic in {*cluster.topic_ids, *(tp.topic for tp in head.offsets)}
            if self.source.matches(topic)
        )
        found = discover(head.offsets, head.topic_ids, cluster, subscribed)
        if found.fresh:
            log.info("%s: new partitions: %s", self.pipeline, ", ".join(map(str, found.fresh)))
        if found.unsubscribed:
            topics = sorted({tp.topic for tp in found.unsubscribed})
            log.warning("%s: no longer subscribed, offsets kept: %s", self.pipeline, topics)
        return found

    def _plan(
        self, head: LedgerEntry, cluster: Cluster, ends: Mapping[TopicPartition, int]
    ) -> Batch:
        """Step 2."""
        batch = plan(
            head.offsets,
            cluster,
            ends=ends,
            limit=self.source.limits.span(_record_bytes(head)),
            turn=head.version,
        )
        self.reach(CrashPoint.PLANNED)
        return batch

    def _checkpoint(self, head: LedgerEntry, batch: Batch, cluster: Cluster) -> LedgerEntry:
        """Steps 3 to 8 for one batch."""
        entry = replace(
            head.child(Operation.FORWARD, self.run_id, batch.offsets),
            ranges=batch.ranges,
            topic_ids={**head.topic_ids, **cluster.topic_ids},
        )
        attempt = None if self._fits_inline(head, batch) else self.recovery.staging.begin(entry.id)
        transaction = SinkTransaction(self.session, entry, attempt, self.reach)
        self.reach(CrashPoint.STAGING)
        try:
            self._promise(transaction, head)
        except OSError as error:
            raise self._staging_failed(transaction.entry, error) from error
        self.reach(CrashPoint.PRE_COMMITTED)
        with self._timed("commit"):
            outcome = transaction.commit()
        self.recovery.staging.bear_witness(entry)
        before = lag(head.offsets, cluster)
        self._committed(
            transaction.entry, before, cluster, outcome=outcome, columns=transaction.columns
        )
        self.reach(CrashPoint.REPORTED)
        return transaction.entry

    def _promise(self, transaction: SinkTransaction, head: LedgerEntry) -> None:
        """Steps 3 to 6."""
        with self._timed("stage"):
            self._stage(transaction, head)
        self.reach(CrashPoint.STAGED)
        with self._timed("pre_commit"):
            transaction.pre_commit()

    def _staging_failed(self, entry: LedgerEntry, error: OSError) -> EoPipelineError:
        """A faster run takes the version and rightly deletes our folder; or the disk is full."""
        held = self.session.entry(entry.version)
        if held is not None and held.id != entry.id:
            return FencedError(self.pipeline, entry.version, held.transaction_id)
        return SetupError(
            f"Pipeline {self.pipeline!r}: staging version {entry.version} failed: {error}. Nothing "
            "was committed. Free space, or set Pipeline.staging to a folder this process may write."
        )

    def _stage(self, transaction: SinkTransaction, head: LedgerEntry) -> None:
        """Steps 3 to 5, and the check that the topics are still those that were planned."""
        try:
            transaction.write(
                lambda entry, attempt: self.stager.stage(self.spark(), entry, attempt)
            )
            self._refuse_replaced_topics(transaction.entry)
        except SparkJobError:
            transaction.abort()
            # a job that found records gone says so in Spark's words; the bounds say it better
            self._refuse_losses(head, self.admin.cluster())
            raise
        except BaseException:
            transaction.abort()
            raise

    def _refuse_replaced_topics(self, entry: LedgerEntry) -> None:
        """A topic recreated between plan and read has other records under the same offsets."""
        now = self.admin.topic_ids()
        replaced = {
            r.topic_partition: LossKind.RECREATED
            for r in entry.ranges
            if now.get(r.topic) != entry.topic_ids.get(r.topic)
        }
        if replaced:
            starts = {r.topic_partition: r.start for r in entry.ranges}
            self._raise_losses(replaced, starts, self.admin.cluster())

    def _refuse_losses(self, head: LedgerEntry, cluster: Cluster) -> None:
        self._raise_losses(self._discover(head, cluster).losses, head.offsets, cluster)

    def _raise_losses(
        self, losses: Mapping[TopicPartition, LossKind], offsets: Offsets, cluster: Cluster
    ) -> None:
        if losses:
            raise DataLossError(
                self.pipeline,
                [describe_loss(tp, k, offsets[tp], cluster) for tp, k in sorted(losses.items())],
            )

    def _committed(
        self,
        entry: LedgerEntry,
        lag_before: int | None,
        cluster: Cluster | None,
        *,
        outcome: CommitOutcome = CommitOutcome.COMMITTED,
        recovered: bool = False,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        """Step 8: tell the caller, then Kafka."""
        report = CheckpointReport(
            entry=entry,
            outcome=outcome,
            recovered=recovered,
            lag_before=lag_before,
            lag_after=lag(entry.offsets, cluster) if cluster else None,
            seconds=dict(self._seconds),
            columns=columns,
        )
        self._seconds.clear()
        self._reports.append(report)
        self.on_checkpoint(report)
        self._commit_back(entry)

    def _commit_back(self, entry: LedgerEntry) -> None:
        """For lag tools only: that Kafka did not take them changes nothing, so it is a warning."""
        if self.source.commit_group is None:
            return
        try:
            self.admin.commit_back(self.source.commit_group, entry.offsets)
        except SourceUnavailableError as error:
            log.warning("offsets of version %d not told to Kafka: %s", entry.version, error)

    def _publish_alone(self, entry: LedgerEntry) -> LedgerEntry:
        """Commit an entry that has no rows: start, accepted loss."""
        transaction = SinkTransaction(self.session, entry, None, self.reach)
        transaction.write(lambda draft, _: (StagedOutput(), draft.counts))
        transaction.pre_commit()
        with self._timed("commit"):
            outcome = transaction.commit()
        self.recovery.staging.bear_witness(entry)
        self._committed(entry, None, None, outcome=outcome)
        return entry

    def _fits_inline(self, head: LedgerEntry, batch: Batch) -> bool:
        size = batch.span * (_record_bytes(head) or ASSUMED_RECORD_BYTES)
        return batch.span <= self.inline_records and size <= INLINE_BYTES

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - started


def _record_bytes(head: LedgerEntry) -> float | None:
    """Mean size of a value in the last checkpoint, in bytes, if it read any."""
    counts = head.counts
    return counts.bytes / counts.records if counts.records else None

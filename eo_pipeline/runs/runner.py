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

A run repeats 2 to 8 until it reaches the end offsets it saw when it started. While it is at 7 and 8
Spark may be at 3 to 5 of the next: :mod:`eo_pipeline.runs.runner`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import ConfigError, DataLossError, EoPipelineError, Loss
from eo_pipeline.kafka.losses import Losses, losses_of, move_past_losses, without_live
from eo_pipeline.kafka.marks import marked, start_marks, validated
from eo_pipeline.kafka.partitions import (
    NO_TOPIC_ID,
    Cluster,
    known_topics,
    missing_topics,
    positions_of,
    reads_its_own,
)
from eo_pipeline.kafka.planner import Batch, lag, plan
from eo_pipeline.kafka.source import LossKind
from eo_pipeline.ledger.entry import (
    START_VERSION,
    Counts,
    Identity,
    LedgerEntry,
    Operation,
    new_transaction_id,
)
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.runs.background import BackgroundStaging
from eo_pipeline.runs.checkpoint import (
    RunContext,
    commit,
    commit_alone,
    describe_read,
    fits_memory,
    prepare,
    record_bytes,
    recover,
)
from eo_pipeline.runs.report import RunReport
from eo_pipeline.sinks.config import StagingFolders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: On one core a concurrent commit and job only slow each other down; on two each uses the core that
#: the other leaves idle: bench_overlap.
_CORES_MIN = 2


class OverlapScheduler:
    """Stage the next checkpoint during a commit: at most one :class:`BackgroundStaging` at a time.

    ``wanted``: as ``Pipeline.overlap``.
    """

    def __init__(self, context: RunContext, wanted: bool | None) -> None:
        self._context = context
        self._wanted = wanted if self._is_possible() else False
        self._staging: BackgroundStaging | None = None

    def begin(self, promised: LedgerEntry, guess: Callable[[], LedgerEntry | None]) -> None:
        """Stage ``guess()``, the version on top of ``promised``, if that is worth it. An error is
        logged: it comes again, and is raised, at that version's turn.
        """
        self._staging = None  # taken or dropped
        if self._wanted is False or (guessed := guess()) is None:
            return
        from eo_pipeline.spark import SPARK_ERRORS
        from eo_pipeline.spark.errors import error_text

        try:
            self._staging = self._prepared(promised, guessed)
            if self._staging is not None:
                reach(CrashPoint.STAGING)
                self._staging.begin()
        except (EoPipelineError, *SPARK_ERRORS) as error:
            log.info("version %d is not staged ahead: %s", guessed.version, error_text(error))
            self.close()

    def taken(self, planned: LedgerEntry, measured: Counts) -> BackgroundStaging | None:
        """Return the staging of the ``planned`` version, if the guess was right. ``measured``: see
        :func:`prepare`.
        """
        staging = self._staging
        if staging is None:
            return None
        # a commit may have created the table, whose columns then have limits
        alike = staging.stager == self._context.current_stager(measured)
        if not alike or staging.identified(planned) != staging.entry:
            log.info("version %d: staged ahead for another plan; staging it again", planned.version)
            self.close()
            return None
        return staging

    def _is_possible(self) -> bool:
        """Return whether an overlap can pay off: not where a commit copies nothing and takes no
        time (files become the table), nor where each checkpoint negotiates the rows' form.
        """
        sink = self._context.sink
        beside = sink.staging_folders() == StagingFolders()
        return sink.copies_rows and beside and not sink.needs_agreement

    def _prepared(self, promised: LedgerEntry, guess: LedgerEntry) -> BackgroundStaging | None:
        """Create the staging; the sink is asked in the thread of its session."""
        context = self._context
        spark = context.recorder.spark
        if spark is None or fits_memory(guess, promised.counts, context.inline_records):
            return None
        if self._wanted is None:
            # a transform may read the table that it feeds, and must see the last checkpoint there
            self._wanted = not context.is_transformed and _has_cores_for_both(spark)
        if not self._wanted:
            return None
        context.entries.gather(promised)
        stager = context.current_stager(promised.counts)
        attempt = context.recovery.staging.begin(guess)
        message = f"{context.pipeline}: {describe_read(guess)} ahead"
        return BackgroundStaging(guess, attempt, stager, spark, message)

    def close(self) -> None:
        """Drop a staging that was not taken."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.drop()


def _has_cores_for_both(spark: SparkSession) -> bool:
    """Return whether commit and job have a core each; Spark's may be on other machines."""
    from eo_pipeline.spark.interrupts import cores

    here = len(os.sched_getaffinity(0))
    return here >= _CORES_MIN or (cores(spark) or 0) >= _CORES_MIN


def still_lost(looked_at: Losses, now: Losses) -> Losses:
    """Return the losses of ``now`` that ``looked_at`` has for the same reason."""
    return {tp: now[tp] for tp, (kind, _) in looked_at.items() if tp in now and now[tp][0] is kind}


def entry_past_losses(
    head: LedgerEntry, losses: Losses, cluster: Cluster, run_id: str, remarks: Mapping[str, str]
) -> LedgerEntry:
    """Return the entry that goes on past ``losses``, and records them."""
    moved = move_past_losses(head, {tp: kind for tp, (kind, _) in losses.items()}, cluster)
    holes = [_hole(loss, moved.offsets.get(tp)) for tp, (_, loss) in losses.items()]
    child = head.child(Operation.ACCEPT_LOSS, run_id, moved.offsets)
    return replace(
        child,
        topic_ids=moved.topic_ids,
        details={**remarks, "holes": holes},
        identity=replace(child.identity, past_topics=moved.past_topics, marks=moved.marks),
    )


def _hole(loss: Loss, resumed_at: int | None) -> dict[str, Any]:
    """Return a loss as the ledger keeps it: its fields, the offset at which reading resumes (None:
    not for now), and its text.
    """
    return {**asdict(loss), "resumed_at": resumed_at, "text": str(loss)}


#: Ranges named in a plan's message.
RANGES_NAMED = 8


def checkpoints_limit(limit: int, requested: int | None) -> int:
    """Return the limit of a run's checkpoints: as ``requested``, but never over ``limit``.

    Raises:
        ConfigError: fewer than one was requested.
    """
    if requested is not None and requested < 1:
        raise ConfigError(f"max_checkpoints: a run makes one checkpoint at least, not {requested}")
    return limit if requested is None else min(requested, limit)


@dataclass(frozen=True)
class Runner:
    """One run of one pipeline, from the ledger's head to the end offsets seen at its start."""

    context: RunContext
    checkpoints_max: int
    #: see ``Pipeline.overlap``
    overlap: bool | None = None

    def run(self) -> RunReport:
        """Commit checkpoints until the end offsets are reached; see the module's docstring."""
        context = self.context
        head = recover(context)
        if gone := context.session.rolled_back(head):
            raise gone
        cluster = context.admin.cluster()
        ends = cluster.ends()
        self._refuse_own_topics(cluster)
        check_missing_topics(context, head, cluster)
        head = head or self._start(cluster)
        with closing(OverlapScheduler(context, self.overlap)) as ahead:
            head, cluster = self._follow(head, cluster, ends, ahead)
        return RunReport(
            pipeline=context.pipeline,
            run_id=context.run_id,
            head=head,
            checkpoints=tuple(context.recorder.reports),
            lag=lag(positions_of(head, cluster), cluster),
        )

    def _follow(
        self,
        head: LedgerEntry,
        cluster: Cluster,
        ends: Mapping[TopicPartition, int],
        ahead: OverlapScheduler,
    ) -> tuple[LedgerEntry, Cluster]:
        """Steps 2 to 8 until ``ends`` are reached. Returns the last head, and what Kafka holds."""
        context = self.context
        for remaining in reversed(range(self.checkpoints_max)):
            cluster = validated(cluster, head, context.admin.logs)
            head = self._refuse_or_accept_losses(head, cluster)
            with context.recorder.timed("plan"):
                batch = self._plan(head, cluster, ends)
                reach(CrashPoint.PLANNED)
            if batch.is_empty:
                break
            context.say(_planned(head, batch))
            entry = self._entry(head, batch, cluster)
            staged = ahead.taken(entry, head.counts)
            prepared = prepare(context, head, entry, cluster, head.counts, staged)
            if remaining:
                parent = prepared.transaction.entry
                ahead.begin(parent, partial(self._guess, parent, cluster, ends))
            head = commit(context, prepared)
            context.recovery.delete_decided_attempts(head)
            cluster = context.admin.cluster()
        return head, cluster

    def _guess(
        self, promised: LedgerEntry, cluster: Cluster, ends: Mapping[TopicPartition, int]
    ) -> LedgerEntry | None:
        """Return the entry on top of ``promised``, if Kafka's answers stay the same; None: nothing
        to read.
        """
        batch = self._plan(promised, cluster, ends)
        return None if batch.is_empty else self._entry(promised, batch, cluster)

    def _entry(self, head: LedgerEntry, batch: Batch, cluster: Cluster) -> LedgerEntry:
        entry = entry_of_batch(head, batch, cluster, self.context.run_id)
        return marked(entry, cluster, self.context.admin.logs)

    def _refuse_own_topics(self, cluster: Cluster) -> None:
        """Refuse a source that reads a topic of the sink, by UUID: addresses may differ.

        Raises:
            ConfigError: it does.
        """
        if not self.context.sink.kafka_topics(self.context.pipeline)[1]:
            return
        written = {*(self.context.session.table_identity() or {}).values()} - {NO_TOPIC_ID}
        if written_topics := sorted(
            name for name, uuid in cluster.topic_ids.items() if uuid in written
        ):
            raise ConfigError(f"source.topics: {reads_its_own(written_topics)}.")

    def _start(self, cluster: Cluster) -> LedgerEntry:
        """Commit the first entry, the start mode as offsets, before any record is read."""
        offsets = self.context.admin.start_offsets(cluster)
        entry = LedgerEntry(
            pipeline=self.context.pipeline,
            ledger_id=new_transaction_id(),
            version=START_VERSION,
            transaction_id=new_transaction_id(),
            parent=None,
            operation=Operation.START,
            offsets=offsets,
            topic_ids=cluster.topic_ids,
            run_id=self.context.run_id,
            identity=Identity(marks=start_marks(offsets, cluster)),
        )
        return commit_alone(self.context, entry)

    def _refuse_or_accept_losses(self, head: LedgerEntry, cluster: Cluster) -> LedgerEntry:
        """Refuse to read past lost records, or record the loss in the ledger, by policy."""
        losses = losses_of(head, cluster, self.context.source)
        if not losses:
            return head
        policy = self.context.source.policy
        refused = [loss for kind, loss in losses.values() if policy(kind) == "fail"]
        if refused:
            raise DataLossError(self.context.pipeline, refused)
        log.warning("%s: skipping %d lost ranges, by policy", self.context.pipeline, len(losses))
        entry = entry_past_losses(
            head, losses, cluster, self.context.run_id, {"reason": "by the source's policy"}
        )
        return commit_alone(self.context, entry)

    def _plan(
        self, head: LedgerEntry, cluster: Cluster, ends: Mapping[TopicPartition, int]
    ) -> Batch:
        """Checkpoint step 2. Returns the next batch."""
        limits = self.context.source.limits
        return plan(
            positions_of(head, cluster),
            cluster,
            ends=ends,
            limit=limits.span(record_bytes(head.counts)),
            turn=head.version,
        )


def check_missing_topics(context: RunContext, head: LedgerEntry | None, cluster: Cluster) -> None:
    """Warn of topics that do not exist, or refuse them: always at the first run, where a name is
    probably a typo, later by the policy for topics that vanish.

    Raises:
        SourceError: the source names a topic that does not exist.
    """
    topics = known_topics(head) if head else ()
    if head is None or context.source.policy(LossKind.VANISHED) == "fail":
        context.admin.refuse_missing_topics(cluster, topics)
    for topic in missing_topics(context.source.topics, cluster):
        log.warning("%s: there is no topic %s; going on without it", context.pipeline, topic)


def _planned(head: LedgerEntry, batch: Batch) -> str:
    """Describe the next version's ranges and their size, for a log."""
    ranges = batch.ranges
    named = ", ".join(f"{r.topic_partition} {r.start}-{r.end}" for r in ranges[:RANGES_NAMED])
    more = f" and {len(ranges) - RANGES_NAMED} more" if len(ranges) > RANGES_NAMED else ""
    offsets = sum(offset_range.span for offset_range in ranges)
    return f"version {head.version + 1} will read {offsets:,} offsets: {named}{more}"


def entry_of_batch(head: LedgerEntry, batch: Batch, cluster: Cluster, run_id: str) -> LedgerEntry:
    """Return the entry that reads ``batch`` on top of ``head``, as planned from ``cluster``."""
    child = head.child(Operation.FORWARD, run_id, batch.after(head.offsets))
    topic_ids = {**head.topic_ids, **cluster.topic_ids}
    past = without_live(head.identity.past_topics, child.offsets, topic_ids)
    marks = {
        tp: mark
        for tp, mark in head.identity.marks.items()
        if topic_ids.get(tp.topic) == head.topic_ids.get(tp.topic)
    }
    return replace(
        child,
        ranges=batch.ranges,
        topic_ids=topic_ids,
        identity=replace(child.identity, past_topics=past, marks=marks),
    )

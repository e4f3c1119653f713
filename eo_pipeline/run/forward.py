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
Spark may be at 3 to 5 of the next: :mod:`eo_pipeline.run.ahead`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import ConfigError, DataLossError
from eo_pipeline.ledger.entry import (
    START_VERSION,
    Identity,
    LedgerEntry,
    Operation,
    new_transaction_id,
)
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.run.accept_loss import entry_past_losses
from eo_pipeline.run.ahead import Ahead
from eo_pipeline.run.amount import record_bytes
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.reports import RunReport
from eo_pipeline.source.config import LossKind
from eo_pipeline.source.discovery import (
    NO_TOPIC_ID,
    Cluster,
    known_topics,
    missing_topics,
    positions_of,
    reads_its_own,
)
from eo_pipeline.source.losses import losses_of, without_live
from eo_pipeline.source.marks import marked, start_marks, validated
from eo_pipeline.source.planner import Batch, lag, plan

log = logging.getLogger(__name__)

#: Ranges that the line of a plan names.
RANGES_NAMED = 8


def checkpoints_limit(limit: int, asked: int | None) -> int:
    """The most checkpoints of one run: as many as were ``asked`` for, but never over ``limit``.

    Raises:
        ConfigError: none was asked for.
    """
    if asked is not None and asked < 1:
        raise ConfigError(f"max_checkpoints: a run makes one checkpoint at least, not {asked}")
    return limit if asked is None else min(asked, limit)


@dataclass(frozen=True)
class Runner:
    """One run of one pipeline, from the ledger's head to the end offsets seen at its start."""

    steps: Steps
    checkpoints_max: int
    #: see ``Pipeline.overlap``
    overlap: bool | None = None

    def run(self) -> RunReport:
        """Go through as many checkpoints as it takes; see the module's text."""
        steps = self.steps
        head = steps.recover()
        if gone := steps.session.rolled_back(head):
            raise gone
        cluster = steps.cluster()
        ends = cluster.ends()
        self._refuse_own_topics(cluster)
        tell_missing_topics(steps, head, cluster)
        head = head or self._start(cluster)
        with closing(Ahead(steps, self.overlap)) as ahead:
            head, cluster = self._follow(head, cluster, ends, ahead)
        return RunReport(
            pipeline=steps.pipeline,
            run_id=steps.run_id,
            head=head,
            checkpoints=tuple(steps.reports),
            lag=lag(positions_of(head, cluster), cluster),
        )

    def _follow(
        self,
        head: LedgerEntry,
        cluster: Cluster,
        ends: Mapping[TopicPartition, int],
        ahead: Ahead,
    ) -> tuple[LedgerEntry, Cluster]:
        """Steps 2 to 8 until ``ends`` are reached. Returns the last head, and what Kafka holds."""
        steps = self.steps
        for left in reversed(range(self.checkpoints_max)):
            cluster = validated(cluster, head, steps.admin.logs)
            head = self._refuse_or_accept_losses(head, cluster)
            with steps.stopwatch.timed("plan"):
                batch = self._plan(head, cluster, ends)
                reach(CrashPoint.PLANNED)
            if batch.is_empty:
                break
            steps.say(_planned(head, batch))
            entry = self._entry(head, batch, cluster)
            staged = ahead.taken(entry, head.counts)
            promised = steps.promised(head, entry, cluster, head.counts, staged)
            if left:
                below = promised.transaction.entry
                ahead.begin(below, partial(self._guess, below, cluster, ends))
            head = steps.kept(promised)
            steps.recovery.delete_decided_attempts(head)
            cluster = steps.cluster()
        return head, cluster

    def _guess(
        self, promised: LedgerEntry, cluster: Cluster, ends: Mapping[TopicPartition, int]
    ) -> LedgerEntry | None:
        """What comes on top of ``promised``, if Kafka's answers stay the same; None: nothing."""
        batch = self._plan(promised, cluster, ends)
        return None if batch.is_empty else self._entry(promised, batch, cluster)

    def _entry(self, head: LedgerEntry, batch: Batch, cluster: Cluster) -> LedgerEntry:
        entry = entry_of_batch(head, batch, cluster, self.steps.run_id)
        return marked(entry, cluster, self.steps.admin.logs)

    def _refuse_own_topics(self, cluster: Cluster) -> None:
        """A topic that the sink writes is known by its UUID, by whatever address it was reached.

        Raises:
            ConfigError: the source reads one.
        """
        if not self.steps.sink.kafka_topics(self.steps.pipeline)[1]:
            return
        written = {*(self.steps.session.table_identity() or {}).values()} - {NO_TOPIC_ID}
        if own := sorted(name for name, uuid in cluster.topic_ids.items() if uuid in written):
            raise ConfigError(f"source.topics: {reads_its_own(own)}.")

    def _start(self, cluster: Cluster) -> LedgerEntry:
        """The first entry: the start mode as numbers, in the ledger before any record is read."""
        offsets = self.steps.admin.start_offsets(cluster)
        entry = LedgerEntry(
            pipeline=self.steps.pipeline,
            ledger_id=new_transaction_id(),
            version=START_VERSION,
            transaction_id=new_transaction_id(),
            parent=None,
            operation=Operation.START,
            offsets=offsets,
            topic_ids=cluster.topic_ids,
            run_id=self.steps.run_id,
            identity=Identity(marks=start_marks(offsets, cluster)),
        )
        return self.steps.publish_alone(entry)

    def _refuse_or_accept_losses(self, head: LedgerEntry, cluster: Cluster) -> LedgerEntry:
        """Refuse to go on past a hole, or put it into the ledger where the policy says so."""
        found = losses_of(head, cluster, self.steps.source)
        if not found:
            return head
        policy = self.steps.source.policy
        refused = [loss for kind, loss in found.values() if policy(kind) == "fail"]
        if refused:
            raise DataLossError(self.steps.pipeline, refused)
        log.warning("%s: going on past %d holes, by policy", self.steps.pipeline, len(found))
        entry = entry_past_losses(
            head, found, cluster, self.steps.run_id, {"reason": "by the source's policy"}
        )
        return self.steps.publish_alone(entry)

    def _plan(
        self, head: LedgerEntry, cluster: Cluster, ends: Mapping[TopicPartition, int]
    ) -> Batch:
        """Step 2."""
        limits = self.steps.source.limits
        return plan(
            positions_of(head, cluster),
            cluster,
            ends=ends,
            limit=limits.span(record_bytes(head.counts)),
            turn=head.version,
        )


def tell_missing_topics(steps: Steps, head: LedgerEntry | None, cluster: Cluster) -> None:
    """A name that was never read is a slip of the pen: at the first run it always stops it, later
    by the policy for topics that vanish.

    Raises:
        SourceError: the source names a topic that does not exist.
    """
    known = known_topics(head) if head else ()
    if head is None or steps.source.policy(LossKind.VANISHED) == "fail":
        steps.admin.refuse_missing_topics(cluster, known)
    for topic in missing_topics(steps.source.topics, cluster):
        log.warning("%s: there is no topic %s; going on without it", steps.pipeline, topic)


def _planned(head: LedgerEntry, batch: Batch) -> str:
    """What the next version reads: ranges, as far as somebody would read them, and their size."""
    ranges = batch.ranges
    named = ", ".join(f"{r.topic_partition} {r.start}-{r.end}" for r in ranges[:RANGES_NAMED])
    more = f" and {len(ranges) - RANGES_NAMED} more" if len(ranges) > RANGES_NAMED else ""
    offsets = sum(each.span for each in ranges)
    return f"version {head.version + 1} will read {offsets:,} offsets: {named}{more}"


def entry_of_batch(head: LedgerEntry, batch: Batch, cluster: Cluster, run_id: str) -> LedgerEntry:
    """The entry that reads ``batch`` on top of ``head``, as planned from ``cluster``."""
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

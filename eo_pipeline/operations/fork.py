"""Fork: a new pipeline, with a ledger and table of its own, begins where a version stood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from eo_pipeline.errors import GoingBackError
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import (
    START_VERSION,
    Identity,
    LedgerEntry,
    Operation,
    new_transaction_id,
)
from eo_pipeline.ledger.history import checkpoints
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.operations.change_plan import (
    OpenContext,
    RereadingPlan,
    check_rereading,
    current_head,
    find_live_entry,
    first_topic_ids,
    ranges_since,
    refuse_stale,
)
from eo_pipeline.runs.checkpoint import RunContext, commit_alone, recover


@dataclass(frozen=True, kw_only=True)
class ForkPlan(RereadingPlan):
    """A fork named ``fork`` that begins after the entry ``target``, and then reads ``ranges``.

    An existing ledger of the new pipeline is an error when the plan is applied: opening its store
    would create tables, and a plan changes nothing.
    """

    operation: ClassVar = Operation.FORK

    target: LedgerEntry
    fork: str
    open_fork: OpenContext = field(repr=False, compare=False)

    @property
    def target_version(self) -> int:
        return self.target.version

    def __str__(self) -> str:
        return (
            f"fork of {self.pipeline} at version {self.target.version}: the new pipeline reads "
            f"again {self._rows_of_checkpoints()}"
        )

    def check(self, context: RunContext) -> tuple[str, ...]:
        return check_rereading(
            context,
            f"the fork at {self.target.version}",
            [*self.ranges, *self._begun_at(context.source)],
            self.topic_ids,
            self.checkpoints,
            accept_compacted=self.accept_compacted,
            target=self.target,
        )

    def _begun_at(self, source: KafkaSource) -> Iterator[OffsetRange]:
        """Yield empty ranges at the start offsets of partitions with no offsets to read again."""
        read = {r.topic_partition for r in self.ranges}
        for tp, offset in self.target.offsets.items():
            if tp not in read and source.matches(tp.topic):
                yield OffsetRange(tp.topic, tp.partition, offset, offset)

    def _apply(self, context: RunContext, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        """Write the new ledger's first entry; the old pipeline is only read."""
        refuse_stale(self.pipeline, self.head, context.session.head())
        self.check(context)
        with self.open_fork(context.run_id, context.recorder.on_checkpoint) as new:
            head = recover(new)
            if head is not None:
                raise GoingBackError(
                    f"Pipeline {self.fork!r} has a ledger already, at version {head.version}. "
                    "Nothing was changed; fork under another name."
                )
            return (commit_alone(new, self._entry(context, remarks)),)

    def _entry(self, context: RunContext, remarks: Mapping[str, str]) -> LedgerEntry:
        origin = {
            "pipeline": self.pipeline,
            "ledger_id": self.target.ledger_id,
            "version": self.target.version,
            "transaction_id": self.target.transaction_id,
        }
        return LedgerEntry(
            pipeline=self.fork,
            ledger_id=new_transaction_id(),
            version=START_VERSION,
            transaction_id=new_transaction_id(),
            parent=None,
            operation=Operation.FORK,
            offsets=self.target.offsets,
            topic_ids=self.target.topic_ids,
            run_id=context.run_id,
            details={**remarks, "forked_from": origin},
            identity=Identity(
                past_topics=self.target.identity.past_topics, marks=self.target.identity.marks
            ),
            counts=context.carried(self.target, self.head),
        )


def plan_fork(
    open_context: OpenContext,
    at: int | datetime,
    fork: str,
    open_fork: OpenContext,
    *,
    accept_compacted: bool,
) -> ForkPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_fork`."""
    with open_context() as context:
        head = current_head(context.session)
        target, later = find_live_entry(context.session, head, at)
        plan = ForkPlan(
            pipeline=context.pipeline,
            open_context=open_context,
            head=head,
            target=target,
            fork=fork,
            open_fork=open_fork,
            checkpoints=checkpoints(later),
            ranges=ranges_since(target, head, later),
            topic_ids=first_topic_ids([target, *later]),
            accept_compacted=accept_compacted,
        )
        return replace(plan, warnings=plan.check(context))

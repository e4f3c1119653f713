"""Status of a pipeline and plan of its next run; nothing changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from eo_pipeline.errors import EoPipelineError, Loss
from eo_pipeline.formats.history import NextReader, next_columns
from eo_pipeline.formats.parts import VALUE
from eo_pipeline.kafka.logs import OpenTransaction, open_transactions
from eo_pipeline.kafka.losses import losses_of
from eo_pipeline.kafka.marks import validated
from eo_pipeline.kafka.partitions import Cluster, positions_of
from eo_pipeline.kafka.planner import lag, plan
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.history import Checkpoint, checkpoints, records_per_second
from eo_pipeline.ledger.offsets import OffsetRange, offsets_to_json, ranges_to_json
from eo_pipeline.operations.change_plan import OpenContext, newest_entries
from eo_pipeline.operations.repair import damaged_promises
from eo_pipeline.runs.checkpoint import RunContext, record_bytes
from eo_pipeline.runs.runner import check_missing_topics

#: Ledger entries from which a plan estimates the time of the next run.
ENTRIES_TO_ESTIMATE_BY = 50


@dataclass(frozen=True)
class Status:
    """The ledger's ``head``, and the ``cluster`` at the same moment.

    ``losses`` are records that the head expects next and Kafka no longer holds: they stop the next
    run. ``blocked`` are damaged manifests and a table that was set back: they stop it before
    anything else. ``transactions`` are open, and records behind them wait; unknown if empty while
    ``unstable`` is not 0.
    """

    pipeline: str
    head: LedgerEntry | None
    cluster: Cluster
    losses: tuple[Loss, ...] = ()
    blocked: tuple[EoPipelineError, ...] = ()
    transactions: tuple[OpenTransaction, ...] = ()

    @property
    def unstable(self) -> int:
        """Offsets that wait until producers' transactions end; not part of the lag."""
        return sum(bounds.unstable for bounds in self.cluster.bounds.values())

    @property
    def lag(self) -> int:
        """Offsets still to read; before the first run all that Kafka holds."""
        return lag(positions_of(self.head, self.cluster), self.cluster)

    @property
    def age(self) -> timedelta | None:
        """Time since the newest version was committed; None before the first."""
        if self.head is None or self.head.committed_at is None:
            return None
        return datetime.now(UTC) - self.head.committed_at

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``age_seconds`` in whole seconds."""
        head = self.head
        return {
            "pipeline": self.pipeline,
            "version": head.version if head else None,
            "operation": head.operation.value if head else None,
            "rows_total": head.counts.rows_total if head else 0,
            "run_id": head.run_id if head else None,
            "committed_at": head.committed_at.isoformat() if head and head.committed_at else None,
            "age_seconds": None if self.age is None else round(self.age.total_seconds()),
            "offsets": offsets_to_json(head.offsets) if head else {},
            "lag": self.lag,
            "unstable": self.unstable,
            "open_transactions": [transaction.to_json() for transaction in self.transactions],
            "kafka_partitions": len(self.cluster.bounds),
            "losses": [str(loss) for loss in self.losses],
            "blocked": [str(error) for error in self.blocked],
        }


@dataclass(frozen=True)
class RunPlan:
    """The next run.

    ``ranges`` are all it would read, ``first`` those of its first checkpoint. ``losses`` would stop
    it, unless the source's policies allow them. ``recent`` are checkpoints to estimate by.
    ``readers`` are the registry's schemas of the columns, the value's before the key's.
    """

    status: Status
    ranges: tuple[OffsetRange, ...]
    first: tuple[OffsetRange, ...]
    recent: tuple[Checkpoint, ...] = ()
    readers: tuple[NextReader, ...] = ()

    @property
    def reader(self) -> NextReader | None:
        """Schema of the values."""
        return next((reader for reader in self.readers if reader.part == VALUE), None)

    @property
    def span(self) -> int:
        """Upper bound on the records to read."""
        return sum(r.span for r in self.ranges)

    @property
    def seconds(self) -> float | None:
        """Estimated time, by recent checkpoints; None if there were none."""
        speed = records_per_second(self.recent)
        return self.span / speed if speed else None

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``seconds`` rounded to tenths."""
        return {
            "pipeline": self.status.pipeline,
            "version": self.status.head.version if self.status.head else None,
            "ranges": ranges_to_json(self.ranges),
            "first_checkpoint": ranges_to_json(self.first),
            "offsets": self.span,
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "losses": [str(loss) for loss in self.status.losses],
            "blocked": [str(error) for error in self.status.blocked],
            **next_columns(self.readers),
        }


def read_status(open_context: OpenContext) -> Status:
    """See :meth:`eo_pipeline.pipeline.Pipeline.status`."""
    with open_context() as context:
        return _status(context, context.session.verified(context.session.head()))


def _status(context: RunContext, head: LedgerEntry | None) -> Status:
    gone = context.session.rolled_back(head)
    blocked = [*([gone] if gone else []), *damaged_promises(context.recovery, head)]
    cluster = validated(context.admin.cluster(), head, context.admin.logs)
    kafka_losses = losses_of(head, cluster, context.source) if head else {}
    losses = tuple(loss for _, loss in kafka_losses.values())
    transactions = open_transactions(cluster, context.admin.logs)
    return Status(context.pipeline, head, cluster, losses, tuple(blocked), transactions)


def plan_next_run(open_context: OpenContext) -> RunPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_run`."""
    with open_context() as context:
        newest = newest_entries(context.session, ENTRIES_TO_ESTIMATE_BY)
        status = _status(context, newest[-1] if newest else None)
        readers = context.resolvers.next_readers(status.head) if context.resolvers else ()
    head, cluster = status.head, status.cluster
    check_missing_topics(context, head, cluster)
    positions = positions_of(head, cluster) if head else context.admin.start_offsets(cluster)
    limit = context.source.limits.span(record_bytes(head.counts) if head else None)
    turn = head.version if head else 0
    everything = plan(positions, cluster)
    first = plan(positions, cluster, limit=limit, turn=turn)
    return RunPlan(status, everything.ranges, first.ranges, tuple(checkpoints(newest)), readers)

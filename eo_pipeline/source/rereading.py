"""Whether ranges that were read once can be read again: all of them, as they were, and for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from eo_pipeline.errors import CompactedError, Loss, OpenTransactionError, RangesGoneError
from eo_pipeline.ledger.branch import Checkpoint
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.config import KafkaSource, LossKind
from eo_pipeline.source.discovery import Cluster
from eo_pipeline.source.losses import describe_loss, lost_ranges
from eo_pipeline.source.marks import altered_ranges

#: How long the records must still stay in Kafka, so that retention does not overtake the reading.
RETENTION_MARGIN = timedelta(hours=1)


@dataclass(frozen=True)
class Rereading:
    """Whether ranges can be read again, for one pipeline and one look at the cluster."""

    pipeline: str
    source: KafkaSource
    admin: KafkaAdmin
    cluster: Cluster

    def check(
        self,
        operation: str,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        found: Sequence[Checkpoint] = (),
        *,
        accept_compacted: bool,
    ) -> tuple[str, ...]:
        """Warnings about ``ranges``, if all of them can be read again.

        Args:
            operation: in words, for errors: ``the rewind to 3``.
            ranges: what would be read again; an empty one asks only that reading can start there.
            topic_ids: the topics' UUIDs when the ranges were first read.
            found: the checkpoints that read them.
            accept_compacted: a compacted topic is a warning instead of an error.

        Raises:
            RangesGoneError: they are gone, will be soon, or belong to another or no topic; or
                other records have their offsets.
            OpenTransactionError: they can be read once a transaction ends.
            CompactedError: compaction may have taken some of them.
            SourceUnavailableError: Kafka does not answer, or does not show its topics' settings.
        """
        lost = self._unsubscribed(ranges)
        lost = lost or lost_ranges(ranges, topic_ids, self.cluster) or self._altered(found)
        lost = lost or self._soon_gone(ranges)
        if lost:
            raise RangesGoneError(self.pipeline, operation, lost)
        self._refuse_unstable(operation, ranges)
        return self._compacted(operation, ranges, accept=accept_compacted)

    def _unsubscribed(self, ranges: Sequence[OffsetRange]) -> list[Loss]:
        cause = "the pipeline no longer reads this topic, and would not read it again"
        return [
            Loss(r.topic, r.partition, r.start, None, None, cause)
            for r in ranges
            if not self.source.matches(r.topic)
        ]

    def _altered(self, found: Sequence[Checkpoint]) -> list[Loss]:
        altered = altered_ranges(found, self.cluster, self.admin.logs)
        return [
            describe_loss(r.topic_partition, LossKind.TRUNCATED, r.start, self.cluster)
            for _, r in altered
        ]

    def _refuse_unstable(self, operation: str, ranges: Sequence[OffsetRange]) -> None:
        for r in ranges:
            stable = self.cluster.bounds[r.topic_partition].end
            if r.end > stable:
                where = r.topic, r.partition, r.end, stable
                raise OpenTransactionError(self.pipeline, operation, *where)

    def _soon_gone(self, ranges: Sequence[OffsetRange]) -> list[Loss]:
        partitions = [r.topic_partition for r in ranges if r.span]
        floors = self.admin.offsets_kept_for(partitions, RETENTION_MARGIN)
        lost = []
        for r in ranges:
            floor = floors.get(r.topic_partition)
            if floor is not None and r.span and r.start < floor:
                bounds = self.cluster.bounds[r.topic_partition]
                cause = f"retention may delete offsets below {floor} within {RETENTION_MARGIN}"
                lost.append(
                    Loss(r.topic, r.partition, r.start, bounds.beginning, bounds.end, cause)
                )
        return lost

    def _compacted(
        self, operation: str, ranges: Sequence[OffsetRange], *, accept: bool
    ) -> tuple[str, ...]:
        compacted = sorted(self.admin.compacted({r.topic for r in ranges if r.span}))
        if not compacted:
            return ()
        what = f"{', '.join(compacted)}: compaction may have taken records, so that fewer come back"
        if accept:
            return (what,)
        raise CompactedError(
            f"Pipeline {self.pipeline!r}: {operation} would read a compacted topic again. {what}. "
            "Nothing was changed. If that is what you want, say so: accept_compacted=True, "
            "`--accept-compacted`."
        )

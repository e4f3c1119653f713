"""Whether Kafka still holds what going back would have to read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from eo_pipeline.errors import CompactedError, Loss, RangesGoneError
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.discovery import Cluster, missing

#: How long the records must still stay in Kafka, so that retention does not overtake the reading.
RETENTION_MARGIN = timedelta(hours=1)


@dataclass(frozen=True)
class Rereading:
    """The check for one pipeline, against one look at the cluster."""

    pipeline: str
    source: KafkaSource
    admin: KafkaAdmin
    cluster: Cluster

    def check(
        self,
        operation: str,
        ranges: Sequence[OffsetRange],
        topic_ids: dict[str, str],
        *,
        accept_compacted: bool,
    ) -> tuple[str, ...]:
        """Warnings about ``ranges``, if all of them can be read again.

        Args:
            operation: in words, for errors: ``the rewind to 3``.
            ranges: what would be read again; an empty one asks only that reading can start there.
            topic_ids: the topics' UUIDs when the ranges were first read.
            accept_compacted: a compacted topic is a warning instead of an error.

        Raises:
            RangesGoneError: they are gone, will be soon, or belong to another or no topic.
            CompactedError: compaction may have taken some of them.
            SourceUnavailableError: Kafka does not answer, or does not show its topics' settings.
        """
        lost = self._unsubscribed(ranges)
        lost = lost or missing(ranges, topic_ids, self.cluster) or self._soon_gone(ranges)
        if lost:
            raise RangesGoneError(self.pipeline, operation, lost)
        return self._compacted(operation, ranges, accepted=accept_compacted)

    def _unsubscribed(self, ranges: Sequence[OffsetRange]) -> list[Loss]:
        cause = "the pipeline no longer reads this topic, and would not read it again"
        return [
            Loss(r.topic, r.partition, r.start, None, None, cause)
            for r in ranges
            if not self.source.matches(r.topic)
        ]

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
        self, operation: str, ranges: Sequence[OffsetRange], *, accepted: bool
    ) -> tuple[str, ...]:
        compacted = sorted(self.admin.compacted({r.topic for r in ranges if r.span}))
        if not compacted:
            return ()
        what = f"{', '.join(compacted)}: compaction may have taken records, so that fewer come back"
        if accepted:
            return (what,)
        raise CompactedError(
            f"Pipeline {self.pipeline!r}: {operation} would read a compacted topic again. {what}. "
            "Nothing was changed. If that is what you want, say so: accept_compacted=True, "
            "`--accept-compacted`."
        )

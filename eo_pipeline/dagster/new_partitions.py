"""Which Kafka partitions nobody has announced yet: pure, and small enough for a sensor's cursor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.source.discovery import Cluster

_FORMAT = 1

#: Half-open spans of partition numbers, ``[[0, 8]]``: 10,000 partitions stay a few bytes.
Spans = list[list[int]]


@dataclass(frozen=True)
class KnownPartitions:
    """Partitions already announced, and the topic's UUID each belonged to: a topic that was
    deleted and created again is new, whatever its name.
    """

    topic_ids: Mapping[str, str]
    partitions: frozenset[TopicPartition]

    @classmethod
    def of_ledger(cls, head: LedgerEntry) -> KnownPartitions:
        """Where a sensor without a memory starts: what the runs have taken up."""
        return cls(dict(head.topic_ids), frozenset(head.offsets))

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> KnownPartitions:
        return cls(dict(cluster.topic_ids), frozenset(cluster.bounds))

    def new_in(self, cluster: Cluster) -> list[TopicPartition]:
        """Partitions of ``cluster`` that are not known."""
        return sorted(tp for tp in cluster.bounds if not self._holds(tp, cluster))

    def including(self, cluster: Cluster) -> KnownPartitions:
        """Both; where a topic has another UUID, the cluster's. A topic that is briefly not seen
        stays known, so that it is not announced again.
        """
        now = cluster.topic_ids
        kept = {tp for tp in self.partitions if tp.topic not in now or self._holds(tp, cluster)}
        return KnownPartitions({**self.topic_ids, **now}, frozenset(kept | cluster.bounds.keys()))

    def _holds(self, tp: TopicPartition, cluster: Cluster) -> bool:
        known = self.topic_ids.get(tp.topic)
        return tp in self.partitions and known in (None, cluster.topic_ids.get(tp.topic))

    def to_cursor(self) -> str:
        """As a sensor cursor, topics sorted."""
        numbers: dict[str, list[int]] = {}
        for tp in self.partitions:
            numbers.setdefault(tp.topic, []).append(tp.partition)
        topics = {
            topic: {"id": self.topic_ids.get(topic), "partitions": _spans(found)}
            for topic, found in sorted(numbers.items())
        }
        return json.dumps({"format": _FORMAT, "topics": topics})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> KnownPartitions | None:
        """The inverse of :meth:`to_cursor`; None if there is none of this format."""
        raw = json.loads(cursor) if cursor else {}
        if raw.get("format") != _FORMAT:
            return None
        topics = raw["topics"]
        return cls(
            {topic: held["id"] for topic, held in topics.items() if held["id"]},
            frozenset(
                TopicPartition(topic, number)
                for topic, held in topics.items()
                for start, end in held["partitions"]
                for number in range(start, end)
            ),
        )


def _spans(numbers: Iterable[int]) -> Spans:
    spans: Spans = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number:
            spans[-1][1] += 1
        else:
            spans.append([number, number + 1])
    return spans

"""Partitions of the cluster at one moment, and the offsets where reading continues. Pure.

A topic is identified by its UUID, not by its name: a name may disappear, come back, and belong to
another topic. A position therefore belongs to (UUID, partition), for good. It is among the ledger's
offsets while the partition is read, and among its past topics once an accepted loss has put it
aside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.offsets import Offsets, TopicPartition

#: Positions put aside, by the topic's UUID.
PastTopics = Mapping[str, Offsets]

#: What a broker says that is older than topics' UUIDs.
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"

#: Where positions are kept of a topic whose UUID nobody told.
UNKNOWN_TOPIC_ID = ""


@dataclass(frozen=True)
class Bounds:
    """The offsets one partition holds now: ``[beginning, end)``.

    ``end`` is the last stable offset under read_committed, the high watermark otherwise. ``high``
    is the high watermark where it was asked for as well: what lies between belongs to transactions
    that are still open. ``epoch`` is the leader's (KIP-320), where the broker gives it.
    """

    beginning: int
    end: int
    high: int | None = None
    epoch: int | None = None

    @property
    def written(self) -> int:
        """The offset after the last record, of open transactions too."""
        return self.end if self.high is None else max(self.end, self.high)

    @property
    def unstable(self) -> int:
        """Offsets that wait until a transaction ends, those behind its records too."""
        return self.written - self.end


@dataclass(frozen=True)
class Cluster:
    """The subscribed topics as the broker describes them at one moment.

    ``altered`` are offsets of the ledger below which the log is not the one that was read.
    """

    bounds: Mapping[TopicPartition, Bounds]
    topic_ids: Mapping[str, str]
    altered: Offsets = field(default_factory=dict)

    def ends(self) -> dict[TopicPartition, int]:
        """End offset of reading, per partition."""
        return {tp: bounds.end for tp, bounds in self.bounds.items()}

    def beginnings(self) -> dict[TopicPartition, int]:
        """Start offset of reading without a ledger."""
        return {tp: bounds.beginning for tp, bounds in self.bounds.items()}


@dataclass(frozen=True)
class Discovery:
    """The ledger beside the cluster.

    ``positions``: where reading goes on, of the ledger's partitions and of those Kafka shows
    besides. ``fresh``: shown for the first time. ``returned``: put aside once, and back.
    ``waiting``: back as well, but the log does not reach their position yet. ``unsubscribed``: in
    the ledger, no longer asked for; their offsets are kept.
    """

    positions: Mapping[TopicPartition, int]
    fresh: tuple[TopicPartition, ...]
    returned: tuple[TopicPartition, ...]
    waiting: tuple[TopicPartition, ...]
    unsubscribed: tuple[TopicPartition, ...]


def discover(
    offsets: Offsets, past: PastTopics, cluster: Cluster, subscribed: frozenset[str]
) -> Discovery:
    """Compare the ledger's ``offsets`` and ``past`` topics with the ``cluster``.

    A partition that nobody has read is read from offset 0, where its first record was: that its
    log begins later now is a loss like any other.

    ``subscribed`` are the topics asked for and those of the ledger that match the pattern, also
    when they no longer exist: that is how a vanished topic is told from an unsubscribed one.
    """
    fresh: list[TopicPartition] = []
    returned: list[TopicPartition] = []
    waiting: list[TopicPartition] = []
    positions = dict(offsets)
    for tp, bounds in sorted(cluster.bounds.items()):
        if tp in offsets:
            continue
        kept = kept_position(past, cluster.topic_ids, tp)
        if kept is not None and kept > bounds.written:
            waiting.append(tp)
            continue
        (fresh if kept is None else returned).append(tp)
        positions[tp] = kept or 0
    return Discovery(
        positions=positions,
        fresh=tuple(fresh),
        returned=tuple(returned),
        waiting=tuple(waiting),
        unsubscribed=tuple(sorted(tp for tp in offsets if tp.topic not in subscribed)),
    )


def kept_position(past: PastTopics, topic_ids: Mapping[str, str], tp: TopicPartition) -> int | None:
    """Return where reading of ``tp`` stopped when it was put aside; None if it never was."""
    uuid = topic_ids.get(tp.topic, UNKNOWN_TOPIC_ID)
    kept = past.get(uuid, {}).get(tp)
    return past.get(UNKNOWN_TOPIC_ID, {}).get(tp) if kept is None else kept


def missing_topics(
    named: Collection[str], cluster: Cluster, read_before: Collection[str] = ()
) -> list[str]:
    """Topics ``named`` by the source that Kafka does not show, but for those ``read_before`` to the
    ledger: what becomes of these is a matter of losses.
    """
    return sorted({*named} - cluster.topic_ids.keys() - {*read_before})


def reads_its_own(topics: Sequence[str]) -> str:
    """Describe the fault of a pipeline that reads ``topics`` and writes them, too."""
    return (
        f"the source reads {', '.join(topics)}, which the sink writes: every run would read what "
        "the run before had published. Name the source's topics, or a topic_pattern that leaves "
        "the sink's topic, its ledger and its dead letters out"
    )


def known_topics(head: LedgerEntry) -> set[str]:
    """Topics the ledger has read, or put aside."""
    past = head.identity.past_topics.values()
    return {tp.topic for positions in (head.offsets, *past) for tp in positions}


def positions_of(head: LedgerEntry | None, cluster: Cluster) -> Mapping[TopicPartition, int]:
    """Return the next offset after ``head`` of every partition that can be read."""
    if head is None:
        return cluster.beginnings()
    return discover(head.offsets, head.identity.past_topics, cluster, frozenset()).positions

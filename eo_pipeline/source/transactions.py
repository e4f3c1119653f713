"""Producers' transactions that are open, and what waits behind them under read_committed.

A broker tells consumers where the first open transaction of a partition begins, the last stable
offset, and not whose it is: that takes Kafka's own tool, as librdkafka has no DescribeProducers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.ledger.offsets import Offsets, TopicPartition
from eo_pipeline.source.discovery import Cluster
from eo_pipeline.source.logs import Logs

#: Producers end a transaction within milliseconds; the broker ends it after this, by default.
USUAL = timedelta(seconds=60)


@dataclass(frozen=True)
class OpenTransaction:
    """The first open transaction of a partition: its first record's ``offset`` and time (None: not
    known), and the offsets that wait until it ends, its own among them.
    """

    topic: str
    partition: int
    offset: int
    waiting: int
    since: datetime | None

    @property
    def is_unusual(self) -> bool:
        """Whether it is older than a transaction should be, or may be."""
        return self.since is None or datetime.now(UTC) - self.since > USUAL

    @property
    def remedy(self) -> str:
        """What names its producer, and what ends it."""
        return (
            "Its producer is named by `kafka-transactions.sh describe-producers --topic "
            f"{self.topic} --partition {self.partition}`; what hangs longer than the producer's "
            f"transaction.timeout.ms is ended by `abort --start-offset {self.offset}` of the same."
        )

    def __str__(self) -> str:
        since = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else "by a producer"
        return (
            f"{self.topic}[{self.partition}]: {self.waiting:,} offsets wait behind a transaction "
            f"open {since}, from offset {self.offset:,} on"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "since": self.since.isoformat() if self.since else None}


def open_transactions(cluster: Cluster, logs: Logs) -> tuple[OpenTransaction, ...]:
    """Those of ``cluster`` behind which something waits, the oldest first."""
    firsts = {tp: bounds.end for tp, bounds in cluster.bounds.items() if bounds.unstable}
    times = _times(logs, firsts)
    found = [
        OpenTransaction(*tp, offset, cluster.bounds[tp].unstable, times.get(tp))
        for tp, offset in sorted(firsts.items())
    ]
    return tuple(sorted(found, key=_age))


def _times(logs: Logs, firsts: Offsets) -> Mapping[TopicPartition, datetime]:
    """How long they are open is told if it can be, and never in the way of the rest."""
    try:
        return logs.times(firsts)
    except SourceUnavailableError:
        return {}


def _age(each: OpenTransaction) -> datetime:
    return each.since or datetime.now(UTC)


def said_of(transactions: Sequence[OpenTransaction]) -> str:
    """The oldest, in a clause, and how many there are besides."""
    more = len(transactions) - 1
    return f"{transactions[0]}{f'; and {more} more open transactions' if more else ''}"

"""The producers of one checkpoint, each with a transaction of its own: atomic per shard.

Kafka has no transaction of several producers. So shard 0 decides, and the others follow:

1. every shard sends its rows, each in its own transaction, and waits until the brokers have them:
   what they will refuse, they have refused by now, and nothing is visible;
2. shard 0 commits, with the entry, which names how many rows each shard publishes;
3. the others commit, each with a marker in the ledger.

Between 2 and 3 a reader sees some shards and not yet the others. Whoever finds an entry without all
its markers publishes the rest again from the staged files: it fences the shard, which ends what is
open there, and only then looks for the marker, so that no shard is published twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Guarantee
from eo_pipeline.sinks.kafka.config import KafkaSink
from eo_pipeline.sinks.kafka.ledger_records import (
    DecidedEntry,
    ShardCounts,
    entry_record,
    marker_record,
)
from eo_pipeline.sinks.kafka.rows import dead_letters, shares
from eo_pipeline.sinks.kafka.store import TransactionLostError
from eo_pipeline.sinks.kafka.transaction import ShardProducer
from eo_pipeline.sinks.kafka.types import has_origin
from eo_pipeline.staging.rows import StagedOutput

_T = TypeVar("_T")


class Shards:
    """The producers that one session holds. Whatever they raise, they are closed and not used
    again; see :class:`ShardProducer` for what that is.
    """

    def __init__(
        self, sink: KafkaSink, pipeline: str, ledger: str, settings: Mapping[str, Any]
    ) -> None:
        self._sink = sink
        self._producer = partial(ShardProducer, sink, pipeline, ledger, settings)
        self._producers: list[ShardProducer] = []
        self._rows: list[int] = []

    def __len__(self) -> int:
        return len(self._producers)

    def fence(self, count: int) -> None:
        """Have at least ``count`` shards, and shut out everybody else from them. To be called
        with 1 first: of two runs that do this at once, who has shard 0 may go on.

        Raises:
            SinkUnavailableError, ConfigError: see :func:`while_asking`.
        """
        fresh = [self._producer(shard) for shard in range(len(self), count)]
        self._producers += fresh
        _at_once(ShardProducer.fence, fresh)

    def send(self, staged: StagedOutput, allowed: int, partitions: int) -> None:
        """The rows are with the brokers, and none of it is decided. ``allowed``: how many shards
        may have a transaction open.
        """
        with self._ours():
            self._rows = self._send_all(staged, self._count(staged, allowed), partitions)

    def enter(self, entry: LedgerEntry) -> ShardCounts:
        """The entry is with the brokers too, and names how many rows each shard sent."""
        counts = ShardCounts(tuple(self._rows), self._sink.shards)
        with self._ours():
            self._producers[0].record(entry_record(entry, counts), entry.offsets)
        return counts

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """What a lost transaction means while shard 0 is this session's."""
        try:
            yield
        except TransactionLostError as lost:
            if lost.is_stale or not self._producers[0].abort():
                raise
            # shard 0 was still ours: who took another one cannot win, and need not be waited for
            raise TransactionLostError(str(lost), is_stale=True) from lost

    def decide(self) -> None:
        """Commit shard 0, and with it the entry; see :meth:`ShardProducer.commit`."""
        self._producers[0].commit()

    def follow(self, entry: LedgerEntry, shards: Collection[int]) -> None:
        """Commit the other ``shards``, after shard 0. The first error is raised once every one of
        them was tried.
        """

        def land(shard: int) -> None:
            self._producers[shard].record(marker_record(entry, shard))
            self._producers[shard].commit()

        _at_once(land, sorted(shards))

    def complete(self, decided: DecidedEntry, staged: StagedOutput, partitions: int) -> None:
        """Publish what is missing of an entry that shard 0 committed.

        Raises:
            RefusedError: these are not the rows that the entry names, or Kafka refuses them.
        """
        missing = decided.missing
        named = decided.shards.rows
        rows = self._send_rows(staged, len(named), partitions, missing)
        for shard in sorted(missing):
            if rows[shard] != named[shard]:
                raise RefusedError(
                    f"shard {shard} has {rows[shard]} rows in the staged files, the ledger names "
                    f"{named[shard]}"
                )
        _at_once(ShardProducer.flush, [self._producers[shard] for shard in sorted(missing)])
        self.follow(decided.entry, missing)

    def close(self) -> None:
        for producer in self._producers:
            producer.close()

    def _count(self, staged: StagedOutput, allowed: int) -> int:
        """Who dies in between is followed by somebody who has the files: rows in memory, which
        nobody else has, and rows without an origin are published by shard 0 alone.
        """
        rows, is_exact = staged.rows, self._sink.semantics is Guarantee.EXACTLY_ONCE
        if rows is None or not rows.files or not has_origin(rows.schema.names) or not is_exact:
            return 1
        return min(self._sink.shards, allowed)

    def _send_all(self, staged: StagedOutput, count: int, partitions: int) -> list[int]:
        rows = self._send_rows(staged, count, partitions)
        if staged.dead_letters is not None:
            letters = dead_letters(staged.dead_letters)
            self._producers[0].send(self._sink.dead_letters, letters)
        _at_once(ShardProducer.flush, self._producers[:count])
        return rows

    def _send_rows(
        self,
        staged: StagedOutput,
        count: int,
        partitions: int,
        wanted: Collection[int] | None = None,
    ) -> list[int]:
        """How many rows each shard was given. One thread feeds all producers: handing records
        over holds Python's lock, compressing and sending them is done by their own threads.
        """
        rows = [0] * count
        if staged.rows is not None:
            dealt = shares(staged.rows, self._sink.layout, partitions, count, wanted)
            for share in dealt:
                self._producers[share.shard].send(self._sink.topic, share.records)
                rows[share.shard] += share.rows
        return rows


def _at_once(action: Callable[[_T], None], whom: Collection[_T]) -> None:
    """``action`` for each of ``whom``, side by side. All are tried, then the first error raised."""
    if len(whom) < 2:
        for one in whom:
            action(one)
        return
    with ThreadPoolExecutor(len(whom)) as threads:
        futures = [threads.submit(action, one) for one in whom]
    for future in futures:
        future.result()

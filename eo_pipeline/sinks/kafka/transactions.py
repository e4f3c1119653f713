"""The transactions of one producer, which publishes one shard: rows, ledger record, commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import tenacity
from confluent_kafka import KafkaError, KafkaException

from eo_pipeline.errors import CommitUnknownError, RefusedError, SinkError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.offsets import Offsets
from eo_pipeline.sinks.config import Guarantee
from eo_pipeline.sinks.kafka.broker import (
    LOST,
    KafkaStore,
    TransactionLostError,
    UnansweredError,
    error_of,
    while_asking,
    while_publishing,
)
from eo_pipeline.sinks.kafka.config import KafkaSink
from eo_pipeline.sinks.kafka.ledger import (
    DecidedEntry,
    LedgerRecord,
    LedgerTopic,
    ShardCounts,
    entry_record,
    marker_record,
)
from eo_pipeline.sinks.kafka.producer import Arguments, RecordProducer, dead_letters, shares
from eo_pipeline.sinks.kafka.records import has_origin
from eo_pipeline.staging.rows import StagedOutput

log = logging.getLogger(__name__)

#: A transaction that used more of its timeout than this is worth a warning.
_NEARLY = 0.8


class ShardProducer:
    """A fenced-in transactional producer, and a plain one for rows that need no transaction.

    Whatever it raises, it is closed and not used again. Raises (but for ``fence`` and ``commit``):
        RefusedError, SinkUnavailableError, TransactionLostError: the transaction is over.
    """

    def __init__(
        self, sink: KafkaSink, pipeline: str, ledger: str, settings: Mapping[str, Any], shard: int
    ) -> None:
        self._sink = sink
        self._ledger = ledger
        producer_settings = {
            "transactional.id": sink.transactional_id(pipeline, shard),
            "transaction.timeout.ms": int(sink.transaction_timeout * 1000),
        }
        self._producer = RecordProducer(settings, producer_settings, producers=sink.shards)
        self._rows = _row_producer(sink.semantics, settings) or self._producer
        self._is_open = False
        self._started = 0.0
        self._is_first = True

    def fence(self) -> None:
        """Shut out every other producer of this shard and end what they left open.

        Raises:
            SinkUnavailableError, ConfigError: see :func:`while_asking`.
        """
        try:
            self._producer.init(self._sink.request_timeout)
        except KafkaException as error:
            raise while_asking(error_of(error), self._sink.topic) from error

    def send(self, topic: str, records: Iterable[Arguments]) -> None:
        """Hand ``records`` over, in a transaction that begins with the first of them."""
        with self._explaining(topic):
            self._begin()
            self._rows.send(topic, records)

    def flush(self) -> None:
        """Wait until the brokers have the rows."""
        with self._explaining():
            self._rows.flush(self._sink.transaction_timeout)

    def record(self, record: LedgerRecord, offsets: Offsets | None = None) -> None:
        """Put ``record`` into the ledger, and ``offsets`` into the group that was asked for."""
        group, seconds = self._sink.offsets_group, self._sink.request_timeout
        with self._explaining():
            self._begin()
            self._producer.send(self._ledger, [record])
            self._producer.flush(seconds)
            if group is not None and offsets:
                self._producer.add_offsets(group, offsets, seconds)

    def commit(self) -> None:
        """End the transaction.

        Raises:
            TransactionLostError, RefusedError, SinkUnavailableError: it was not committed, unless
                the ledger says so in the first case.
            UnansweredError: nobody knows.
        """
        with self._explaining(is_commit=True):
            self._producer.commit(self._sink.request_timeout)
        self._is_open = self._is_first = False
        self._warn_if_slow()

    def abort(self) -> bool:
        """Drop what is open. False if this producer can no longer do that."""
        is_done = not self._is_open or self._producer.abort()
        self._is_open = False
        return is_done

    def close(self) -> None:
        """Abort what is open; if that cannot be done, the next producer's fence does it."""
        if not self.abort():
            log.info("%s: an open transaction could not be aborted now", self._sink.topic)
        for producer in {self._producer, self._rows}:
            producer.close()

    def _begin(self) -> None:
        if not self._is_open:
            self._producer.begin()
            self._is_open, self._started = True, time.monotonic()

    @contextmanager
    def _explaining(self, topic: str = "", *, is_commit: bool = False) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._explained(error_of(error), topic, is_commit) from error

    def _explained(self, error: KafkaError, topic: str, is_commit: bool) -> Exception:
        cause = self._producer.failed or error
        if LOST & {error.code(), cause.code()}:
            return self._lost(error)
        if is_commit and self._producer.failed is None and not error.txn_requires_abort():
            return UnansweredError(error.str())
        return while_publishing(cause, self._producer.failed_topic or topic or self._sink.topic)

    def _lost(self, error: KafkaError) -> TransactionLostError:
        spent = time.monotonic() - self._started if self._is_open else 0.0
        ran_over = spent >= self._sink.transaction_timeout
        message = f"{error.str()}, after {spent:.1f} s"
        # nobody to wait for: the broker did it, or somebody while this producer was idle
        return TransactionLostError(message, is_stale=ran_over or not self._is_first)

    def _warn_if_slow(self) -> None:
        spent, limit = time.monotonic() - self._started, self._sink.transaction_timeout
        if spent > _NEARLY * limit:
            log.warning(
                "%s: a transaction took %.1f s of the %g s after which the broker would have "
                "aborted it. Raise sink.transaction_timeout, or make checkpoints smaller.",
                *(self._sink.topic, spent, limit),
            )


def fence_producer(sink: KafkaSink, pipeline: str, settings: Mapping[str, Any], shard: int) -> None:
    """End what a producer of an earlier release left open or still does for ``shard``.

    Raises:
        SinkUnavailableError, ConfigError: see :func:`while_asking`.
    """
    producer_settings = {"transactional.id": sink.earlier_transactional_id(pipeline, shard)}
    producer = RecordProducer(settings, producer_settings, producers=sink.shards)
    try:
        producer.init(sink.request_timeout)
    except KafkaException as error:
        raise while_asking(error_of(error), sink.topic) from error
    finally:
        producer.close()


def _row_producer(semantics: Guarantee, settings: Mapping[str, Any]) -> RecordProducer | None:
    """Producer of the rows, if not the transactional one."""
    if semantics is Guarantee.AT_LEAST_ONCE:
        return RecordProducer(settings, {"enable.idempotence": True})
    if semantics is Guarantee.NONE:
        return RecordProducer(settings, {"acks": 0}, forgets=True)
    return None


_T = TypeVar("_T")


class TopicOutput(NamedTuple):
    """Staged rows and dead letters, and the topic that they go into, by its sink and by how many
    ``partitions`` it has.
    """

    sink: KafkaSink
    staged: StagedOutput
    partitions: int


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

    def send(self, outputs: Sequence[TopicOutput], allowed: int) -> None:
        """The rows are with the brokers, and none of it is decided. ``allowed``: how many shards
        may have a transaction open.
        """
        counts = [self._count(output.staged, allowed) for output in outputs]
        with self._ours():
            self._rows = self._send_all(outputs, min(counts, default=1))

    def enter(self, entry: LedgerEntry) -> ShardCounts:
        """The entry is with the brokers too, and names how many rows each shard sent."""
        counts = ShardCounts(tuple(self._rows), self._sink.shards)
        with self._ours():
            self._producers[0].record(entry_record(entry, counts), entry.offsets)
        return counts

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Translate a lost transaction while shard 0 is this session's."""
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

    def complete(self, decided: DecidedEntry, output: TopicOutput) -> None:
        """Publish what is missing of an entry that shard 0 committed.

        Raises:
            RefusedError: these are not the rows that the entry names, or Kafka refuses them.
        """
        missing = decided.missing
        named = decided.shards.rows
        rows = self._send_rows(output, len(named), missing)
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
        """Return the number of shards. A run killed in between is followed by one that has the
        files: rows in memory, which nobody else has, and rows without an origin are published by
        shard 0 alone.
        """
        rows, is_exact = staged.rows, self._sink.semantics is Guarantee.EXACTLY_ONCE
        if rows is None or not rows.files or not has_origin(rows.schema.names) or not is_exact:
            return 1
        return min(self._sink.shards, allowed)

    def _send_all(self, outputs: Sequence[TopicOutput], count: int) -> list[int]:
        rows = [0] * count
        for output in outputs:
            sent = self._send_rows(output, count)
            rows = [total + of_topic for total, of_topic in zip(rows, sent, strict=True)]
            if output.staged.dead_letters is not None:
                letters = dead_letters(output.staged.dead_letters)
                self._producers[0].send(output.sink.dead_letters, letters)
        _at_once(ShardProducer.flush, self._producers[:count])
        return rows

    def _send_rows(
        self, output: TopicOutput, count: int, wanted: Collection[int] | None = None
    ) -> list[int]:
        """Return how many rows each shard was given. One thread feeds all producers: handing
        records over holds Python's lock, compressing and sending them is done by their own
        threads.
        """
        rows, sink = [0] * count, output.sink
        if output.staged.rows is not None:
            dealt = shares(output.staged.rows, sink.layout, output.partitions, count, wanted)
            for share in dealt:
                self._producers[share.shard].send(sink.topic, share.records)
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


#: How often the missing shards of a decided entry are published, with new producers each time.
_TRIES = 2

#: Seconds to wait, after a commit, for its rows to be readable.
READERS_SECONDS = 2.0

#: What may go wrong on the way to a decided entry's other shards: made good, not undone.
Incomplete = (SinkError, TransactionLostError, UnansweredError)


class ShardPool:
    """Fenced shards, or none: from the first checkpoint on until something goes wrong."""

    def __init__(
        self, sink: KafkaSink, pipeline: str, store: KafkaStore, ledger: LedgerTopic
    ) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._store = store
        self._ledger = ledger
        self._shards: Shards | None = None

    def shards(self) -> Shards:
        """Those of the checkpoint before, or new ones; see :meth:`fence`."""
        return self._shards or self.fence()

    def fence(self) -> Shards:
        """New shards, and the certainty that the ledger shows its last entry.

        Raises:
            SinkUnavailableError, ConfigError: the cluster cannot be used.
        """
        self.drop()
        topic = self._ledger.topic
        shards = Shards(self._sink, self._pipeline, topic, self._store.settings)
        with ExitStack() as unless_fenced:
            unless_fenced.callback(shards.close)
            shards.fence(1)
            shards.fence(self._producers())
            self._fence_earlier_release()
            self._ledger.wait_for_open_transactions()
            if len(shards) < self._producers():  # told by what was hidden
                shards.fence(self._producers())
                self._ledger.wait_for_open_transactions()
            unless_fenced.pop_all()
        self._shards = shards
        return shards

    def drop(self) -> None:
        """Close them, if there are any: what is open is aborted."""
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    def complete(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        """Publish the shards of a decided ``entry`` that are not there.

        Raises:
            CommitUnknownError: they are still not there. Whoever tries the same entry again, with
                the same staged files, goes on here.
        """
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Incomplete),
            stop=tenacity.stop_after_attempt(_TRIES),
            reraise=True,
        )
        try:
            again(self._complete_once, entry, staged)
        except Incomplete as error:
            raise CommitUnknownError(
                f"{self._sink.topic}: version {entry.version} is decided, and not all of its "
                f"shards could be published yet: {error} Nothing is lost while its staged files "
                "are there; the next run goes on with them."
            ) from error

    def _complete_once(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        try:
            if self._ledger.missing(entry):
                self._publish_missing(entry, staged)
        except Incomplete as error:
            self.drop()
            if isinstance(error, TransactionLostError):  # somebody else is completing it
                self._ledger.is_complete_soon(entry)
            raise

    def _publish_missing(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        staged.verify(entry)
        shards = self.fence()
        # only now: a zombie's shard may have landed until it was fenced
        decided = self._ledger.decided(entry.version)
        if decided is None or not decided.missing:
            return
        log.info("%s", unfinished(self._sink, decided))
        shards.complete(decided, TopicOutput(self._sink, staged, self._store.row_partitions()))
        self._ledger.wait_for_open_transactions()
        topics = (self._sink.topic, self._sink.dead_letters, self._ledger.topic)
        partitions = self._store.partitions(topics)
        ends = self._store.ends(partitions, committed=False)
        self._store.wait_until_readable(ends, READERS_SECONDS)

    def _fence_earlier_release(self) -> None:
        """Shut out the producers of a release that gave them other ids, which may still be alive
        below the last entry of such a release; nobody else shuts them out.
        """
        newest = self._ledger.newest()
        if newest is not None and newest.shards.is_apart:
            return
        for shard in range(newest.shards.producers if newest else 1):
            fence_producer(self._sink, self._pipeline, self._store.settings, shard)

    def _producers(self) -> int:
        """Return how many shards may have a transaction open, of this run or of an earlier one."""
        newest = self._ledger.newest()
        return max(self._sink.shards, newest.shards.producers if newest else 1)


def unfinished(sink: KafkaSink, decided: DecidedEntry) -> str:
    """Describe the missing shards of ``decided``, for the log."""
    missing = ", ".join(map(str, sorted(decided.missing)))
    return (
        f"{sink.topic}: version {decided.entry.version} (transaction "
        f"{decided.entry.transaction_id}) is decided, but its shards {missing} of "
        f"{len(decided.shards.rows)} are not published. The next run with access to "
        "its staged files does that; until then no later version can be committed."
    )

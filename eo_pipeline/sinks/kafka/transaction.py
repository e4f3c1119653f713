"""The transactions of one producer, which publishes one shard: rows, ledger record, commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from eo_pipeline.ledger.offsets import Offsets
from eo_pipeline.sinks.config import Guarantee
from eo_pipeline.sinks.kafka.config import KafkaSink
from eo_pipeline.sinks.kafka.ledger_records import LedgerRecord
from eo_pipeline.sinks.kafka.producer import Arguments, RecordProducer
from eo_pipeline.sinks.kafka.store import (
    LOST,
    TransactionLostError,
    UnansweredError,
    error_of,
    while_asking,
    while_publishing,
)

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
        own = {
            "transactional.id": sink.transactional_id(pipeline, shard),
            "transaction.timeout.ms": int(sink.transaction_timeout * 1000),
        }
        self._producer = RecordProducer(settings, own, producers=sink.shards)
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
        with self._explaining():
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
    def _explaining(self, *, is_commit: bool = False) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._explained(error_of(error), is_commit) from error

    def _explained(self, error: KafkaError, is_commit: bool) -> Exception:
        cause = self._producer.failed or error
        if LOST & {error.code(), cause.code()}:
            return self._lost(error)
        if is_commit and self._producer.failed is None and not error.txn_requires_abort():
            return UnansweredError(error.str())
        return while_publishing(cause, self._sink.topic)

    def _lost(self, error: KafkaError) -> TransactionLostError:
        spent = time.monotonic() - self._started if self._is_open else 0.0
        ran_over = spent >= self._sink.transaction_timeout
        said = f"{error.str()}, after {spent:.1f} s"
        # nobody to wait for: the broker did it, or somebody while this producer was idle
        return TransactionLostError(said, is_stale=ran_over or not self._is_first)

    def _warn_if_slow(self) -> None:
        spent, limit = time.monotonic() - self._started, self._sink.transaction_timeout
        if spent > _NEARLY * limit:
            log.warning(
                "%s: a transaction took %.1f s of the %g s after which the broker would have "
                "aborted it. Raise sink.transaction_timeout, or make checkpoints smaller.",
                *(self._sink.topic, spent, limit),
            )


def shut_out(sink: KafkaSink, pipeline: str, settings: Mapping[str, Any], shard: int) -> None:
    """End what a producer of an earlier release left open or still does for ``shard``.

    Raises:
        SinkUnavailableError, ConfigError: see :func:`while_asking`.
    """
    own = {"transactional.id": sink.earlier_transactional_id(pipeline, shard)}
    producer = RecordProducer(settings, own, producers=sink.shards)
    try:
        producer.init(sink.request_timeout)
    except KafkaException as error:
        raise while_asking(error_of(error), sink.topic) from error
    finally:
        producer.close()


def _row_producer(semantics: Guarantee, settings: Mapping[str, Any]) -> RecordProducer | None:
    """Who sends the rows, if not the transactional producer."""
    if semantics is Guarantee.AT_LEAST_ONCE:
        return RecordProducer(settings, {"enable.idempotence": True})
    if semantics is Guarantee.NONE:
        return RecordProducer(settings, {"acks": 0}, forgets=True)
    return None

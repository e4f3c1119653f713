"""One Kafka producer, used by one thread, and the first error any of its records met."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from threading import Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline.ledger.offsets import Offsets
from eo_pipeline.source.client_options import silent_logger

#: Arguments of ``Producer.produce`` after the topic.
Arguments = tuple[Any, ...]

#: Large batches and a deep queue: measured at several hundred thousand records a second. A user's
#: own settings win.
_BULK = {
    "compression.type": "lz4",
    "linger.ms": 20,
    "batch.size": 1_000_000,
    # the topic's own limit decides, not the client's
    "message.max.bytes": 10_485_760,
    # where Java's producers put a key, so that all writers of a topic agree
    "partitioner": "murmur2_random",
}

#: What may wait in this process, in all producers of a checkpoint together.
_QUEUES = {"queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 262_144}

#: Seconds to wait for room in the local queue, or for an abort that nobody depends on.
_ROOM_SECONDS = 0.05
_ABORT_SECONDS = 5.0

#: Seconds beyond its timeout after which a call counts as stuck.
_GRACE_SECONDS = 5.0


class RecordProducer:
    """Sends records and remembers the first that failed.

    ``forgets``: it does not; what was lost is lost. ``producers``: how many share this process's
    memory. Every method raises ``KafkaException``; its
    callers say what it means.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        own: Mapping[str, Any],
        *,
        forgets: bool = False,
        producers: int = 1,
    ) -> None:
        self._forgets = forgets
        bulk = {**_BULK, **{name: limit // producers for name, limit in _QUEUES.items()}}
        reports = {"delivery.report.only.error": True, "on_delivery": self._delivered}
        self._settings = settings
        self._failed: KafkaError | None = None
        self._is_stuck = False
        self._client = Producer({**bulk, **settings, **own, **reports}, logger=silent_logger())

    @property
    def failed(self) -> KafkaError | None:
        """The first error a record met, if any did."""
        return self._failed

    def send(self, topic: str, records: Iterable[Arguments]) -> None:
        """Hand ``records`` over; they are on their way, not there."""
        produce = self._client.produce
        for record in records:
            try:
                produce(topic, *record)
            except BufferError:
                self._when_there_is_room(topic, record)

    def _when_there_is_room(self, topic: str, record: Arguments) -> None:
        while True:
            _served(lambda: self._client.poll(_ROOM_SECONDS))
            self.raise_failed()
            try:
                return self._client.produce(topic, *record)
            except BufferError:
                continue

    def flush(self, seconds: float) -> None:
        """Wait until the brokers have everything that was sent."""
        left = _served(lambda: self._client.flush(seconds))
        self.raise_failed()
        if left and not self._forgets:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, f"{left} records not acknowledged in time")
            )

    def raise_failed(self) -> None:
        if self._failed is not None:
            raise KafkaException(self._failed)

    def init(self, seconds: float) -> None:
        """``init_transactions``: end what another producer of this id left, and shut it out."""
        self._client.init_transactions(seconds)

    def begin(self) -> None:
        self._client.begin_transaction()

    def add_offsets(self, group: str, offsets: Offsets, seconds: float) -> None:
        """Offsets of a consumer group that become visible with the records (KIP-98, KIP-447)."""
        consumer = Consumer({**self._settings, "group.id": group}, logger=silent_logger())
        try:
            moved = [ClientTopicPartition(tp.topic, tp.partition, o) for tp, o in offsets.items()]
            group_metadata = consumer.consumer_group_metadata()
            self._watched(
                lambda: self._client.send_offsets_to_transaction(moved, group_metadata, seconds),
                seconds + _GRACE_SECONDS,
            )
        finally:
            consumer.close()

    def commit(self, seconds: float) -> None:
        """Commit, asking again as long as the client says that asking again is safe."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            try:
                return self._client.commit_transaction(max(left, 0.1))
            except KafkaException as error:
                if not error.args[0].retriable() or left <= 0:
                    raise

    def abort(self) -> bool:
        """Abort the open transaction. False if that could not be done: it is then ended by the
        next producer of this id, or by the broker after its timeout.
        """
        if self._is_stuck:
            return False
        try:
            self._client.abort_transaction(_ABORT_SECONDS)
        except KafkaException:
            return False
        self._failed = None
        return True

    def close(self) -> None:
        """Forget what was not sent, so that the client ends without waiting for it."""
        if self._is_stuck:
            return
        self._client.purge()
        with contextlib.suppress(KafkaException):  # a fatal error, told once more
            _served(lambda: self._client.flush(0))

    def _watched(self, action: Callable[[], None], seconds: float) -> None:
        """Run what was seen never to return, its own timeout notwithstanding (librdkafka, with the
        broker killed in it). Then the client is given up: nobody calls it again, and the next
        producer of its id ends its transaction.
        """
        call: Future[None] = Future()
        Thread(target=_run_into, args=(call, action), daemon=True).start()
        try:
            call.result(seconds)
        except FutureTimeoutError as error:
            self._is_stuck = True
            said = f"no answer within {seconds:g} s, and the call does not return"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, said)) from error

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        # what is purged by an abort failed for another reason
        purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        if error is None or self._forgets:
            return
        if self._failed is None and error.code() not in purged:
            self._failed = error


def _run_into(call: Future[None], action: Callable[[], None]) -> None:
    try:
        action()
    except (KafkaException, SystemError) as error:
        call.set_exception(error)
    else:
        call.set_result(None)


def _served(action: Callable[[], int]) -> int:
    """Run what serves callbacks. The client's exception for a fatal error is lost on its way if a
    delivery report is served in the same call; what arrives is Python's complaint about that.
    """
    try:
        return action()
    except SystemError as error:
        raise KafkaException(KafkaError(KafkaError._FATAL, "the producer is fenced")) from error

"""One Kafka producer for one thread, and the assignment of records to producers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import UTC, datetime, timedelta
from itertools import repeat
from threading import Thread
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline._lazy import pa, pc
from eo_pipeline.errors import RefusedError
from eo_pipeline.kafka.client import silent_logger
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.ledger.offsets import Offsets
from eo_pipeline.sinks.arrow import json_array, refusing
from eo_pipeline.sinks.kafka.records import (
    HEADERS,
    KEY,
    LINEAGE_COLUMNS,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
    TIMESTAMP,
    VALUE,
    Layout,
    Partitioner,
    is_projected,
)
from eo_pipeline.staging.rows import StagedTable

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

#: Seconds to wait for the report of a record that failed.
_REPORT_SECONDS = 2.0

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
        defaults: Mapping[str, Any],
        *,
        forgets: bool = False,
        producers: int = 1,
    ) -> None:
        self._forgets = forgets
        bulk = {**_BULK, **{name: limit // producers for name, limit in _QUEUES.items()}}
        reports = {"delivery.report.only.error": True, "on_delivery": self._delivered}
        self._settings = settings
        self._failed: KafkaError | None = None
        #: the topic of that record
        self.failed_topic: str | None = None
        self._is_stuck = False
        self._client = Producer({**bulk, **settings, **defaults, **reports}, logger=silent_logger())

    @property
    def failed(self) -> KafkaError | None:
        """The first error a record met, if any did."""
        return self._failed

    def send(self, topic: str, records: Iterable[Arguments]) -> None:
        """Hand ``records`` over; they are on their way, not there."""
        try:
            self._hand_over(topic, records)
        except KafkaException as error:
            self._wait_for_cause(error.args[0])
            self.raise_failed()
            raise

    def _hand_over(self, topic: str, records: Iterable[Arguments]) -> None:
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

    def _wait_for_cause(self, error: KafkaError) -> None:
        """Wait for the report of the record that failed the transaction: the client takes no
        further record from then on, and may say so first.
        """
        deadline = time.monotonic() + _REPORT_SECONDS
        is_told = error.code() != KafkaError._STATE
        while not is_told and self._failed is None and time.monotonic() < deadline:
            _served(lambda: self._client.poll(_ROOM_SECONDS))

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
        self._failed = self.failed_topic = None
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
            reason = f"no answer within {seconds:g} s, and the call does not return"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)) from error

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        # what is purged by an abort failed for another reason
        purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        if error is None or self._forgets:
            return
        if self._failed is None and error.code() not in purged:
            self._failed, self.failed_topic = error, message.topic()


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


_INT_BITS = 32
_INT_MAX = 0x7FFFFFFF


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java: over UTF-16 code units, wrapped to 32 bits, signed."""
    units = text.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2])) % (1 << _INT_BITS)
    return value - (1 << _INT_BITS) if value > _INT_MAX else value


def start_index(topic: str, count: int) -> int:
    """Return which of ``count`` shards or partitions gets partition 0 of ``topic``."""
    return ((java_hash(topic) * 31) & _INT_MAX) % count


def assign(topic: str, partition: int, count: int) -> int:
    """Return which of ``count`` shards or partitions, numbered from 0, a source partition goes to.

    Raises:
        ValueError: there is none to go to.
    """
    if count < 1:
        raise ValueError(f"{topic}[{partition}] cannot be assigned to one of {count}")
    return (start_index(topic, count) + partition) % count


#: librdkafka's "let the partitioner decide".
_ANY_PARTITION = -1

#: ... and its "now"; what lies before means "none" to it, or is nothing a broker takes.
_NOW = 0

_Headers = list[tuple[str, bytes | None]]


class Share(NamedTuple):
    """Rows of one batch that one shard publishes."""

    shard: int
    rows: int
    records: Iterator[Arguments]


def shares(
    staged: StagedTable,
    layout: Layout,
    partitions: int,
    shards: int,
    wanted: Collection[int] | None = None,
) -> Iterator[Share]:
    """The rows of ``staged`` for a topic with that many ``partitions``, dealt out to ``shards``
    by the Kafka partition they came from; only those of the ``wanted`` shards.

    The same rows always belong to the same shards, whoever asks.

    Raises:
        RefusedError: a row has no place in the topic.
        SchemaChangeError: a column the layout goes by is absent or of another type.
    """
    layout.check_arrow(staged.schema)
    for batch in staged.batches():
        for shard, part in _dealt_out(_projected(batch, layout), shards):
            if wanted is None or shard in wanted:
                yield Share(shard, len(part), _arguments(part, layout, partitions))


def _dealt_out(batch: pa.RecordBatch, shards: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    if shards == 1:
        yield 0, batch
        return
    assigned = assign_all(batch.column(SOURCE_TOPIC), batch.column(SOURCE_PARTITION), shards)
    for shard in sorted(pc.unique(assigned).to_pylist()):
        yield shard, batch.filter(pc.equal(assigned, shard))


def assign_all(topics: pa.Array, partitions: pa.Array, count: int) -> pa.Array:
    """:func:`~.assigner.assign` for columns; a row without an origin goes to 0."""
    named = topics.dictionary_encode()
    starts = [None if t is None else start_index(t, count) for t in named.dictionary.to_pylist()]
    first = pa.array(starts, pa.int64()).take(named.indices)
    turn = pc.add(first, pc.cast(partitions, pa.int64()))
    return pc.fill_null(pc.subtract(turn, pc.multiply(pc.divide(turn, count), count)), 0)


def dead_letters(staged: StagedTable) -> Iterator[Arguments]:
    """Records that could not be read, as they came; the error and where they stood as headers."""
    for batch in staged.batches():
        for row in batch.to_pylist():
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            stamp = None if row["timestamp"] is None else _milliseconds_of(row["timestamp"])
            added = {
                CHECKPOINT_COLUMN: row[CHECKPOINT_COLUMN],
                **{f"_eo_{name}": row[name] for name in ("topic", "partition", "offset", "error")},
                "_eo_timestamp": stamp,
            }
            headers += [(name, str(value).encode()) for name, value in added.items()]
            # a time that no record can carry is in the header alone
            carried = stamp if stamp is not None and stamp > _NOW else _NOW
            yield row["value"], row["key"], _ANY_PARTITION, None, None, carried, headers


def _arguments(batch: pa.RecordBatch, layout: Layout, partitions: int) -> Iterator[Arguments]:
    count = len(batch)
    columns: list[Iterable[Any]] = [
        _bytes(batch.column(VALUE)),
        _optional(batch, KEY, _bytes) or repeat(None, count),
        _targets(batch, layout, partitions),
    ]
    stamps = _optional(batch, TIMESTAMP, _milliseconds)
    headers = _headers(batch, layout)
    if stamps is not None or headers is not None:  # two callbacks come first in produce()
        columns += [repeat(None, count), repeat(None, count), stamps or repeat(0, count)]
    if headers is not None:
        columns.append(headers)
    return zip(*columns, strict=True)


def _projected(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Project plain columns as Spark would have done."""
    if is_projected(batch.schema.names):
        return batch
    columns = {name: batch.column(name) for name in batch.schema.names if name in LINEAGE_COLUMNS}
    if layout.value is not None:
        columns[VALUE] = batch.column(layout.value)
    else:
        columns[VALUE] = _documents(batch, layout.payload(batch.schema.names))
    if layout.key is not None:
        columns[KEY] = batch.column(layout.key)
    if layout.timestamp is not None:
        columns[TIMESTAMP] = batch.column(layout.timestamp)
    if isinstance(layout.headers, str):
        columns[HEADERS] = batch.column(layout.headers)
    elif layout.headers:
        columns[HEADERS] = _header_array(batch, layout.headers)
    return pa.RecordBatch.from_pydict(columns)


def _documents(batch: pa.RecordBatch, names: list[str]) -> pa.Array:
    """Each row as one JSON object. If one has no text, the column is named that it has not of."""
    try:
        return _objects(batch, names)
    except (ValueError, OverflowError):
        for name in names:
            with refusing(name, "Kafka"):
                _objects(batch, [name])
        raise


def _objects(batch: pa.RecordBatch, names: list[str]) -> pa.Array:
    return json_array(pa.StructArray.from_arrays([batch.column(name) for name in names], names))


def _header_array(batch: pa.RecordBatch, names: Any) -> pa.Array:
    values = [_bytes(batch.column(column)) for column in names.values()]
    rows = [
        [{"key": name, "value": value} for name, value in zip(names, row, strict=True)]
        for row in zip(*values, strict=True)
    ]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.array(rows, pa.list_(header))


def _optional(
    batch: pa.RecordBatch, name: str, convert: Callable[[pa.Array], list[Any]]
) -> list[Any] | None:
    return convert(batch.column(name)) if name in batch.schema.names else None


def _bytes(values: pa.Array) -> list[bytes | None]:
    if pa.types.is_integer(values.type):
        values = pc.cast(values, pa.string())
    encoded: list[bytes | None] = pc.cast(values, pa.binary()).to_pylist()
    return encoded


def _milliseconds(values: pa.Array) -> list[int]:
    """:data:`_NOW` where there is no timestamp.

    Raises:
        RefusedError: a timestamp that no record can carry.
    """
    millis = pc.cast(pc.cast(values, pa.timestamp("ms", values.type.tz), safe=False), pa.int64())
    first = pc.min(millis).as_py()
    if first is not None and first <= _NOW:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=first)
        raise RefusedError(
            f"sink.timestamp: a Kafka record cannot carry {moment.isoformat()}, only times after "
            "1970-01-01T00:00:00Z: the client would stamp it with the time of publishing. Nothing "
            "was published; make it null in the transform if that is what you want."
        )
    timestamps: list[int] = pc.fill_null(millis, _NOW).to_pylist()
    return timestamps


def _milliseconds_of(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, moment.tzinfo)) // timedelta(milliseconds=1)


def _headers(batch: pa.RecordBatch, layout: Layout) -> list[_Headers] | None:
    """The headers of every row; where the value has no room for the lineage, it is in them."""
    given = batch.column(HEADERS).to_pylist() if HEADERS in batch.schema.names else None
    added = [name for name in batch.schema.names if name in LINEAGE_COLUMNS]
    added = added if layout.lineage_in_headers else []
    if given is None and not added:
        return None
    rows = [[(h["key"], h["value"]) for h in row or ()] for row in given or repeat((), len(batch))]
    lineage = [_bytes(batch.column(name)) for name in added]
    if not lineage:
        return rows
    return [
        [*row, *zip(added, values, strict=True)]
        for row, values in zip(rows, zip(*lineage, strict=True), strict=True)
    ]


def _targets(
    batch: pa.RecordBatch, layout: Layout, partitions: int
) -> Iterator[int] | Sequence[int]:
    if layout.partitioning is Partitioner.KEY:
        return repeat(_ANY_PARTITION, len(batch))
    origins = batch.column(SOURCE_PARTITION)
    if layout.partitioning is Partitioner.SOURCE:
        sources: list[int] = origins.to_pylist()
        _refuse_too_few(sources, partitions)
        return sources
    targets: list[int] = assign_all(batch.column(SOURCE_TOPIC), origins, partitions).to_pylist()
    return targets


def _refuse_too_few(sources: Sequence[int], partitions: int) -> None:
    highest = max(sources, default=-1)
    if highest >= partitions:
        raise RefusedError(
            f"sink.partitioning: source keeps Kafka partition {highest}, and the topic has "
            f"{partitions} partitions. Nothing was published. Give the topic more partitions."
        )

"""Topics of known records; filled once, kept from run to run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, repeat

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from benchmarks.suite.errors import MeasurementError
from benchmarks.suite.records import frames
from benchmarks.suite.workloads.plain import PLAIN
from benchmarks.suite.workloads.workload import Workload

_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = 0.2
#: A broker makes logs one after the other: of 10,000 partitions, on a busy machine, for minutes.
_WHOLE_S = 600.0
#: Records that may wait in this process, of which each may be long.
_WAITING = 50_000
#: Kafka's controller takes fewer than 10,000 records of its own log at once.
_MADE_AT_ONCE = 4_000


@dataclass(frozen=True)
class Topic:
    """A workload's records 0 to ``records``, not included, dealt out to the partitions in turn."""

    bootstrap: str
    name: str
    records: int
    partitions: int
    workload: Workload = PLAIN

    def filled(self) -> Topic:
        """Make sure of its records: a whole topic is taken as it is, any other is made anew."""
        held = self._held()
        if held != self.records:
            if held is not None:
                delete(self.bootstrap, self.name)
            create(self.bootstrap, self.name, self.partitions)
            self._produce(0, self.records)
        return self

    def appended(self, records: int) -> Topic:
        """This topic with ``records`` more at its end."""
        longer = replace(self, records=self.records + records)
        self._produce(self.records, longer.records)
        return longer

    def _held(self) -> int | None:
        """Records in the topic; None if it does not exist."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "bench"})
        known = consumer.list_topics(timeout=_TIMEOUT_S).topics.get(self.name)
        if known is None:
            return None
        parts = [TopicPartition(self.name, part) for part in known.partitions]
        bounds = [consumer.get_watermark_offsets(part, timeout=_TIMEOUT_S) for part in parts]
        consumer.close()
        return sum(high - low for low, high in bounds)

    def _produce(self, start: int, end: int) -> None:
        workload = self.workload
        for frame in frames(start, end):
            held = workload.records(frame)
            values = dealt_out(workload.values(held), self.partitions, start)
            keys = workload.keys(held) if workload.keys else None
            put(self.bootstrap, self.name, values, keys)
            start += len(frame)


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create(bootstrap: str, name: str, partitions: int) -> None:
    """An empty topic, that every client hears of whole.

    Raises:
        MeasurementError: it is not there in time.
    """
    admin = _admin(bootstrap)
    settings = {"retention.ms": "-1"}
    first, *more = (*range(_MADE_AT_ONCE, partitions, _MADE_AT_ONCE), partitions)
    admin.create_topics([NewTopic(name, first, 1, config=settings)])[name].result(_TIMEOUT_S)
    for count in more:
        admin.create_partitions([NewPartitions(name, count)])[name].result(_TIMEOUT_S)
    # a producer that was told of fewer takes no record for the others
    until = time.monotonic() + _WHOLE_S
    while len(admin.list_topics(name, timeout=_TIMEOUT_S).topics[name].partitions) < partitions:
        if time.monotonic() > until:
            raise MeasurementError(f"{name} has fewer than {partitions} partitions")
        time.sleep(_LOOK_AGAIN_S)


def dealt_out(
    values: Iterable[bytes], partitions: int, start: int = 0
) -> Iterator[tuple[bytes, int]]:
    """Each with its partition, in turn; ``start`` is the number of the first."""
    return ((value, number % partitions) for number, value in enumerate(values, start))


def put(
    bootstrap: str,
    name: str,
    records: Iterable[tuple[bytes, int]],
    keys: Iterable[bytes | None] | None = None,
) -> None:
    """Values, each at the end of the partition beside it; they are there when this returns.

    ``keys``: one for each value, in their order.

    Raises:
        MeasurementError: one is not.
    """
    refused: list[KafkaError] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 1_000_000,
            "delivery.report.only.error": True,
        }
    )
    left = zip(records, repeat(None) if keys is None else keys, strict=False)
    while part := list(islice(left, _WAITING)):
        for (value, partition), key in part:
            producer.produce(name, value, key, partition=partition, on_delivery=told)
            producer.poll(0)
        producer.flush()
        if refused:
            raise MeasurementError(f"{name} took {len(refused)} records less: {refused[0]}")


def delete(bootstrap: str, *names: str) -> None:
    """Without a trace."""
    admin = _admin(bootstrap)
    for gone in admin.delete_topics(list(names), operation_timeout=_TIMEOUT_S).values():
        gone.result(_TIMEOUT_S)


def delete_all(bootstrap: str, prefix: str) -> None:
    """Every topic whose name begins so: an output, and a ledger beside it."""
    known = _admin(bootstrap).list_topics(timeout=_TIMEOUT_S).topics
    names = [name for name in known if name.startswith(prefix)]
    if names:
        delete(bootstrap, *names)

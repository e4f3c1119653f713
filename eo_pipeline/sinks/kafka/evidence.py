"""What a topic tells of a pipeline whose ledger says nothing: that rows were published before."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.sinks.kafka.config import KafkaSink
from eo_pipeline.sinks.kafka.store import KafkaStore, error_of, while_asking
from eo_pipeline.source.client_options import silent_logger

#: Offsets looked at, at the end of every partition: some records, and their transaction's marker.
_TAIL = 16

_CONSUMER = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
}


def holds_rows(sink: KafkaSink, pipeline: str, store: KafkaStore) -> bool:
    """True if the topic ends with rows of checkpoints that only ``pipeline`` can have published.

    Rows do not name their pipeline. Where another one has a ledger beside the topic, or ledgers
    have names of their own, it cannot be told.
    """
    if sink.ledger_topic is not None or store.ledgers_beside(pipeline):
        return False
    partitions = [TopicPartition(sink.topic, n) for n in range(store.row_partitions())]
    return any(map(_is_row, _last_records(partitions, pipeline, store)))


def _is_row(record: Message) -> bool:
    """True if it has the number of a checkpoint, in its value or in a header."""
    headers: Any = record.headers() or ()
    if any(header[0] == CHECKPOINT_COLUMN for header in headers):
        return True
    try:
        value = json.loads(record.value() or b"")
    except ValueError:
        return False
    return isinstance(value, dict) and CHECKPOINT_COLUMN in value


def _last_records(
    partitions: list[TopicPartition], pipeline: str, store: KafkaStore
) -> Iterator[Message]:
    ends = store.ends(partitions, committed=True)
    group = {"group.id": f"eo-ledger-{pipeline}"}  # commits nothing; a name that must be there
    consumer = Consumer({**store.settings, **_CONSUMER, **group}, logger=silent_logger())
    try:
        for partition, end in ends.items():
            start = max(store.beginning(partition), end - _TAIL)
            if start < end:
                consumer.assign([ClientTopicPartition(*partition, start)])
                yield from _until_end(consumer, partition, store.timeout)
    except KafkaException as error:
        raise while_asking(error_of(error), partitions[0].topic) from error
    finally:
        consumer.close()


def _until_end(consumer: Consumer, partition: TopicPartition, seconds: float) -> Iterator[Message]:
    deadline = time.monotonic() + seconds
    while True:
        record = consumer.poll(max(0.0, deadline - time.monotonic()))
        if record is None:
            raise SinkUnavailableError(f"{partition}: its last records could not be read in time")
        error = record.error()
        if error is None:
            yield record
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            raise KafkaException(error)

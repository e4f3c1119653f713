"""Requests of a session to the Kafka cluster, creation of topics, and meanings of errors."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import tenacity
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec

from eo_pipeline.errors import ConfigError, EoPipelineError, RefusedError, SinkUnavailableError
from eo_pipeline.kafka.client import connection_settings, leader_moves, no_leader, silent_logger
from eo_pipeline.kafka.diagnostics import DiagnosingAdminClient, NoAnswerError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.sinks.kafka.config import KafkaSink

_T = TypeVar("_T")

_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
    }
)

#: Seconds between two looks at what is about to change; doubled up to the second.
_LOOK_SECONDS = 0.002
_LOOK_SECONDS_MAX = 0.1

#: Seconds in which a new topic becomes known to every broker.
_NEW_TOPIC_SECONDS = 3.0

#: Seconds for it to get a leader. One that is gone answers the same, and is told of after them.
_LEADERLESS_SECONDS = 10.0


#: The producer may not go on: another one took its transactional id, or the broker ended its
#: transaction after the timeout (which looks the same, so that the code proves nothing about who).
LOST = frozenset(
    {
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)

#: The cluster will give the same answer to the same records every time; what to do about it.
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE: "Make the records smaller, or raise max.message.bytes of the "
    "topic (and message.max.bytes in sink.client). If no record is that large, lower batch.size "
    "in sink.client.",
    KafkaError.RECORD_LIST_TOO_LARGE: "Lower batch.size in sink.client.",
    KafkaError.INVALID_MSG: "The topic's settings refuse the record: a compacted topic, for "
    "example, needs a key (sink.key).",
    KafkaError.INVALID_RECORD: "The topic's settings refuse the record: a compacted topic, for "
    "example, needs a key (sink.key).",
    KafkaError.INVALID_TIMESTAMP: "The record's timestamp lies outside what the topic allows "
    "(message.timestamp.before.max.ms, message.timestamp.after.max.ms).",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Allow the principal to write to the topic, the ledger "
    "topic and the dead letters' topic.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Allow the principal IdempotentWrite.",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Allow the principal Write and Describe on "
    "the transactional id, prefix eo-.",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Allow the principal Read on sink.offsets_group.",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "Create the topic.",
    KafkaError._UNKNOWN_TOPIC: "Create the topic.",
    KafkaError._UNKNOWN_PARTITION: "Create the topic, or give it more partitions.",
    KafkaError.POLICY_VIOLATION: "The cluster's policy refuses it.",
}

#: Answers to a client's first words that no waiting changes.
_MISCONFIGURED = {
    KafkaError._AUTHENTICATION: "Check the credentials in sink.client.",
    KafkaError.SASL_AUTHENTICATION_FAILED: "Check the credentials in sink.client.",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "Check sasl.mechanism in sink.client.",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "sink.transaction_timeout is longer than the broker's "
    "transaction.max.timeout.ms.",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _REFUSED[KafkaError.TOPIC_AUTHORIZATION_FAILED],
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _REFUSED[KafkaError.CLUSTER_AUTHORIZATION_FAILED],
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _REFUSED[
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    ],
}


class KafkaStore:
    """The target cluster, by the admin client of one session.

    Raises (all methods):
        SinkUnavailableError: no answer within ``timeout`` seconds.
        ConfigError: the cluster answers and refuses the credentials.
    """

    def __init__(self, sink: KafkaSink, beside: KafkaStore | None = None) -> None:
        """With the admin client of ``beside``, the store of another topic of the cluster."""
        self._sink = sink
        #: Of every client of the session.
        self.settings: dict[str, Any] = connection_settings(sink.bootstrap_servers, sink.client)
        self.timeout = sink.request_timeout
        self._asked: DiagnosingAdminClient
        if beside is None:
            self._asked = DiagnosingAdminClient(self.settings, self.timeout)
        else:
            self._asked = beside._asked
        self._client = self._asked.client

    def require_topic(self) -> None:
        """Refuse a topic that does not exist.

        Raises:
            ConfigError: there is none.
        """
        if not self._appears(self._sink.topic):
            raise ConfigError(f"sink.topic: there is no topic {self._sink.topic!r}; create it")

    def make_dead_letter_topic(self) -> None:
        """Create it unless it is there."""
        name = self._sink.dead_letters
        if not self.counts([name])[name]:
            self.create(name, {})

    def row_partitions(self) -> int:
        """Return the number of partitions of the rows' topic."""
        return self.counts([self._sink.topic])[self._sink.topic]

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return the partitions of ``topics``."""
        counts = self.counts(topics)
        return [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each of ``topics``, 0 for one that does not exist.

        Described, not asked for as metadata: that would create a topic where brokers may.
        """
        futures = self._client.describe_topics(
            TopicCollection(list(topics)), request_timeout=self.timeout
        )
        return {topic: self._described(topic, future) for topic, future in futures.items()}

    def topic_id(self, topic: str) -> str | None:
        """The UUID of ``topic``; None if there is none."""
        futures = self._client.describe_topics(
            TopicCollection([topic]), request_timeout=self.timeout
        )
        description = self._description(topic, futures[topic])
        return None if description is None else str(description.topic_id)

    def ledgers_beside(self, pipeline: str) -> list[str]:
        """Ledgers of other pipelines than ``pipeline`` that publish into the topic."""
        prefix, ledger_topic = self._sink.ledger_of(""), self._sink.ledger_of(pipeline)
        topics = self._call(ledger_topic, self._asked.topics).topics
        return sorted(name for name in topics if name.startswith(prefix) and name != ledger_topic)

    def _appears(self, topic: str) -> bool:
        """True if ``topic`` exists. One that was made a moment ago is not known everywhere yet."""
        return wait_until(lambda: self.counts([topic])[topic] > 0, _NEW_TOPIC_SECONDS)

    def _described(self, topic: str, future: Future[Any]) -> int:
        description = self._description(topic, future)
        return 0 if description is None else len(description.partitions)

    def _description(self, topic: str, future: Future[Any]) -> Any:
        try:
            return self._asked.answer(future)
        except KafkaException as error:
            if error_of(error).code() in _ABSENT:
                return None
            raise self._told(error, topic) from error
        except NoAnswerError as error:
            raise self._told(error, topic) from error

    def create(self, topic: str, config: Mapping[str, str]) -> None:
        """Create ``topic`` with one partition unless it is there.

        Raises:
            ConfigError: this principal may not.
        """
        wanted = NewTopic(topic, 1, self._sink.replication, config=dict(config))
        future = self._client.create_topics([wanted], request_timeout=self.timeout)[topic]
        try:
            self._asked.answer(future)
        except NoAnswerError as error:
            raise self._told(error, topic) from error
        except KafkaException as error:
            kafka_error = error_of(error)
            if kafka_error.code() in _FORBIDDEN:
                settings = ", ".join(f"{key}={value}" for key, value in config.items())
                raise ConfigError(
                    f"the topic {topic!r} does not exist and may not be created: "
                    f"{kafka_error.str()}. Have it created with one partition "
                    f"({settings or 'default settings'})."
                ) from error
            if kafka_error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise while_asking(kafka_error, topic) from error
        self._appears(topic)

    def config(self, topic: str) -> dict[str, str]:
        """The topic's settings; empty where this principal may not see them."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        future = self._client.describe_configs([resource], request_timeout=self.timeout)[resource]
        try:
            return {k: v.value for k, v in self._asked.answer(future).items()}
        except KafkaException as error:
            if error_of(error).code() in _FORBIDDEN:
                return {}
            raise self._told(error, topic) from error
        except NoAnswerError as error:
            raise self._told(error, topic) from error

    def beginning(self, partition: TopicPartition) -> int:
        return self._offsets([partition], OffsetSpec.earliest(), committed=False)[partition]

    def ends(
        self, partitions: Iterable[TopicPartition], *, committed: bool
    ) -> dict[TopicPartition, int]:
        """The last stable offsets (what read_committed readers reach), or the high watermarks."""
        return self._offsets(partitions, OffsetSpec.latest(), committed=committed)

    def has_open_transactions(self, partitions: Iterable[TopicPartition]) -> bool:
        """True if read_committed readers are held back at one of ``partitions``."""
        requested = list(partitions)
        stable = self.ends(requested, committed=True)
        return any(stable[p] < end for p, end in self.ends(requested, committed=False).items())

    def wait_until_readable(self, offsets: Mapping[TopicPartition, int], seconds: float) -> bool:
        """Wait until read_committed readers reach every offset; False if they do not in time."""

        def reached() -> bool:
            stable = self.ends(offsets, committed=True)
            return all(stable[partition] >= offset for partition, offset in offsets.items())

        return wait_until(reached, seconds)

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, *, committed: bool
    ) -> dict[TopicPartition, int]:
        requests = {ClientTopicPartition(*partition): spec for partition in partitions}
        if not requests:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        patiently = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda e: leader_moves(e) or no_leader(e)),
            stop=lambda state: tenacity.stop_after_delay(self._patience(state))(state),
            wait=tenacity.wait_exponential(_LOOK_SECONDS, _LOOK_SECONDS_MAX),
            reraise=True,
        )
        return patiently(self._listed, requests, level)

    def _patience(self, state: tenacity.RetryCallState) -> float:
        """Seconds for what was answered last."""
        error = state.outcome.exception() if state.outcome else None
        leaderless = error is not None and no_leader(error)
        return min(_LEADERLESS_SECONDS, self.timeout) if leaderless else self.timeout

    def _listed(
        self, requests: dict[ClientTopicPartition, OffsetSpec], level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        futures = self._client.list_offsets(
            requests, isolation_level=level, request_timeout=self.timeout
        )
        return {
            TopicPartition(tp.topic, tp.partition): self._result(tp.topic, future).offset
            for tp, future in futures.items()
        }

    def _result(self, topic: str, future: Future[Any]) -> Any:
        return self._call(topic, lambda: self._asked.answer(future))

    def _call(self, topic: str, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except (KafkaException, NoAnswerError) as error:
            raise self._told(error, topic) from error

    def _told(self, error: KafkaException | NoAnswerError, topic: str) -> EoPipelineError:
        """The error of ours for one that the cluster was asked with. That a login was refused is
        said by librdkafka alone; the question gets no answer.
        """
        diagnosis = self._asked.meant(error)
        reason, remedy = self._asked.why(error)
        if diagnosis is not None and diagnosis.code() == KafkaError._AUTHENTICATION:
            return ConfigError(f"{topic}: Kafka refuses: {reason}. {remedy} It is in sink.client.")
        if diagnosis is not None and diagnosis.code() in _MISCONFIGURED:
            return while_asking(diagnosis, topic)
        return SinkUnavailableError(f"{topic}: Kafka cannot be used just now: {reason}. {remedy}")


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask until ``condition`` holds, at least once; False if it does not within ``seconds``."""
    asking = tenacity.Retrying(
        retry=tenacity.retry_if_result(operator.not_),
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_exponential(_LOOK_SECONDS, _LOOK_SECONDS_MAX),
        retry_error_callback=lambda _: False,
    )
    return asking(condition)


class TransactionLostError(Exception):
    """The transaction ended without us: nothing of it is visible unless the ledger says so.

    Internal to the sink; the ledger is asked next. ``is_stale`` means the producer was lost while
    it was idle, so that no rival need be waited for.
    """

    def __init__(self, message: str, *, is_stale: bool) -> None:
        super().__init__(message)
        self.is_stale = is_stale


class UnansweredError(Exception):
    """The commit was sent and no answer came. Internal to the sink; fencing decides it."""


def error_of(error: KafkaException) -> KafkaError:
    kafka_error = error.args[0]
    assert isinstance(kafka_error, KafkaError), kafka_error
    return kafka_error


def while_publishing(error: KafkaError, topic: str) -> EoPipelineError:
    """Translate an ``error`` met before the commit was sent, for records on their way."""
    remedy = _REFUSED.get(error.code())
    if remedy is not None:
        return RefusedError(
            f"{topic}: Kafka refused the records: {error.str()} ({error.name()}). "
            f"Nothing was published. {remedy}"
        )
    return SinkUnavailableError(
        f"{topic}: Kafka could not take the records just now: {error.str()} ({error.name()}). "
        "Nothing was published; the next run tries again."
    )


def while_asking(error: KafkaError, topic: str) -> EoPipelineError:
    """Translate an ``error`` where nothing was being published."""
    remedy = _MISCONFIGURED.get(error.code())
    if remedy is not None:
        return ConfigError(f"{topic}: Kafka refuses: {error.str()} ({error.name()}). {remedy}")
    return SinkUnavailableError(
        f"{topic}: Kafka cannot be used just now: {error.str()} ({error.name()}). "
        "Check that the brokers run and sink.bootstrap_servers."
    )


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

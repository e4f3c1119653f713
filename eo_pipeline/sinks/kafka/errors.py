"""What Kafka's error codes mean for a checkpoint (Kafka protocol, error codes)."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from eo_pipeline.errors import ConfigError, EoPipelineError, RefusedError, SinkUnavailableError

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


class TransactionLostError(Exception):
    """The transaction ended without us: nothing of it is visible unless the ledger says so.

    Internal to the sink; the ledger is asked next. ``is_stale`` means the producer was lost while
    it was idle, so that no rival need be waited for.
    """

    def __init__(self, said: str, *, is_stale: bool) -> None:
        super().__init__(said)
        self.is_stale = is_stale


class UnansweredError(Exception):
    """The commit was sent and no answer came. Internal to the sink; fencing decides it."""


def error_of(error: KafkaException) -> KafkaError:
    found = error.args[0]
    assert isinstance(found, KafkaError), found
    return found


def while_publishing(error: KafkaError, topic: str) -> EoPipelineError:
    """What ``error``, met before the commit was sent, means for records on their way."""
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
    """What ``error`` means where nothing was being published."""
    remedy = _MISCONFIGURED.get(error.code())
    if remedy is not None:
        return ConfigError(f"{topic}: Kafka refuses: {error.str()} ({error.name()}). {remedy}")
    return SinkUnavailableError(
        f"{topic}: Kafka cannot be used just now: {error.str()} ({error.name()}). "
        "Check that the brokers run and sink.bootstrap_servers."
    )

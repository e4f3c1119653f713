"""Shared by all Kafka clients of this package: error codes, allowed options, a silent log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from pydantic import SecretStr

from eo_pipeline.kafka import auth

#: What a partition answers while it gets a leader: after its creation, or when a broker went.
#: Ask it again.
LEADER_MOVES = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        # a new leader that does not know yet what its replicas have (KIP-207)
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)

#: What a consumer group answers while it gets a coordinator: that of the cluster's first group
#: comes only when it is asked for. Ask it again.
COORDINATOR_MOVES = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)


def leader_moves(error: BaseException) -> bool:
    """True if ``error``, or what it was raised from, says so: ask the same once more."""
    return _code(error) in LEADER_MOVES


def coordinator_moves(error: BaseException) -> bool:
    """True if ``error``, or what it was raised from, says so: ask the same once more."""
    return _code(error) in COORDINATOR_MOVES


def no_leader(error: BaseException) -> bool:
    """True if no partition that was asked for has a leader, or the broker that was asked does not
    know one: they are new, or gone.
    """
    return _code(error) in (KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART)


def _code(error: BaseException) -> int | None:
    kafka_error = error if isinstance(error, KafkaException) else error.__cause__
    return kafka_error.args[0].code() if isinstance(kafka_error, KafkaException) else None


#: What may be said to Spark's Kafka connector: how it divides and waits. Everything else that
#: it knows decides which records are read.
CONNECTOR_OPTIONS = frozenset(
    {
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "maxRecordsPerPartition",
        "minPartitions",
    }
)

#: ... and, after ``kafka.``, to its consumers: how they connect, log in, fetch and wait.
CONSUMER_OPTIONS = frozenset(
    {
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
_CONSUMER_PREFIXES = ("security.", "sasl.", "ssl.")


def refuse_spark_options(names: Iterable[str]) -> None:
    """Return if Spark may be told all of these options; it takes their names in any case.

    Raises:
        ValueError: it may not; the text names what is allowed.
    """
    connector = {name.lower() for name in CONNECTOR_OPTIONS}
    refused = sorted(
        name
        for name in names
        if name.lower() not in connector and not _is_for_the_consumer(name.lower())
    )
    if refused:
        allowed = sorted(CONNECTOR_OPTIONS) + [f"kafka.{name}" for name in sorted(CONSUMER_OPTIONS)]
        prefixes = ", ".join(f"kafka.{prefix}*" for prefix in _CONSUMER_PREFIXES)
        raise ValueError(
            f"not an option to give to Spark here: {', '.join(refused)}. The pipeline decides "
            f"which records are read. Allowed are {', '.join(allowed)}, {prefixes}"
        )


def _is_for_the_consumer(name: str) -> bool:
    setting = name.removeprefix("kafka.")
    return setting != name and (
        setting in CONSUMER_OPTIONS or setting.startswith(_CONSUMER_PREFIXES)
    )


def connection_settings(bootstrap_servers: str, client: Mapping[str, SecretStr]) -> dict[str, Any]:
    """Settings of confluent-kafka's clients. Holds secrets: never log it.

    Raises:
        ConfigError: a certificate cannot be read or is not valid now, or a login is incomplete.
        SetupError: a package is missing that the login takes.
    """
    plain_settings = {key: value.get_secret_value() for key, value in client.items()}
    auth.authorities(plain_settings)
    auth.identity(plain_settings)
    settings = auth.for_librdkafka(bootstrap_servers, plain_settings)
    return settings | {"bootstrap.servers": bootstrap_servers, "log_level": 3}


def silent_logger() -> logging.Logger:
    """librdkafka prints connection trouble on its own; our errors say it once, in words."""
    logger = logging.getLogger("eo_pipeline.kafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger

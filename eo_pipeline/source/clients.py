"""One set of Kafka client settings for two clients: librdkafka (admin) and Java (Spark).

Users write librdkafka's names, the ones confluent-kafka documents. Java's differ for SASL and for
certificates, so those are translated; anything else passes through under both.
"""

from __future__ import annotations

from typing import Any

from eo_pipeline.source import certificates, logins
from eo_pipeline.source.client_options import connection_settings
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.msk import MSK_IAM

_TRANSLATED = logins.TRANSLATED | certificates.TRANSLATED


def librdkafka_settings(source: KafkaSource) -> dict[str, Any]:
    """What confluent-kafka's clients are built with. Holds secrets: never log it.

    Raises:
        ConfigError: a certificate cannot be read or is not valid now, or a login is incomplete; for
            Spark, too, so that a run need not begin to find out.
        SetupError: a package is missing that the login takes.
    """
    spark_settings(source)
    return connection_settings(source.bootstrap_servers, source.client)


def spark_settings(source: KafkaSource) -> dict[str, str]:
    """Connector options for Spark, each Java client setting prefixed by ``kafka.``.

    Holds secrets: never log it.

    Raises:
        ConfigError: a certificate cannot be read or is not valid now, or a login is incomplete.
    """
    client = {key: value.get_secret_value() for key, value in source.client.items()}
    java = {
        key: value
        for key, value in client.items()
        if key not in _TRANSLATED and not logins.is_foreign(key)
    }
    java |= certificates.for_java(client)
    java |= logins.for_java(source.bootstrap_servers, client, source.spark_options)
    options = {f"kafka.{key}": value for key, value in java.items()}
    options["kafka.bootstrap.servers"] = source.bootstrap_servers
    options["kafka.isolation.level"] = source.isolation
    return options | {k: v.get_secret_value() for k, v in source.spark_options.items()}


def logs_in_by_iam(source: KafkaSource) -> bool:
    """Whether it is Amazon MSK's login, for which Spark needs a jar."""
    client = {key: value.get_secret_value() for key, value in source.client.items()}
    return logins.mechanism_of(client) == MSK_IAM

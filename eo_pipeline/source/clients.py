"""One set of Kafka client settings for two clients: librdkafka (admin) and Java (Spark).

Users write librdkafka's names, the ones confluent-kafka documents. Java's differ for SASL and for
certificates, so those are translated; anything else passes through under both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eo_pipeline.errors import ConfigError
from eo_pipeline.source.client_options import connection_settings
from eo_pipeline.source.config import KafkaSource

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

#: librdkafka settings the Java client has under another name, or that are folded into one.
_TRANSLATED = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.key.pem",
    }
)


def librdkafka_settings(source: KafkaSource) -> dict[str, Any]:
    """What confluent-kafka's clients are built with. Holds secrets: never log it."""
    return connection_settings(source.bootstrap_servers, source.client)


def spark_settings(source: KafkaSource) -> dict[str, str]:
    """Connector options for Spark, each Java client setting prefixed by ``kafka.``.

    Holds secrets: never log it.

    Raises:
        ConfigError: a certificate file cannot be read, or SASL settings are incomplete.
    """
    client = {key: value.get_secret_value() for key, value in source.client.items()}
    java = {key: value for key, value in client.items() if key not in _TRANSLATED}
    java |= _sasl(client) | _certificates(client)
    options = {f"kafka.{key}": value for key, value in java.items()}
    options["kafka.bootstrap.servers"] = source.bootstrap_servers
    options["kafka.isolation.level"] = source.isolation
    return options | {k: v.get_secret_value() for k, v in source.spark_options.items()}


def _sasl(client: Mapping[str, str]) -> dict[str, str]:
    mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms"))
    if mechanism is None:
        return {}
    if mechanism not in _LOGIN_MODULES:  # GSSAPI, OAUTHBEARER: configured through spark_options
        return {"sasl.mechanism": mechanism}
    missing = {"sasl.username", "sasl.password"} - client.keys()
    if missing:
        raise ConfigError(f"source.client: {mechanism} also needs {', '.join(sorted(missing))}")
    user, password = (_quoted(client[f"sasl.{part}"]) for part in ("username", "password"))
    jaas = f"{_LOGIN_MODULES[mechanism]} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def _quoted(value: str) -> str:
    """A JAAS string: double quotes, with backslashes and quotes escaped."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _certificates(client: Mapping[str, str]) -> dict[str, str]:
    """PEM files as Java takes them since KIP-651: the text itself, with ``type=PEM``."""
    pem = {part: _pem(client, part) for part in ("ca", "certificate", "key")}
    java: dict[str, str] = {}
    if pem["ca"]:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem["ca"]}
    if pem["certificate"] and pem["key"]:
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": pem["certificate"],
            "ssl.keystore.key": pem["key"],
        }
    return java


def _pem(client: Mapping[str, str], part: str) -> str | None:
    path = client.get(f"ssl.{part}.location")
    if path is None:
        return client.get(f"ssl.{part}.pem")
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigError(
            f"source.client: ssl.{part}.location cannot be read: {error.strerror} ({path})"
        ) from error

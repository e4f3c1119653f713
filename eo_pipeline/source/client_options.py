"""What every Kafka client of this package shares: connection settings and a silent log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SecretStr, WithJsonSchema


def as_text(value: Any) -> Any:
    """Let YAML's true and 30 stand where a Kafka client setting is text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


#: librdkafka settings as a user writes them; any of them may be a secret.
ClientSettings = Mapping[
    str,
    Annotated[
        SecretStr,
        BeforeValidator(as_text),
        WithJsonSchema({"type": ["string", "number", "boolean"], "writeOnly": True}),
    ],
]


def connection_settings(bootstrap_servers: str, client: Mapping[str, SecretStr]) -> dict[str, Any]:
    """What confluent-kafka's clients are built with. Holds secrets: never log it."""
    settings = {key: value.get_secret_value() for key, value in client.items()}
    return settings | {"bootstrap.servers": bootstrap_servers, "log_level": 3}


def silent_logger() -> logging.Logger:
    """librdkafka prints connection trouble on its own; our errors say it once, in words."""
    logger = logging.getLogger("eo_pipeline.kafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger

"""Clients: how they are made, what the server must be like, and what its errors mean."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from eo_pipeline.errors import ConfigError, EoPipelineError, RefusedError, SinkUnavailableError

if TYPE_CHECKING:
    from eo_pipeline.sinks.redis.sink import RedisSink

log = logging.getLogger(__name__)

#: The first version whose scripts can ask for permissions before they write.
_VERSION_MIN = 7

#: Codes that begin an error and say nothing against the rows (Redis manual, "error handling").
_LATER = (
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
)
_KILLED = "SCRIPT KILL"

_LATER_TYPES = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.OutOfMemoryError,
    redis.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
_LOGIN_TYPES = (redis.AuthenticationError, redis.exceptions.AuthenticationWrongNumberOfArgsError)

#: Not "failed" but "refused": the connection was made and the server said no to all of it.
ANSWERED_TYPES = (redis.ResponseError, redis.BusyLoadingError, redis.AuthenticationError)


def connect(sink: RedisSink, pipeline: str) -> redis.Redis:
    """A client that connects when first used, and never repeats a request by itself.

    The driver's own default sends a request again when its reply was lost; whether that is right
    is the protocol's to decide.
    """
    return redis.Redis.from_url(
        sink.url.get_secret_value(),
        client_name=f"eo-pipeline:{pipeline}",
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=sink.connect_timeout,
        socket_keepalive=True,
        socket_timeout=sink.timeout,
    )


def check_server(info: Mapping[str, Any]) -> None:
    """Refuse a server that cannot keep the promise, by its ``INFO``.

    Raises:
        ConfigError: it is too old, or drops keys when its memory is full.
        SinkUnavailableError: it is a replica.
    """
    version = str(info.get("redis_version", "0"))
    if int(version.partition(".")[0]) < _VERSION_MIN:
        raise ConfigError(f"sink.url: Redis {version} is too old, {_VERSION_MIN} is needed.")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigError(
            f"sink.url: Redis drops keys when its memory is full (maxmemory-policy {policy}), "
            "the ledger's or rows that the ledger says are there. Set maxmemory-policy to "
            "noeviction: writes are then refused instead, and nothing is lost."
        )
    if info.get("role") not in (None, "master"):
        raise SinkUnavailableError("sink.url leads to a replica, which takes no writes.")
    if not info.get("aof_enabled"):
        log.warning(
            "Redis keeps no append-only file: a restart takes rows and ledger back to the last "
            "snapshot. Set appendonly yes, and appendfsync always to survive a power cut."
        )


def explained(error: redis.RedisError, table: str) -> EoPipelineError:
    """What ``error`` means if nothing of the request was done."""
    text = " ".join(str(error).split())
    if isinstance(error, redis.exceptions.AskError):  # MovedError is one
        return ConfigError(
            f"sink.url: this node of a Redis Cluster does not hold the pipeline's slot, "
            f"{error.host}:{error.port} does. All keys of a pipeline are in one slot: name that "
            "node."
        )
    if isinstance(error, _LOGIN_TYPES) or text.startswith("NOAUTH"):
        return ConfigError(f"sink.url: Redis refused the login: {text}")
    if isinstance(error, _LATER_TYPES) or text.startswith(_LATER) or _KILLED in text:
        return SinkUnavailableError(
            f"{table}: Redis cannot be used just now: {text}. Nothing was written; the next run "
            "tries again."
        )
    remedy = (
        " Allow it (ACL SETUSER)." if isinstance(error, redis.exceptions.NoPermissionError) else ""
    )
    return RefusedError(f"{table}: Redis refused: {text}. Nothing was written.{remedy}")

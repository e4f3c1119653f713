"""Redis as a session uses it: the client, what the server must be like, what its errors mean."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from eo_pipeline.errors import ConfigError, EoPipelineError, RefusedError, SinkUnavailableError
from eo_pipeline.sinks.redis.config import RedisSink
from eo_pipeline.sinks.redis.keys import Keys
from eo_pipeline.sinks.redis.script import PUBLISH
from eo_pipeline.sinks.redis.types import RedisKind

_T = TypeVar("_T")

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
_ANSWERED_TYPES = (redis.ResponseError, redis.BusyLoadingError, redis.AuthenticationError)

#: Keys looked for, and deleted, by one request.
_AT_ONCE = 1000


class RedisStore:
    """One connection, and what the pipeline's own keys hold.

    Raises (all methods):
        SinkUnavailableError: Redis does not answer, or not just now.
        ConfigError, RefusedError: it answers, and refuses.
    """

    def __init__(self, sink: RedisSink, pipeline: str) -> None:
        self.keys = Keys(pipeline)
        self._sink = sink
        self._client = _connect(sink, pipeline)
        self._script = self._client.register_script(PUBLISH)

    def close(self) -> None:
        self._client.close()

    def check(self) -> None:
        """Refuse a server that cannot keep the promise, and keys that this pipeline's ledger does
        not speak for.

        Raises:
            ConfigError: also if the ledger was written with another key, prefix or form.
        """
        check_server(self._ask(lambda: self._client.info()))
        held = self.ledger("target")[0]
        if held is not None and held.decode() != self._sink.identity:
            raise ConfigError(
                f"sink: pipeline {self.keys.pipeline!r} writes {held.decode()}, by its ledger, not "
                f"{self._sink.identity}. Rows under the old keys would stay behind: give the "
                "pipeline with the new setting a name of its own."
            )

    def ledger(self, *names: int | str) -> list[bytes | None]:
        """Fields of the ledger's hash; ``None`` for one that is not there."""
        fields = [str(name) for name in names]
        found: Any = self._ask(lambda: self._client.hmget(self.keys.ledger, fields))
        return list(found)

    def drop_entries(self, below: int, *, dry_run: bool) -> int:
        """Delete the fields of versions ``below`` this one; how many there are."""
        named: Any = self._ask(lambda: self._client.hkeys(self.keys.ledger))
        found = [name for name in named if name.isdigit() and int(name) < below]
        for start in () if dry_run else range(0, len(found), _AT_ONCE):
            some = found[start : start + _AT_ONCE]
            self._ask(partial(self._client.hdel, self.keys.ledger, *some))
        return len(found)

    def drop(self, *, dry_run: bool) -> int:
        """Delete the pipeline's keys, rows and all; how many there are."""
        pattern, ledger = self.keys.named("*"), self.keys.ledger
        found: set[bytes] = self._ask(lambda: set(self._client.scan_iter(pattern, count=_AT_ONCE)))
        names = [*(found - {ledger}), ledger]
        for start in () if dry_run else range(0, len(names), _AT_ONCE):
            self._unlink(names[start : start + _AT_ONCE])
        return len(found)

    def _unlink(self, names: list[bytes]) -> None:
        self._ask(lambda: self._client.unlink(*names))

    def columns(self) -> dict[str, RedisKind]:
        """The kind of every column there ever was."""
        found = self._ask(lambda: self._client.hgetall(self.keys.schema))
        return {_text(name): RedisKind(_text(kind)) for name, kind in found.items()}

    def run(self, keys: Sequence[bytes], arguments: Sequence[Any]) -> list[str]:
        """What :data:`~.script.PUBLISH` answers. An error that the server reports came before the
        script's first write.

        Raises:
            redis.RedisError: no answer; the script may have run, or may still run.
        """
        try:
            reply: list[bytes] = self._script(keys, arguments)
        except _ANSWERED_TYPES as error:
            raise _explained(error, self._sink.table_name) from error
        return [text.decode(errors="replace") for text in reply]

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Answer a question; asked again if the connection died, which shows only in use."""
        try:
            try:
                return question()
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if isinstance(error, _ANSWERED_TYPES):
                    raise
                return question()
        except redis.RedisError as error:
            raise _explained(error, self._sink.table_name) from error


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


def _explained(error: redis.RedisError, table: str) -> EoPipelineError:
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


def _connect(sink: RedisSink, pipeline: str) -> redis.Redis:
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


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()

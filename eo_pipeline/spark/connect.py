"""A session on a Spark Connect server: found alive or made anew, and never waited for without end.

Left to itself, pyspark tries for ten minutes to reach a server that is away, without a word.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import re
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import cast

import grpc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect import proto
from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from eo_pipeline.errors import ConfigError, SetupError, SparkUnavailableError
from eo_pipeline.spark.clients import is_connect

log = logging.getLogger(__name__)

#: Between two tries to reach a server that was lost.
_PAUSE_MS = 250

#: Seconds for a look at who listens, on the way to an error.
_LOOK_S = 1.0

_REMEDY = "Start the server, or correct spark.remote or SPARK_REMOTE."

#: The sessions of this process, by server and settings. One that was lost is put in its place.
_sessions: dict[tuple[str, str], SparkSession] = {}
_lock = threading.Lock()
# the sessions of a process are not those of one that it forks
os.register_at_fork(after_in_child=_sessions.clear)


def connect(remote: str, config: Mapping[str, str], timeout_s: float) -> SparkSession:
    """This process's session on the server, if that still knows it, or else a new one.

    Args:
        remote: ``sc://host:port``, with a token or other parameters behind ``/;``.
        config: Spark settings of the session.
        timeout_s: how long the server may be away, now and whenever the session is used.

    Raises:
        ConfigError: ``remote`` is not an address, or the server there did not let us in.
        SetupError: this process has a Spark of its own already.
        SparkUnavailableError: the server did not answer.
    """
    _check_address(remote)
    key = (remote, json.dumps(dict(config), sort_keys=True))
    with _lock:
        known = _sessions.get(key)
        if known is not None:
            if knows_its_session(known):
                return _active(known)
            del _sessions[key]
            _discard(known)
        callers = _of_the_caller()
        if callers is not None:
            return callers
        _sessions[key] = _created(remote, config, timeout_s)
        return _active(_sessions[key])


def _check_address(remote: str) -> None:
    try:
        if not DefaultChannelBuilder(remote).host:
            raise ValueError("it has no host")
    except (PySparkException, ValueError) as error:
        raise ConfigError(
            f"spark.remote or SPARK_REMOTE is not sc://host:port or sc://host:port/;name=value: "
            f"{error}"
        ) from error


def _of_the_caller() -> SparkSession | None:
    """A session that somebody else made active in this thread: it is theirs, and taken as it is."""
    active = SparkSession.getActiveSession()
    if active is None or active in _sessions.values():
        return None
    if not is_connect(active):
        raise SetupError(
            "This process has a Spark of its own already, and pyspark cannot speak to a Spark "
            "Connect server beside it: stop that session, or use another process."
        )
    return active


def _active(session: SparkSession) -> SparkSession:
    """``session``, as the one that a transform, and pyspark itself where it reads a schema's text,
    find in this thread: pyspark leaves the first that was made, whose server may have ended.
    """
    active = SparkSession.getActiveSession()
    if active is None or active in _sessions.values():
        ConnectSession._active_session.session = session
    return session


class _Channel(DefaultChannelBuilder):
    """How the server is reached, and the channel that pyspark made so."""

    made: grpc.Channel

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - pyspark's name
        self.made = super().toChannel()
        return self.made

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once a gRPC server answers; pyspark's own first request would wait ten minutes.

        Not by a channel for that alone: gRPC takes 0.2 s to close one that was waited for.
        """
        try:
            grpc.channel_ready_future(self.made).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            raise SparkUnavailableError(
                f"No Spark Connect server answered at {self.endpoint} within {timeout_s:g} s "
                f"(spark.connect_timeout): {_what_listens(self.endpoint)}. {_REMEDY}"
            ) from None


def _what_listens(endpoint: str) -> str:
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _LOOK_S).close()
    except OSError as error:
        return f"{error.strerror or error}"
    return (
        "something listens there, but does not speak its protocol. A token or use_ssl=true in the "
        "address asks for TLS"
    )


#: Requests that a server answers at once, and how often ``connect_timeout`` a busy one may take.
_ANSWERED_AT_ONCE = ("Config", "Interrupt", "ReleaseExecute", "ReleaseSession")
_BUSY = 3

#: Seconds until a plan was looked through: that may take a look at files or at Kafka.
_ANALYSIS_S = 600


def _close_alone(client: SparkConnectClient) -> None:
    """Have ``client`` close its channel and no more.

    pyspark's own ``close`` also ends the threads that release results for all clients of this
    process, and waits for them; and a session that is collected does that in whatever thread the
    collector is at work. If that is one of these threads, or one that they wait for, this waits for
    ever, or no query of this process succeeds any more ("cannot schedule new futures").
    """
    is_closed = False

    def close() -> None:
        nonlocal is_closed
        if not is_closed:
            is_closed = True
            client._channel.close()
            client._closed = True

    client.close = close  # type: ignore[method-assign]


def _deadlines(timeout_s: float) -> str:
    """gRPC's own configuration of a client ("service config"): left to itself it waits for a server
    that is frozen for ever. A job has no deadline, see :mod:`eo_pipeline.spark.interrupts`.
    """
    service = "spark.connect.SparkConnectService"
    at_once = [{"service": service, "method": name} for name in _ANSWERED_AT_ONCE]
    analysis = [{"service": service, "method": "AnalyzePlan"}]
    deadlines = [
        {"name": at_once, "timeout": f"{timeout_s * _BUSY:.3f}s"},
        {"name": analysis, "timeout": f"{max(_ANALYSIS_S, timeout_s)}s"},
    ]
    return json.dumps({"methodConfig": deadlines})


def _created(remote: str, config: Mapping[str, str], timeout_s: float) -> SparkSession:
    """A new session; the server has let it in and can be waited for no longer than it should."""
    channel = _Channel(remote, [("grpc.service_config", _deadlines(timeout_s))])
    builder = ConnectSession.Builder().channelBuilder(channel)
    # as pyspark's own builder does: functions are then those of Spark Connect
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    made = cast(SparkSession, builder.create())  # asks for nothing yet
    _close_alone(_of_connect(made).client)
    try:
        channel.wait_until_ready(timeout_s)
    except SparkUnavailableError:
        _discard(made)
        raise
    _of_connect(made).client.set_retry_policies([_patience(timeout_s)])
    try:
        made.version  # noqa: B018  the first request: it knows whether we may come in
    except PySparkException as error:
        _discard(made)
        if not _is_refusal(error):
            raise SparkUnavailableError(
                f"The server at {channel.endpoint} did not make a session within {timeout_s:g} s "
                f"(spark.connect_timeout): {_details(error)}. {_REMEDY}"
            ) from error
        raise ConfigError(
            f"The server at {channel.endpoint} does not let us in, or is no Spark Connect server: "
            f"{_details(error)}. Correct the address, or the token behind it: spark.remote or "
            "SPARK_REMOTE."
        ) from error
    apply_settings(made, config)
    return made


def apply_settings(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    """Set ``settings``, in one request, which passes over what only a server can be started with,
    and unset, in another, those that are None.
    """
    asked = _of_connect(spark).client.config
    pairs = [proto.KeyValue(key=k, value=v) for k, v in settings.items() if v is not None]
    if pairs:
        wanted = proto.ConfigRequest.Set(pairs=pairs, silent=True)
        asked(proto.ConfigRequest.Operation(set=wanted))
    if absent := [key for key, value in settings.items() if value is None]:
        asked(proto.ConfigRequest.Operation(unset=proto.ConfigRequest.Unset(keys=absent)))


def settings_of(spark: SparkSession, keys: Iterable[str]) -> dict[str, str | None]:
    """The settings ``keys``, with Spark's defaults, in one request; None: not set."""
    wanted = proto.ConfigRequest.GetOption(keys=list(keys))
    operation = proto.ConfigRequest.Operation(get_option=wanted)
    return dict(_of_connect(spark).client.config(operation).pairs)


#: What a server says that will say it again: wrong token, not allowed, no such service.
_REFUSALS = re.compile(r"StatusCode\.(UNAUTHENTICATED|PERMISSION_DENIED|UNIMPLEMENTED)")


def _is_refusal(error: PySparkException) -> bool:
    return _REFUSALS.search(str(error)) is not None


def _details(error: PySparkException) -> str:
    """What the server said, out of the many lines in which gRPC shows it."""
    found = re.search(r'details = "(.*)"', str(error))
    return found[1] if found else str(error)


def _patience(timeout_s: float) -> DefaultPolicy:
    """Spark's own policy, which asks again when a server is away, for ``timeout_s``."""
    return DefaultPolicy(
        max_retries=math.ceil(timeout_s * 1000 / _PAUSE_MS),
        initial_backoff=_PAUSE_MS,
        max_backoff=_PAUSE_MS,
        backoff_multiplier=1.0,
        jitter=0,
    )


def knows_its_session(spark: SparkSession) -> bool:
    """Whether the server of a Spark Connect session answers and still holds its other half."""
    if _of_connect(spark).is_stopped:
        return False
    try:
        spark.conf.get("spark.sql.session.timeZone")
    except (PySparkException, grpc.RpcError):
        return False
    return True


def leave_lost_sessions() -> None:
    """Let none of this process's sessions be the active one whose server has lost it: a Spark that
    is started next would be taken for it.
    """
    with _lock:
        for key, session in list(_sessions.items()):
            if not knows_its_session(session):
                del _sessions[key]
                _discard(session)


def endpoint_of(spark: SparkSession) -> str:
    """``host:port`` of a Spark Connect session's server; the host alone if others made it."""
    for (remote, _), session in _sessions.items():
        if session is spark:
            return DefaultChannelBuilder(remote).endpoint
    return _of_connect(spark).client.host


def session_id(spark: SparkSession) -> str:
    """What the server knows a session by."""
    return str(_of_connect(spark).session_id)


def interrupt_elsewhere(spark: SparkSession, session: str, tag: str) -> None:
    """End the jobs called ``tag`` in another ``session`` of the server of ``spark``, if that server
    answers at once. A session that a caller made is of no use here: where its server is, only
    pyspark knows.
    """
    for (remote, _), known in _sessions.items():
        if known is spark:
            client = _impatient_client(remote, session)
            try:
                client.interrupt_tag(tag)
            except (PySparkException, grpc.RpcError) as error:
                log.info("the job %s of a killed run may still run in Spark: %s", tag, error)
            finally:
                client.close()


def _impatient_client(remote: str, session: str) -> SparkConnectClient:
    """Another client of a session, for what is not worth a wait."""
    there = DefaultChannelBuilder(remote, [("grpc.service_config", _deadlines(_LOOK_S))])
    there.set(DefaultChannelBuilder.PARAM_SESSION_ID, session)
    client = SparkConnectClient(there)
    client.set_retry_policies([_patience(_LOOK_S)])
    _close_alone(client)
    return client


@atexit.register
def _release_sessions() -> None:
    """A server keeps the session of a process that has ended for an hour, and all that it holds:
    short runs would fill it.
    """
    for (remote, _), session in _sessions.items():
        if not _of_connect(session).is_stopped:
            client = _impatient_client(remote, session_id(session))
            with suppress(PySparkException, grpc.RpcError):
                client.release_session()
            client.close()


def _discard(session: SparkSession) -> None:
    """Close it without a word to its server, and leave its place as the active session."""
    _of_connect(session).client.close()
    session.stop()


def _of_connect(session: SparkSession) -> ConnectSession:
    """pyspark hands out sessions of both kinds under one type."""
    return cast(ConnectSession, session)

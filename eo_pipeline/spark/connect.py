"""Sessions on a Spark Connect server: cached, checked for life, with bounded waits.

By default pyspark tries silently for ten minutes to reach an unavailable server.
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

#: Pause between two attempts to reach an unavailable server.
_PAUSE_MS = 250

#: Seconds for requests and probes that are not worth a longer wait.
_LOOK_S = 1.0

_REMEDY = "Start the server, or correct spark.remote or SPARK_REMOTE."

#: The sessions of this process by server and settings. A lost session is replaced.
_sessions: dict[tuple[str, str], SparkSession] = {}
_lock = threading.Lock()
# a forked process must not use its parent's sessions
os.register_at_fork(after_in_child=_sessions.clear)


def connect(remote: str, config: Mapping[str, str], timeout_s: float) -> SparkSession:
    """Return this process's session on the server if the server still has it, else a new one.

    Args:
        remote: ``sc://host:port``, with a token or other parameters behind ``/;``.
        config: Spark settings of the session.
        timeout_s: how long the server may be unavailable, now and at each use of the session.

    Raises:
        ConfigError: ``remote`` is not an address, or the server there did not let us in.
        SetupError: this process has a Spark of its own already.
        SparkUnavailableError: the server did not answer.
    """
    _check_address(remote)
    key = (remote, json.dumps(dict(config), sort_keys=True))
    with _lock:
        cached = _sessions.get(key)
        if cached is not None:
            if session_is_alive(cached):
                return _active(cached)
            del _sessions[key]
            _discard(cached)
        foreign = _of_the_caller()
        if foreign is not None:
            return foreign
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
    """Return the active session of this thread if the caller created it; used unchanged."""
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
    """Make ``session`` the active one of this thread, for transforms and for pyspark's schema
    parser: pyspark keeps the first created session active, whose server may have ended.
    """
    active = SparkSession.getActiveSession()
    if active is None or active in _sessions.values():
        ConnectSession._active_session.session = session
    return session


class _Channel(DefaultChannelBuilder):
    """Builder that keeps the channel it built."""

    channel: grpc.Channel

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - pyspark's name
        self.channel = super().toChannel()
        return self.channel

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once a gRPC server answers; pyspark's own first request would wait ten minutes.

        Waits on the session's channel: a separate one would take gRPC 0.2 s to close.
        """
        try:
            grpc.channel_ready_future(self.channel).result(timeout=timeout_s)
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


#: Requests that a server answers at once; a busy one may take this multiple of ``connect_timeout``.
_ANSWERED_AT_ONCE = ("Config", "Interrupt", "ReleaseExecute", "ReleaseSession")
_BUSY = 3

#: Timeout of a plan's analysis, which may list files or ask Kafka.
_ANALYSIS_S = 600


def _close_alone(client: SparkConnectClient) -> None:
    """Replace the client's ``close`` by one that closes only its channel.

    pyspark's own ``close`` also shuts down the thread pool that releases results for all clients
    of the process, and waits for it. The garbage collector may call it in any thread. In a thread
    of that pool, or one the pool waits for, it deadlocks; afterwards every query of the process
    fails ("cannot schedule new futures").
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
    """Return gRPC's service config with deadlines: without them a client waits for a frozen server
    for ever. A job has no deadline, see :mod:`eo_pipeline.spark.interrupts`.
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
    """Create a session that the server has accepted, with bounded retries."""
    channel = _Channel(remote, [("grpc.service_config", _deadlines(timeout_s))])
    builder = ConnectSession.Builder().channelBuilder(channel)
    # as pyspark's own builder does: functions are then those of Spark Connect
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    session = cast(SparkSession, builder.create())  # sends no request yet
    _close_alone(_of_connect(session).client)
    try:
        channel.wait_until_ready(timeout_s)
    except SparkUnavailableError:
        _discard(session)
        raise
    _of_connect(session).client.set_retry_policies([_patience(timeout_s)])
    try:
        session.version  # noqa: B018  the first request: it reports refused credentials
    except PySparkException as error:
        _discard(session)
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
    apply_settings(session, config)
    return session


def apply_settings(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    """Set ``settings`` in one request, which skips static ones, and unset those that are None in
    another.
    """
    request = _of_connect(spark).client.config
    pairs = [proto.KeyValue(key=k, value=v) for k, v in settings.items() if v is not None]
    if pairs:
        operation = proto.ConfigRequest.Set(pairs=pairs, silent=True)
        request(proto.ConfigRequest.Operation(set=operation))
    if absent := [key for key, value in settings.items() if value is None]:
        request(proto.ConfigRequest.Operation(unset=proto.ConfigRequest.Unset(keys=absent)))


def settings_of(spark: SparkSession, keys: Iterable[str]) -> dict[str, str | None]:
    """Return the settings ``keys``, Spark's defaults included, in one request; None: not set."""
    option = proto.ConfigRequest.GetOption(keys=list(keys))
    operation = proto.ConfigRequest.Operation(get_option=option)
    return dict(_of_connect(spark).client.config(operation).pairs)


#: Permanent refusals of a server: wrong token, not allowed, no such service.
_REFUSALS = re.compile(r"StatusCode\.(UNAUTHENTICATED|PERMISSION_DENIED|UNIMPLEMENTED)")


def _is_refusal(error: PySparkException) -> bool:
    return _REFUSALS.search(str(error)) is not None


def _details(error: PySparkException) -> str:
    """Return the server's message from gRPC's multi-line text."""
    match = re.search(r'details = "(.*)"', str(error))
    return match[1] if match else str(error)


def _patience(timeout_s: float) -> DefaultPolicy:
    """Return Spark's retry policy for an unavailable server, limited to ``timeout_s``."""
    return DefaultPolicy(
        max_retries=math.ceil(timeout_s * 1000 / _PAUSE_MS),
        initial_backoff=_PAUSE_MS,
        max_backoff=_PAUSE_MS,
        backoff_multiplier=1.0,
        jitter=0,
    )


def session_is_alive(spark: SparkSession) -> bool:
    """Return whether the server of a Spark Connect session answers and still has the session."""
    if _of_connect(spark).is_stopped:
        return False
    try:
        spark.conf.get("spark.sql.session.timeZone")
    except (PySparkException, grpc.RpcError):
        return False
    return True


def discard_lost_sessions() -> None:
    """Discard the sessions that their server has lost: an active one would be mistaken for the
    Spark that is started next.
    """
    with _lock:
        for key, session in list(_sessions.items()):
            if not session_is_alive(session):
                del _sessions[key]
                _discard(session)


def endpoint_of(spark: SparkSession) -> str:
    """Return ``host:port`` of a session's server; the host alone of a caller's session."""
    for (remote, _), session in _sessions.items():
        if session is spark:
            return DefaultChannelBuilder(remote).endpoint
    return _of_connect(spark).client.host


def session_id(spark: SparkSession) -> str:
    """Return the server's id of a session."""
    return str(_of_connect(spark).session_id)


def cancel_in_session(spark: SparkSession, session: str, tag: str) -> None:
    """Cancel the jobs tagged ``tag`` in another ``session`` on the server of ``spark``, if that
    server answers at once. Does nothing for a session that a caller created: only pyspark knows
    its server's address.
    """
    for (remote, _), cached in _sessions.items():
        if cached is spark:
            client = _impatient_client(remote, session)
            try:
                client.interrupt_tag(tag)
            except (PySparkException, grpc.RpcError) as error:
                log.info("the job %s of a killed run may still run in Spark: %s", tag, error)
            finally:
                client.close()


def _impatient_client(remote: str, session: str) -> SparkConnectClient:
    """Create another client of a session, with short timeouts."""
    builder = DefaultChannelBuilder(remote, [("grpc.service_config", _deadlines(_LOOK_S))])
    builder.set(DefaultChannelBuilder.PARAM_SESSION_ID, session)
    client = SparkConnectClient(builder)
    client.set_retry_policies([_patience(_LOOK_S)])
    _close_alone(client)
    return client


@atexit.register
def _release_sessions() -> None:
    """Release this process's sessions: a server keeps abandoned ones, with all their state, for an
    hour, and short runs would fill it.
    """
    for (remote, _), session in _sessions.items():
        if not _of_connect(session).is_stopped:
            client = _impatient_client(remote, session_id(session))
            with suppress(PySparkException, grpc.RpcError):
                client.release_session()
            client.close()


def _discard(session: SparkSession) -> None:
    """Close a session without a request to its server; it is no longer the active one."""
    _of_connect(session).client.close()
    session.stop()


def _of_connect(session: SparkSession) -> ConnectSession:
    """Cast to pyspark's Connect type: pyspark types both kinds of session alike."""
    return cast(ConnectSession, session)

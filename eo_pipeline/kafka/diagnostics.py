"""Diagnosis of a cluster that does not answer: TLS probe, timeout, librdkafka's reason."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from eo_pipeline.errors import ConfigError
from eo_pipeline.kafka.auth import TokenSource, text_of, token_endpoint
from eo_pipeline.kafka.client import silent_logger

T = TypeVar("T")

#: Seconds for a look, on the way to an error.
_CONNECT_TIMEOUT_S = 2.0

#: An ApiVersions request of version 0, by no client (Kafka's protocol guide): every broker answers.
_HELLO = bytes.fromhex("0000000a 0012 0000 00000001 ffff")

_EXPIRED = ("has expired", "not yet valid")
_MISMATCH = ("mismatch", "is not valid for")


class Diagnosis(NamedTuple):
    """Reason of a failure, as a clause, and what to do about it, as a sentence."""

    reason: str
    remedy: str


def trouble_of_broker(host: str, port: int, settings: Mapping[str, Any]) -> Diagnosis | None:
    """Diagnose why a client of librdkafka with these ``settings`` does not trust the broker
    there.
    """
    context = _context(settings, "ssl.ca.location", "ssl.ca.pem")
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    refusal = _refusal(host, port, context)
    return None if refusal is None else _told(f"broker {host}:{port}", refusal, "ssl.ca.location")


def trouble_of_endpoint(url: str, settings: Mapping[str, Any]) -> Diagnosis | None:
    """Diagnose why ``url`` gives no token: nobody listens there, or the listener is not trusted."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    context = _context(settings, "https.ca.location", "https.ca.pem") if tls else None
    refusal = _refusal(host, port, context)
    if refusal is None:
        return None
    if isinstance(refusal, ssl.SSLCertVerificationError):
        return _told(f"token endpoint {url}", refusal, "https.ca.location")
    return Diagnosis(
        f"no token can be had at {url}: {refusal.strerror or refusal}",
        "Correct sasl.oauthbearer.token.endpoint.url, or see that its server can be reached.",
    )


def hangs_up(server: str) -> bool:
    """Return whether the listener at ``server``, host and port, ends a connection without a
    word.
    """
    host, _, port = server.strip().rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S) as link:
            link.sendall(_HELLO)
            return not link.recv(1)
    except (ConnectionResetError, BrokenPipeError):
        return True
    except (OSError, ValueError):
        return False


def _context(settings: Mapping[str, Any], location: str, pem: str) -> ssl.SSLContext:
    """Whoever the settings trust; the system's authorities if they name none."""
    return ssl.create_default_context(cadata=text_of(settings, location, pem))


def _refusal(host: str, port: int, context: ssl.SSLContext | None) -> OSError | None:
    """Describe what fails on the way to a TLS connection, or to a plain one without a
    ``context``.
    """
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT_S) as link:
            if context is not None:
                context.wrap_socket(link, server_hostname=host).close()
    except OSError as error:  # ssl's are such
        return error
    return None


def _told(server: str, error: OSError, setting: str) -> Diagnosis | None:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    message = error.verify_message.rstrip(".")
    reason = f"the certificate of the {server} is not accepted: {message}"
    if any(text in message for text in _EXPIRED):
        return Diagnosis(reason, "Have a new certificate put there.")
    if any(text in message for text in _MISMATCH):
        remedy = "Use a name that the certificate has, or have this one added (subjectAltName)."
        return Diagnosis(reason, remedy)
    return Diagnosis(reason, f"Name the authority that signed it in {setting}.")


#: Seconds that a cluster may be away of which every known broker fails: told before five are over.
PATIENCE_S = 3.0

#: ... so that an address which swallows everything fails within that time, too.
_SETTINGS = {"socket.connection.setup.timeout.ms": 2_700}

_LOOK_S = 0.1

#: How long the first byte took, and in which state, is for those who read librdkafka's source.
_STATE = re.compile(r" \(after \d+ms in state \w+[^)]*\)")

#: What to do about an error, by its code; anything else is a matter of brokers and addresses.
_REMEDIES = {
    KafkaError._RESOLVE: "Correct the name in bootstrap_servers, or see that it can be resolved.",
    KafkaError._SSL: "Correct the ssl settings of the client, or the brokers' certificate.",
    KafkaError._AUTHENTICATION: "Correct the user or password among the client's sasl settings.",
    KafkaError._BAD_MSG: "The server there is not Kafka, or needs another security.protocol.",
}
_TOKENLESS = "Failed to acquire SASL OAUTHBEARER token"
_CREDENTIALS = "Correct sasl.oauthbearer.client.id, .client.secret, .scope or .token.endpoint.url."
_SCOPE = "The token lacks what the brokers want: correct sasl.oauthbearer.scope, or their audience."
_AWS_REMEDY = "Give this process credentials of AWS, or correct aws.profile or aws.role.arn."
_NO_MECHANISM = "Correct sasl.mechanism of the client, to one that the broker names."

#: How a broker tells that it does not take the client's certificate (RFC 8446, 6.2).
_ALERT = re.compile(
    r"alert (bad certificate|certificate unknown|certificate expired|certificate required"
    r"|certificate revoked|unknown ca|unsupported certificate)"
)
_CERTIFICATE_REMEDY = "Use one signed by a CA that the brokers trust; it may also have expired."
_NO_CERTIFICATE_REMEDY = "Set ssl.certificate.location and ssl.key.location in the client."
_UNTRUSTED = re.compile(r"ssl://\[?([^/]+?)\]?:(\d+).*certificate verify failed", re.DOTALL)

#: What may stand in an error: a page in HTML, from who is no token endpoint, may not.
_TAG = re.compile(r"<[^>]+>")
_SHOWN_MAX = 300

_SAYS_NOTHING = "Check whether the broker hangs or is overloaded, and that Kafka listens there."
_HANGS_UP = "Correct the address or security.protocol; a proxy needs a broker behind it."
_REMEDY = "Check that the brokers run, the address, and the client's credentials."


#: How librdkafka says that nobody answered.
_NO_ANSWER = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})


class NoAnswerError(Exception):
    """Nobody answered in time."""


@dataclass
class _Heard:
    """Errors that librdkafka reported. It holds no reference to the client, so that the client and
    its threads end with the last reference, not with a collection of cycles.
    """

    #: of a broker, since the last question
    error: KafkaError | None = None
    #: whether every broker failed since the last question ...
    all_down: bool = False
    #: ... and ever
    were_down: bool = False

    def hear(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.were_down = self.all_down = True
        else:
            self.error = error

    def is_away(self) -> bool:
        """That all are down is said once, that one still is each time it is tried."""
        return self.all_down or (self.were_down and self.error is not None)


class DiagnosingAdminClient:
    """An admin client that is asked, and what librdkafka says while nobody answers.

    Raises (when it is made):
        ConfigError: librdkafka does not take the settings, or AWS knows no such credentials.
        SourceUnavailableError: AWS gave none just now.
    """

    def __init__(self, settings: Mapping[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._settings = settings
        self._heard = _Heard()
        self._looked: Diagnosis | None = None
        self._has_looked = False
        options = _SETTINGS | {"error_cb": self._heard.hear} | dict(settings)
        if isinstance(tokens := settings.get("oauth_cb"), TokenSource):
            tokens.refuse_nobody()
        try:
            self.client = AdminClient(options, logger=silent_logger())
        except (
            KafkaException
        ) as error:  # what librdkafka says of its settings, without their values
            message = error.args[0].str().removeprefix("Failed to create admin client: ")
            raise ConfigError(f"client: {message}") from error

    def wait_for(self, answers: Collection[Future[Any]]) -> None:
        """Return when all ``answers`` are there, or errors in their place.

        Raises:
            NoAnswerError: they are not, in time.
        """
        self._forget()
        began = time.monotonic()
        while wait(answers, _LOOK_S).not_done:
            self._give_up_if_away(time.monotonic() - began, self._timeout_s + 5)

    def answer(self, future: Future[T]) -> T:
        """The one answer.

        Raises:
            NoAnswerError: it does not come in time.
            KafkaException: it is an error.
        """
        self.wait_for([future])
        return future.result()

    def topics(self) -> ClusterMetadata:
        """The metadata of all topics.

        Raises:
            NoAnswerError: no answer in time.
        """
        self._forget()
        began = time.monotonic()
        while True:
            try:
                return self.client.list_topics(timeout=1.0)
            except KafkaException as error:
                if error.args[0].code() not in _NO_ANSWER:
                    raise
            self._give_up_if_away(time.monotonic() - began, self._timeout_s)

    def meant(self, error: Exception) -> KafkaError | None:
        """Return the cause of ``error``: the broker's answer; if none came, librdkafka's reason,
        if any.
        """
        kafka_error = error.args[0] if isinstance(error, KafkaException) else None
        return (
            self._heard.error or kafka_error
            if kafka_error is None or kafka_error.code() in _NO_ANSWER
            else kafka_error
        )

    def why(self, error: Exception) -> Diagnosis:
        """Describe the cause of ``error`` and its remedy."""
        meaning = self.meant(error)
        if meaning is None and self._heard.all_down:  # librdkafka gives no reason for either
            if any(map(hangs_up, str(self._settings["bootstrap.servers"]).split(","))):
                return Diagnosis("it accepts connections and closes them at once", _HANGS_UP)
            return Diagnosis("it accepts connections and does not respond", _SAYS_NOTHING)
        unanswered = meaning is None or meaning.code() in _NO_ANSWER
        if unanswered and (trouble := self._look_at_endpoint()):
            return trouble
        if meaning is None:
            return Diagnosis("no answer in time", _REMEDY)
        reason = _STATE.sub("", meaning.str()).replace("/bootstrap:", ":").rstrip(".")
        return (
            self._of_tls(reason)
            or self._of_login(reason)
            or Diagnosis(reason, _remedy(meaning, reason))
        )

    def _of_tls(self, reason: str) -> Diagnosis | None:
        """Name the certificate at fault, and its fault."""
        if match := _UNTRUSTED.search(reason):
            return trouble_of_broker(match[1], int(match[2]), self._settings)
        if not (match := _ALERT.search(reason)):
            return None
        if {"ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location"} & (
            self._settings.keys()
        ):
            return Diagnosis(
                f"the broker does not take the client's certificate ({match[1]})",
                _CERTIFICATE_REMEDY,
            )
        return Diagnosis(
            "the broker wants a client's certificate, and none is given", _NO_CERTIFICATE_REMEDY
        )

    def _of_login(self, reason: str) -> Diagnosis | None:
        """Describe why there is no token."""
        _, separator, detail = reason.partition(f"{_TOKENLESS}: ")
        if not separator:
            return None
        source = self._settings.get("oauth_cb")
        if isinstance(source, TokenSource):
            return Diagnosis(f"AWS gave no token: {source.failure or detail}", _AWS_REMEDY)
        if trouble := self._look_at_endpoint():
            return trouble
        words = " ".join(_TAG.sub(" ", detail).split())[:_SHOWN_MAX]
        return Diagnosis(f"{token_endpoint(self._settings)} gave no token: {words}", _CREDENTIALS)

    def _look_at_endpoint(self) -> Diagnosis | None:
        """Probe the token endpoint, if there is one, once."""
        url = token_endpoint(self._settings)
        if url and not self._has_looked:
            self._has_looked = True
            self._looked = trouble_of_endpoint(url, self._settings)
        return self._looked

    def _forget(self) -> None:
        """Drop errors heard since the last question, of a connection that idled for example."""
        self.client.poll(0)
        self._heard.error, self._heard.all_down = None, False
        self._looked, self._has_looked = None, False

    def _give_up_if_away(self, spent_s: float, timeout_s: float) -> None:
        self.client.poll(0)
        if spent_s > timeout_s or (spent_s > PATIENCE_S and self._is_hopeless()):
            raise NoAnswerError

    def _is_hopeless(self) -> bool:
        """Return whether all brokers are away, or nobody gives a token, which librdkafka waits
        for.
        """
        heard_error = self._heard.error
        without_token = heard_error is not None and _TOKENLESS in heard_error.str()
        return self._heard.is_away() or without_token or self._look_at_endpoint() is not None


def _remedy(error: KafkaError, reason: str) -> str:
    if "Unsupported SASL mechanism" in reason:
        return _NO_MECHANISM
    if "invalid_token" in reason:  # RFC 7628, 3.2.2
        return _SCOPE
    # who answers TLS by hanging up is disconnected, to librdkafka
    kind = KafkaError._SSL if "SSL" in reason else error.code()
    return _REMEDIES.get(kind, _REMEDY)

"""A look of our own at a server that librdkafka does not get on with.

librdkafka says that a certificate "could not be verified", whatever is wrong with it, and of a
token endpoint that does not answer it says nothing for half a minute. Python's TLS is OpenSSL's,
too, and tells the reason. Of a connection that is ended librdkafka does not tell whether the server
or its own patience ended it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from eo_pipeline.source.certificates import text_of

#: Seconds for a look, on the way to an error.
_LOOK_S = 2.0

#: An ApiVersions request of version 0, by no client (Kafka's protocol guide): every broker answers.
_HELLO = bytes.fromhex("0000000a 0012 0000 00000001 ffff")

_EXPIRED = ("has expired", "not yet valid")
_MISMATCH = ("mismatch", "is not valid for")


class Trouble(NamedTuple):
    """What is wrong with a server, as a clause, and what to do about it, as a sentence."""

    reason: str
    remedy: str


def trouble_of_broker(host: str, port: int, settings: Mapping[str, Any]) -> Trouble | None:
    """Why a client of librdkafka with these ``settings`` does not trust the broker there."""
    context = _context(settings, "ssl.ca.location", "ssl.ca.pem")
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    said = _refusal(host, port, context)
    return None if said is None else _told(f"broker {host}:{port}", said, "ssl.ca.location")


def trouble_of_endpoint(url: str, settings: Mapping[str, Any]) -> Trouble | None:
    """Why no token can be had at ``url``: nobody listens there, or whoever does is not trusted."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    context = _context(settings, "https.ca.location", "https.ca.pem") if tls else None
    said = _refusal(host, port, context)
    if said is None:
        return None
    if isinstance(said, ssl.SSLCertVerificationError):
        return _told(f"token endpoint {url}", said, "https.ca.location")
    return Trouble(
        f"no token can be had at {url}: {said.strerror or said}",
        "Correct sasl.oauthbearer.token.endpoint.url, or see that its server can be reached.",
    )


def hangs_up(server: str) -> bool:
    """Whether whoever listens at ``server``, host and port, ends a connection without a word."""
    host, _, port = server.strip().rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _LOOK_S) as link:
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
    """What goes wrong on the way to a TLS connection, or to any without a ``context``."""
    try:
        with socket.create_connection((host, port), _LOOK_S) as link:
            if context is not None:
                context.wrap_socket(link, server_hostname=host).close()
    except OSError as error:  # ssl's are such
        return error
    return None


def _told(server: str, error: OSError, setting: str) -> Trouble | None:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    said = error.verify_message.rstrip(".")
    reason = f"the certificate of the {server} is not accepted: {said}"
    if any(each in said for each in _EXPIRED):
        return Trouble(reason, "Have a new certificate put there.")
    if any(each in said for each in _MISMATCH):
        remedy = "Use a name that the certificate has, or have this one added (subjectAltName)."
        return Trouble(reason, remedy)
    return Trouble(reason, f"Name the authority that signed it in {setting}.")

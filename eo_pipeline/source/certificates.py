"""Certificates of a Kafka client: PEM, as files or texts, said once and told to two clients.

librdkafka reads the files. Java takes the texts since KIP-651, so that an executor needs no file,
and its key in one form alone (PKCS#8, encrypted by few algorithms or not at all): it gets that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from eo_pipeline.errors import ConfigError

_PARTS = ("ca", "certificate", "key")

#: Settings that Java has under another name, or that are folded into one.
TRANSLATED = frozenset(
    {
        *(f"ssl.{part}.{kind}" for part in _PARTS for kind in ("location", "pem")),
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)

#: What librdkafka takes for "look where systems have them".
_PROBE = "probe"


class Identity(NamedTuple):
    """What a client shows: its certificate, and the key as PKCS#8 without a password; whose it is,
    and until when.
    """

    chain: str
    key: str
    name: str
    ends: datetime


def text_of(client: Mapping[str, str], location: str, pem: str = "") -> str | None:
    """What is in the file that the setting ``location`` names, or else the setting ``pem``.

    Raises:
        ConfigError: there is no such file, or it may not be read.
    """
    path = client.get(location)
    if path is None or path == _PROBE:
        return client.get(pem)
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text (PEM)"
        raise ConfigError(f"client: {location} cannot be read: {said} ({path})") from error


def authorities(client: Mapping[str, str]) -> str | None:
    """Whom the client trusts, as PEM; None: those that the system does.

    Raises:
        ConfigError: the file cannot be read, or has no certificate.
    """
    text = text_of(client, "ssl.ca.location", "ssl.ca.pem")
    if text is not None and "-----BEGIN CERTIFICATE-----" not in text:
        raise ConfigError("client: ssl.ca.location (or ssl.ca.pem) holds no certificate as PEM")
    return text


def identity(client: Mapping[str, str]) -> Identity | None:
    """What the client shows, if anything.

    Raises:
        ConfigError: it cannot be read, its parts do not belong together, or its time is over.
    """
    chain, key = (
        text_of(client, f"ssl.{part}.location", f"ssl.{part}.pem")
        for part in ("certificate", "key")
    )
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        lacking = "certificate" if chain is None else "key"
        raise ConfigError(
            f"client: a client's certificate also needs ssl.{lacking}.location or .pem"
        )
    return _checked(chain, key, client.get("ssl.key.password"))


def for_java(client: Mapping[str, str]) -> dict[str, str]:
    """What Java's client takes in the place of :data:`TRANSLATED`. Holds secrets.

    Raises:
        ConfigError: something cannot be read, is over, or Java has no such setting.
    """
    if client.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise ConfigError(
            "client: enable.ssl.certificate.verification: Spark's Kafka client always verifies. "
            "Name the authority of the brokers' certificate in ssl.ca.location."
        )
    java: dict[str, str] = {}
    algorithm = client.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if trusted := authorities(client):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    if shown := identity(client):
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": shown.chain,
            "ssl.keystore.key": shown.key,
        }
    elif "ssl.keystore.location" in client:
        java["ssl.keystore.type"] = "PKCS12"  # the one kind that librdkafka reads
        if "ssl.key.password" in client:
            java["ssl.key.password"] = client["ssl.key.password"]
    return java


def _checked(chain: str, key: str, password: str | None) -> Identity:
    # here, because few pipelines need it
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form

    try:
        certificate = x509.load_pem_x509_certificate(chain.encode())
    except ValueError as error:
        raise ConfigError(
            "client: ssl.certificate.location (or .pem) holds no certificate as PEM"
        ) from error
    try:
        found = form.load_pem_private_key(key.encode(), _password(key, password))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            "client: the key in ssl.key.location (or .pem) cannot be read: it is no key as PEM, or "
            "ssl.key.password is wrong or missing"
        ) from error
    public = form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo
    if found.public_key().public_bytes(*public) != certificate.public_key().public_bytes(*public):
        raise ConfigError(
            "client: the key in ssl.key.location is not that of the certificate in "
            "ssl.certificate.location"
        )
    name, begins, ends = (
        certificate.subject.rfc4514_string(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    if not begins <= datetime.now(UTC) <= ends:
        raise ConfigError(
            f"client: the client's certificate ({name}) is valid from {begins:%Y-%m-%d %H:%M} to "
            f"{ends:%Y-%m-%d %H:%M} UTC, and not now. Put a new one into ssl.certificate.location."
        )
    plain = found.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return Identity(chain, plain.decode(), name, ends)


def _password(key: str, password: str | None) -> bytes | None:
    """One that nothing asks for is no mistake to librdkafka."""
    return password.encode() if password and "ENCRYPTED" in key else None

"""A certificate authority of a test's own."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)

#: Of the keys that have one.
PASSWORD = "of the key"


class Signed(NamedTuple):
    """Files: a certificate, its key (PKCS#8), the same with a ``password``, and as OpenSSL wrote it
    of old; and certificate and key in one.
    """

    certificate: Path
    key: Path
    locked: Path
    old: Path
    both: Path


class Authority:
    """Signs certificates for 127.0.0.1; ``certificate`` is its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority of a test")
        made = self._of(self._name, self._key.public_key(), timedelta(days=30))
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = folder / "ca.pem"
        signed = made.sign(self._key, hashes.SHA256())
        self.certificate.write_bytes(signed.public_bytes(Encoding.PEM))

    def signed(self, name: str, *, ends: timedelta = timedelta(days=30)) -> Signed:
        """A certificate of ``name`` that ``ends`` so long from now, which may be before it."""
        key = ec.generate_private_key(ec.SECP256R1())
        host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = self._of(_named(name), key.public_key(), ends)
        made = made.add_extension(x509.SubjectAlternativeName([host]), critical=False)
        pem = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        kinds = ("pem", "key", "locked.key", "old.key", "both.pem")
        files = Signed(*(self._folder / f"{name}.{kind}" for kind in kinds))
        lock = BestAvailableEncryption(PASSWORD.encode())
        files.certificate.write_bytes(pem)
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files.key.write_bytes(plain)
        files.both.write_bytes(plain + pem)
        files.locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
        old = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        files.old.write_bytes(old)
        return files

    def _of(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, ends: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + ends) - _DAY)
            .not_valid_after(now + ends)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

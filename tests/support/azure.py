"""Azure's own emulator of its Blob endpoint on this machine: Azurite, from npm.

``tests/install_azurite.sh`` installs it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

import obstore
import pytest
from obstore.store import AzureStore

from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError
from tests.support.servers import STATE
from tests.support.store_folder import StoreFolder

_PROGRAM = STATE / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
_ANSWER_S = 5

#: Of the service, by which requests and tokens are signed here.
_VERSION = "2021-12-02"


class EmbeddedAzurite(EmbeddedServer):
    """One account. Only who has its key, or a token made of it, is let in."""

    NAME: ClassVar[str] = "Azurite"

    ACCOUNT: ClassVar[str] = "embedded"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.host, self.port = HOST, free_port()
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def container(self, name: str) -> str:
        """Make a container, if there is none of that name. Returns its URI."""
        # of what a request is signed by, this one has a method, a length of none, and what follows
        blank = "PUT" + 12 * "\n"
        of = f"/{self.ACCOUNT}/{name}"
        known = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        said = [f"{header}:{value}" for header, value in known.items()]
        signed = self._signed(
            blank + "\n".join([*said, f"/{self.ACCOUNT}{of}", "restype:container"])
        )
        who = {"Authorization": f"SharedKey {self.ACCOUNT}:{signed}", "Content-Length": "0"}
        connection = HTTPConnection(self.host, self.port, timeout=_ANSWER_S)
        connection.request("PUT", f"{of}?restype=container", headers={**known, **who})
        assert connection.getresponse().status in (HTTPStatus.CREATED, HTTPStatus.CONFLICT)
        connection.close()
        return f"abfss://{name}@{self.ACCOUNT}.dfs.core.windows.net"

    def client(self, container: str) -> AzureStore:
        """An observer's own."""
        return AzureStore(
            container,
            account_name=self.ACCOUNT,
            account_key=self.key,
            endpoint=f"{self.endpoint}/{self.ACCOUNT}",
            client_options={"allow_http": True},
        )

    def sas_token(self, container: str, permissions: str = "racwdl") -> str:
        """A token of the container, for an hour: for its blobs, with these letters of rights."""
        ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        of = f"/blob/{self.ACCOUNT}/{container}"
        signed = [permissions, "", ends, of, "", "", "https,http", _VERSION, "c", *[""] * 7]
        said = {"sv": _VERSION, "sr": "c", "sp": permissions, "se": ends, "spr": "https,http"}
        return urlencode({**said, "sig": self._signed("\n".join(signed))})

    def _signed(self, text: str) -> str:
        key = base64.b64decode(self.key)
        return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()

    def _ports(self) -> Sequence[int]:
        return (self.port,)

    def _prepare(self) -> None:
        if not _PROGRAM.is_file():
            raise SetupError(f"There is no Azurite in {STATE}: sh tests/install_azurite.sh")
        (self.folder / "data").mkdir(exist_ok=True)

    def _command(self) -> Sequence[str]:
        return [
            *("env", f"AZURITE_ACCOUNTS={self.ACCOUNT}:{self.key}", "node", str(_PROGRAM)),
            *("--blobHost", self.host, "--blobPort", str(self.port)),
            *("--location", str(self.folder / "data")),
            *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
        ]

    def _answers(self) -> bool:
        connection = HTTPConnection(self.host, self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
        return True


@dataclass(frozen=True, kw_only=True)
class AzureFolder(StoreFolder):
    """A place of a test's own in a container, and how to get there."""

    EXTRA: ClassVar[str] = "azure"

    server: EmbeddedAzurite

    @property
    def address(self) -> tuple[str, int]:
        return self.server.host, self.server.port

    def _fields(self) -> dict[str, Any]:
        flat = {"endpoint": self.server.endpoint, "hierarchical_namespace": False}
        return {**flat, "account_key": self.server.key}

    def apart(self) -> Self:
        """In a container of its own."""
        uri = self.server.container(f"apart-{uuid.uuid4().hex[:12]}")
        return replace(self, uri=f"{uri}/{self.place.key}")

    @property
    def container(self) -> str:
        return self.uri.split("/")[2].split("@")[0]

    def files(self) -> set[str]:
        """Of blobs that stand for folders nothing is said."""
        store, root = self.server.client(self.container), self.place.key
        found = [each for batch in obstore.list(store, root) for each in batch]
        return {each["path"].removeprefix(f"{root}/") for each in found if each["size"]}


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedAzurite]:
    with EmbeddedAzurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def container_of_session() -> str:
    """Whoever reaches a container by its name, as Spark does, holds on to where it was."""
    return f"c-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def azure(azurite: EmbeddedAzurite, container_of_session: str) -> AzureFolder:
    """A folder of the test's own, not made yet."""
    uri = azurite.start().container(container_of_session)
    return AzureFolder(server=azurite, uri=f"{uri}/{uuid.uuid4().hex[:12]}")

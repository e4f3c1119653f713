"""A real HDFS on this machine: Hadoop's own name node and data node, in the one JVM of its tests'
cluster (``MiniDFSCluster``).
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.request import urlopen

import hdfs_native
import pytest

from eo_pipeline.embedded.ports import HOST, free_port, is_free
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import pyspark_home
from eo_pipeline.spark.maven import Artefact, resolved
from tests.support.servers import STATE
from tests.support.store_folder import StoreFolder

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


_OF_NAME_NODES = {
    # a cluster that was killed lets clients in as soon as its data nodes are back
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.fs-limits.min-block-size": "0",
}

#: A JVM of its own is started for each test session: soon there, and small.
_JAVA = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def _java(name: str, settings: dict[str, str], *arguments: str) -> list[str]:
    """The command of one of Hadoop's own servers."""
    jars = os.pathsep.join(map(str, hdfs_jars(STATE)))
    told = (part for name, value in settings.items() for part in ("-D", f"{name}={value}"))
    return [str(find_java().command), *_JAVA, "-cp", jars, name, *told, *arguments]


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
            **_OF_NAME_NODES,
            "hdfs.minidfs.basedir": str(self.folder / "data"),
            "dfs.replication": "1",
        }
        is_new = not any((self.folder / "data").iterdir())
        return _java(
            "org.apache.hadoop.test.MiniDFSClusterManager",
            settings,
            *("-nnport", str(self.port), "-httpport", str(self._http)),
            *(["-format"] if is_new else []),
        )

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


class EmbeddedNameNode(EmbeddedHdfs):
    """A name node alone, whose files go to ``replicas`` data nodes: see :class:`EmbeddedDataNode`.

    Clients take it for the same HDFS.
    """

    NAME: ClassVar[str] = "HDFS' name node"

    def __init__(self, folder: Path, *, replicas: int) -> None:
        super().__init__(folder)
        self._replicas = replicas

    def _prepare(self) -> None:
        if not (self.folder / "data").exists():
            format_it = self._java("-format", "-nonInteractive")
            subprocess.run(format_it, check=True, capture_output=True, timeout=120)

    def _command(self) -> Sequence[str]:
        return self._java()

    def _java(self, *arguments: str) -> list[str]:
        settings = {
            **_OF_NAME_NODES,
            "fs.defaultFS": f"hdfs://{self.authority}",
            "dfs.namenode.name.dir": str(self.folder / "data"),
            "dfs.namenode.http-address": f"{self.host}:{self._http}",
            "dfs.replication": str(self._replicas),
        }
        return _java("org.apache.hadoop.hdfs.server.namenode.NameNode", settings, *arguments)

    def _answers(self) -> bool:
        return self.data_nodes() is not None

    def data_nodes(self) -> set[str] | None:
        """Addresses of those it counts on, as it does for ten minutes after they died; None: it
        does not answer.
        """
        asked = "jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
        try:
            with urlopen(f"http://{self.host}:{self._http}/{asked}", timeout=5) as said:
                beans = json.load(said)["beans"]
        except (OSError, HTTPException):
            return None
        return (
            {node["xferaddr"] for told in beans for node in json.loads(told["LiveNodes"]).values()}
            if beans
            else None
        )


class EmbeddedDataNode(EmbeddedServer):
    """A data node of ``of``, in a process of its own: it may die alone."""

    NAME: ClassVar[str] = "HDFS' data node"

    def __init__(self, folder: Path, of: EmbeddedNameNode) -> None:
        super().__init__(folder)
        self._of = of
        self._chosen = [free_port() for _ in range(3)]

    @property
    def address(self) -> str:
        """Where clients send and find data."""
        return f"{HOST}:{self._chosen[0]}"

    def _ports(self) -> Sequence[int]:
        return self._chosen

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)

    def _command(self) -> Sequence[str]:
        data, http, ipc = (f"{HOST}:{port}" for port in self._chosen)
        settings = {
            "fs.defaultFS": f"hdfs://{self._of.authority}",
            "dfs.datanode.data.dir": str(self.folder / "data"),
            "dfs.datanode.address": data,
            "dfs.datanode.http.address": http,
            "dfs.datanode.ipc.address": ipc,
        }
        return _java("org.apache.hadoop.hdfs.server.datanode.DataNode", settings)

    def _answers(self) -> bool:
        """Whether it listens, and the name node sends clients to it."""
        return not is_free(self._chosen[0]) and self.address in (self._of.data_nodes() or ())


@dataclass(frozen=True, kw_only=True)
class HdfsFolder(StoreFolder):
    """A place of a test's own in HDFS, and how to get there."""

    MODULE: ClassVar[str] = "hdfs_native"
    EXTRA: ClassVar[str] = "hdfs"
    SILENT: ClassVar[str] = r"no answer within 0\.3 s"

    server: EmbeddedHdfs

    @property
    def address(self) -> tuple[str, int]:
        return self.server.host, self.server.port

    def _fields(self) -> dict[str, Any]:
        return {}

    def behind(self, port: int, **more: Any) -> Self:
        uri = self.uri.replace(f":{self.server.port}/", f":{port}/")
        return replace(self.saying(**more), uri=uri)

    def putting(self, name: str) -> re.Pattern[bytes]:
        """It is written under another name before."""
        return re.compile(b"rename2.*" + re.escape(name.encode()), re.DOTALL)

    def files(self) -> set[str]:
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
    return HdfsFolder(server=hdfs_server, uri=uri)


@dataclass(frozen=True)
class DataNodes:
    """An HDFS whose every file is on both of its data nodes, of which one may die."""

    name_node: EmbeddedNameNode
    nodes: tuple[EmbeddedDataNode, EmbeddedDataNode]
    folder: HdfsFolder

    def settings(self) -> dict[str, Any]:
        """A pipeline's, whose rows wait there. Each test has a client of its own, which remembers
        nothing of another's nodes.
        """
        return {
            "staging": self.folder.uri,
            "storage": {"request_timeout": random.uniform(8, 10)},
        }

    def start(self) -> DataNodes:
        """Whichever a test has killed."""
        for each in self.nodes:
            each.start()
        return self


@pytest.fixture(scope="module")
def name_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNameNode]:
    with EmbeddedNameNode(tmp_path_factory.mktemp("name_node"), replicas=2) as server:
        yield server


@pytest.fixture(scope="module")
def data_node_pair(
    name_node: EmbeddedNameNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EmbeddedDataNode, EmbeddedDataNode]]:
    folder = tmp_path_factory.mktemp("data_nodes")
    with (
        EmbeddedDataNode(folder / "one", name_node) as one,
        EmbeddedDataNode(folder / "other", name_node) as other,
    ):
        yield one, other


@pytest.fixture
def data_nodes(
    name_node: EmbeddedNameNode, data_node_pair: tuple[EmbeddedDataNode, EmbeddedDataNode]
) -> DataNodes:
    """A folder of the test's own there, not made yet."""
    uri = f"hdfs://{name_node.authority}/{uuid.uuid4().hex[:12]}"
    folder = HdfsFolder(server=name_node, uri=uri)
    return DataNodes(name_node, data_node_pair, folder).start()

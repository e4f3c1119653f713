"""A real REST catalog of Iceberg: the project's own, that its compatibility kit is made of, over a
database in a file. Jetty's XML puts the parts together, so that nothing need be compiled and it
listens on this machine alone.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from xml.sax.saxutils import escape

import pytest

from eo_pipeline.embedded.jars import spark_s3_jars
from eo_pipeline.embedded.object_store import EmbeddedObjectStore
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import pyspark_home
from eo_pipeline.spark.maven import Artefact, resolved
from eo_pipeline.storage.paths import Bucket, RemotePath
from tests.support.servers import STATE

_ANSWER_TIMEOUT_S = 5.0

_ICEBERG = "1.10.1"
_JETTY = "11.0.26"
_PARTS = (
    Artefact("org.apache.iceberg", "iceberg-core", _ICEBERG),
    Artefact("org.apache.iceberg", "iceberg-core", _ICEBERG, "tests"),
    Artefact("org.eclipse.jetty", "jetty-servlet", _JETTY),
    Artefact("org.eclipse.jetty", "jetty-xml", _JETTY),
    Artefact("org.xerial", "sqlite-jdbc", "3.50.3.0"),
)

#: Spark's own, so that something is behind it.
_LOGGING = (
    "slf4j-api",
    "log4j-1.2-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "jcl-over-slf4j",
)

_SERVER = """\
<?xml version="1.0"?>
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN" "https://jetty.org/configure_10_0.dtd">
<Configure id="Server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector"><Arg>
    <New class="org.eclipse.jetty.server.ServerConnector">
      <Arg name="server"><Ref refid="Server"/></Arg>
      <Set name="host">{host}</Set><Set name="port">{port}</Set>
    </New>
  </Arg></Call>
  <Set name="handler">
    <New class="org.eclipse.jetty.servlet.ServletContextHandler">
      <Call name="addServlet">
        <Arg><New class="org.eclipse.jetty.servlet.ServletHolder">
          <Arg>
            <New class="org.apache.iceberg.rest.RESTCatalogServlet">
              <Arg><New class="org.apache.iceberg.rest.RESTCatalogAdapter">
                <Arg>
                  <Call class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">
                    <Arg>backend</Arg>
                    <Arg><Map>{properties}</Map></Arg>
                    <Arg>
                      <New class="org.apache.hadoop.conf.Configuration"/>
                    </Arg>
                  </Call>
                </Arg>
              </New></Arg>
            </New>
          </Arg>
        </New></Arg>
        <Arg>/*</Arg>
      </Call>
    </New>
  </Set>
</Configure>
"""


def rest_catalog_jars(state: Path) -> tuple[Path, ...]:
    """What it consists of, beyond the jars that pyspark holds; downloaded (50 MB) the first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    parts = {jar.name: jar for each in _PARTS for jar in resolved(each, state)}
    spark = pyspark_home() / "jars"
    names = (*_LOGGING, "hadoop-client-api", "hadoop-client-runtime", "httpclient", "httpcore")
    brought = [jar for name in names for jar in sorted(spark.glob(f"{name}-[0-9]*.jar"))]
    # before Iceberg's tests, which hold classes of Hadoop's names, too
    return (*brought, *spark_s3_jars(state), *parts.values())


class RestCatalogServer(EmbeddedServer):
    """Keeps its tables' names in a file in ``folder``. It is told how a bucket is reached: whose
    tables are there, it must write their metadata.
    """

    NAME: ClassVar[str] = "The REST catalog"

    def __init__(self, folder: Path, jars: Sequence[Path], bucket: Bucket | None = None) -> None:
        super().__init__(folder)
        self._jars = jars
        self._bucket = bucket
        self.host = HOST
        self.port = free_port()

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _ports(self) -> Sequence[int]:
        return (self.port,)

    def _prepare(self) -> None:
        properties = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:file:{self.folder / 'catalog.db'}?busy_timeout=60000",
            "jdbc.schema-version": "V1",
            "clients": "1",
            "warehouse": f"file://{self.folder / 'warehouse'}",
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        }
        entries = "".join(
            f"<Entry><Item>{escape(name)}</Item><Item>{escape(value)}</Item></Entry>"
            for name, value in properties.items()
        )
        server = _SERVER.format(host=HOST, port=self.port, properties=entries)
        (self.folder / "server.xml").write_text(server)
        hadoop = dict(self._bucket.hadoop) if self._bucket else {}
        hadoop["fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
        site = self.folder / "core-site.xml"
        site.touch(mode=0o600)
        site.write_text(
            "<configuration>"
            + "".join(
                f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
                for name, value in hadoop.items()
            )
            + "</configuration>"
        )

    def _command(self) -> Sequence[str]:
        path = os.pathsep.join(map(str, (self.folder, *self._jars)))
        return [
            str(find_java().command),
            *("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", path, "org.eclipse.jetty.xml.XmlConfiguration"),
            str(self.folder / "server.xml"),
        ]

    def _answers(self) -> bool:
        return answers(self.uri)


def answers(uri: str) -> bool:
    """Whether the REST catalog at ``uri`` gives its configuration."""
    try:
        with urllib.request.urlopen(f"{uri}/v1/config", timeout=_ANSWER_TIMEOUT_S) as said:
            return bool(said.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="session")
def rest_server(
    objects: EmbeddedObjectStore, bucket_of_session: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RestCatalogServer]:
    place = objects.storage.place(f"s3://{bucket_of_session}/any")
    assert isinstance(place, RemotePath)
    folder = tmp_path_factory.mktemp("rest-catalog")
    with RestCatalogServer(folder, rest_catalog_jars(STATE), place.bucket) as server:
        yield server


@pytest.fixture
def rest_catalog(rest_server: RestCatalogServer) -> RestCatalogServer:
    """Running; a test may have killed it."""
    return rest_server.start()


def catalog_at(uri: str, **properties: str) -> dict[str, Any]:
    """As a document has it."""
    return {"name": "rest", "properties": {"type": "rest", "uri": uri, **properties}}

"""A broker and a Spark that all sequences share, and DuckDB; each ends with this program."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.maven import Artefact, resolved
from tests.lakes.duck import Duck, install
from tests.lakes.lakes import CATALOG
from tests.shared import ROOT, STATE

#: Where the server is, and where the session that reads: each shifts what goes by local time.
SERVER_ZONE, READER_ZONE = "America/St_Johns", "Asia/Kathmandu"

_DELTA = Artefact("io.delta", "delta-spark_2.13", "4.0.0")
_ICEBERG = Artefact("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.10.1", alone=True)
_SQLITE = Artefact("org.xerial", "sqlite-jdbc", "3.50.3.0", alone=True)
#: A record whose first try failed does not come behind the next one.
_IN_ORDER = {"enable.idempotence": True, "linger.ms": 0}
#: Of what Delta depends on, Spark has these.
_IN_SPARK = ("scala-library", "antlr4-runtime")


def lake_jars() -> tuple[Path, ...]:
    """Of both formats, for Spark; downloaded (60 MB) the first time."""
    found = [jar for each in (_DELTA, _ICEBERG, _SQLITE) for jar in resolved(each, STATE)]
    return tuple(jar for jar in found if not jar.name.startswith(_IN_SPARK))


def lake_settings(root: Path) -> dict[str, str]:
    """Of a Spark that knows both formats, and the catalog of ``root``."""
    catalog = f"spark.sql.catalog.{CATALOG}"
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    return {
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{root}/catalog.db",
        f"{catalog}.warehouse": str(root),
        f"{catalog}.cache-enabled": "false",
        # its look for its own tables leaves a statement open, and SQLite a transaction with it
        f"{catalog}.jdbc.init-catalog-tables": "false",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
    }


class World:
    """The servers, each from the moment it is asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._spark: Any = None
        self._server: EmbeddedSpark | None = None

    def __enter__(self) -> Self:
        name = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="eo-lakes-", ignore_cleanup_errors=True)
        )
        self.folder = Path(name)
        self.root = self.folder / "lake"
        self.root.mkdir()
        with closing(sqlite3.connect(self.root / "catalog.db")) as catalog:
            # who reads it (Spark leaves what it read open) keeps nobody from committing
            catalog.execute("PRAGMA journal_mode=WAL")
        self.broker = EmbeddedKafka(
            self.folder / "kafka",
            jars=kafka_broker_jars(STATE),
            java_options=["-XX:TieredStopAtLevel=1"],
        )
        self._stack.enter_context(self.broker)
        address = self.broker.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        self.producer = Producer({"bootstrap.servers": address, "log_level": 0, **_IN_ORDER})
        self.duck = self._duck()
        os.environ["SPARK_CONF_DIR"] = str(ROOT / "tests" / "spark_conf")
        zone = os.environ.get("TZ")
        os.environ["TZ"] = SERVER_ZONE
        jars = (*spark_connector_jars(STATE), *lake_jars())
        server = EmbeddedSpark(
            self.folder / "spark", jars=jars, memory="2g", settings=lake_settings(self.root)
        )
        self._stack.enter_context(server)
        os.environ["TZ"] = zone or "UTC"
        os.environ["SPARK_REMOTE"] = server.remote
        self._server = server
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def spark(self) -> Any:
        """A session that reads, and works on tables as somebody else does."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            assert self._server is not None
            zone = ("spark.sql.session.timeZone", READER_ZONE)
            remote = SparkSession.builder.remote(self._server.remote)
            self._spark = remote.config(*zone).create()
        return self._spark

    def topic(self, name: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result()

    def drop_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result()

    def _duck(self) -> Duck | None:
        """None: its wheels cannot be had."""
        try:
            duck = Duck(install(STATE))
        except subprocess.CalledProcessError:
            return None
        self._stack.callback(duck.close)
        return duck

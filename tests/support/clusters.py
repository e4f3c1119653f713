"""A standalone Spark cluster, and a Spark Connect server on it; no disk is shared.

What the tests, their pipelines and the driver keep is empty to the executors: see ``hidden`` of
:class:`eo_pipeline.embedded.cluster.SparkWorker`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from eo_pipeline.embedded.cluster import EmbeddedCluster
from eo_pipeline.embedded.jars import spark_s3_jars
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from tests.spark.cluster_transforms import MARK
from tests.support.servers import STATE, found_below, those_alive

#: Two executors of a core each, and no more of what the workers have.
SHARE = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    # as for the drivers, see tests/spark_conf
    "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True)
class Cluster:
    """Workers, and a Spark Connect server that has half of each."""

    folder: Path
    servers: EmbeddedCluster
    connect: EmbeddedSpark
    #: a folder with the jars that a driver of ours hands to its executors
    jars: Path

    def start(self) -> Cluster:
        """Whatever a test has killed."""
        self.servers.start()
        self.connect.start()
        return self

    def over_connect(self, **config: str) -> dict[str, Any]:
        """A pipeline's ``spark``: on the server."""
        return {"spark": {"remote": self.connect.remote, "config": config}}

    def with_a_driver(self, **config: str) -> dict[str, Any]:
        """A pipeline's ``spark``: a driver in the pipeline's process, executors on the cluster."""
        settings = {**SHARE, "spark.driver.host": "127.0.0.1", **config}
        return {"spark": {"master": self.servers.url, "driver_memory": "768m", "config": settings}}

    @property
    def environment(self) -> dict[str, str]:
        """Of a process with a driver of its own."""
        return {JARS_VARIABLE: str(self.jars), "SPARK_REMOTE": ""}

    def begun(self) -> list[Path]:
        """What tasks leave behind that run :func:`tests.spark.cluster_transforms.slowly`."""
        return sorted(found_below(self.folder, f"{MARK}*"))

    def executors(self) -> list[psutil.Process]:
        """All of them, the oldest first."""
        below = [
            each
            for worker in self.servers.workers
            if worker.alive
            for each in psutil.Process(worker.pid).children(recursive=True)
        ]
        found = [
            process
            for process, command in those_alive(below, psutil.Process.cmdline)
            if any("CoarseGrainedExecutorBackend" in word for word in command)
        ]
        return sorted(found, key=psutil.Process.create_time)


@pytest.fixture(scope="session")
def spark_jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the jars of a driver that a test starts: Kafka's connector, and S3."""
    folder = tmp_path_factory.mktemp("jars")
    for jar in (*spark_connector_jars(STATE), *spark_s3_jars(STATE)):
        (folder / jar.name).symlink_to(jar)
    return folder


@pytest.fixture(scope="session")
def running_cluster(
    tmp_path_factory: pytest.TempPathFactory, spark_jars: Path
) -> Iterator[Cluster]:
    hidden = [tmp_path_factory.getbasetemp(), STATE, Path(__file__).parents[1]]
    with (
        tempfile.TemporaryDirectory(prefix="eo-cluster-", ignore_cleanup_errors=True) as name,
        EmbeddedCluster(Path(name), cores=2, memory="2g", hidden=hidden) as servers,
        EmbeddedSpark(
            Path(name) / "connect",
            jars=sorted(spark_jars.iterdir()),
            master=servers.url,
            memory="768m",
            settings=SHARE,
        ) as connect,
    ):
        yield Cluster(Path(name), servers, connect, spark_jars)


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """Started again, if a test has killed some of it."""
    for mark in running_cluster.begun():
        mark.unlink()
    return running_cluster.start()

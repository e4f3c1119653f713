"""The Spark session: local, on a cluster, or a warm Spark Connect server.

Everything the pipeline does runs on all three: no ``_jvm``, no ``sparkContext``, no RDD.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pydantic import Field
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eo_pipeline.errors import ConfigError, SetupError
from eo_pipeline.jvm.driver import driver_is_dead, start_driver
from eo_pipeline.settings import Settings
from eo_pipeline.spark.failures import first_lines
from eo_pipeline.spark.interrupts import keeping_interrupts
from eo_pipeline.spark.staging import STAGING_SETTINGS

_NAME = "eo-pipeline"

SparkProvider = Callable[[], SparkSession]

#: Newer connectors than the Spark in use do not load; this one does in TESTED_WITH.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"

#: The versions of pyspark that CONNECTOR was tested with, by the whole suite. pyproject.toml admits
#: their patch releases, nothing newer.
TESTED_WITH = ("4.0.0",)

#: A folder of connector jars resolved beforehand; saves Spark asking a repository at each start.
JARS_VARIABLE = "EO_SPARK_JARS"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # failures come back as our own errors; Spark's warnings about them only bury the sentence
    "spark.log.level": "ERROR",
    **STAGING_SETTINGS,
    # the throughput collector: 5.2 s -> 3.2 s session start and a third off a cold bulk run
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

#: A driver without executors elsewhere has nobody to talk to outside.
_ON_THIS_MACHINE_ONLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class SparkSettings(Settings):
    """Where Spark runs.

    Args:
        master: ``local[*]`` or a cluster's URL.
        remote: ``sc://host:port`` of a Spark Connect server; wins over ``master``. The Kafka
            connector must then be on the server. ``SPARK_REMOTE`` in the environment does the
            same.
        connect_timeout: seconds a Spark Connect server may be away, when a run starts and in the
            middle of its job, before the run ends with SparkUnavailableError.
        driver_memory: heap of a locally started driver.
        config: any further Spark setting, but those that decide what a time becomes
            (:data:`STAGING_SETTINGS`): batches are always staged in UTC.
    """

    master: str = "local[*]"
    remote: str | None = None
    connect_timeout: float = Field(default=10.0, gt=0)
    driver_memory: str = "2g"
    config: Mapping[str, str] = Field(default_factory=dict)

    @property
    def server(self) -> str | None:
        """``remote``, or what the environment says in its place."""
        return self.remote or os.environ.get("SPARK_REMOTE")

    def session(self) -> SparkSession:
        """Start Spark, or return the session this process already has.

        Raises:
            ConfigError: ``remote`` is not an address, the server there did not let us in, or
                ``config`` has what staging decides.
            SetupError: no Java, or Spark did not start.
            SparkUnavailableError: the Spark Connect server did not answer.
        """
        self._refuse_what_staging_decides()
        # pyspark logs every query error it is about to raise, stack and all
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        # Python workers must run this interpreter: another one misses pyarrow
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if self.server and self.server.startswith("sc://"):
            # here, because it takes a quarter of a second to import
            from eo_pipeline.spark.connect import connect

            return connect(self.server, self.config, self.connect_timeout)
        return self._started(self.server)

    def _refuse_what_staging_decides(self) -> None:
        for key, value in STAGING_SETTINGS.items():
            if self.config.get(key, value) != value:
                raise ConfigError(
                    f"spark.config: {key} is always {value} while a batch is staged, so that what "
                    "a time becomes does not depend on who stages it. Take the setting out; local "
                    "times are the transform's, with to_utc_timestamp and from_utc_timestamp."
                )

    def _started(self, remote: str | None) -> SparkSession:
        """``remote`` may still be a master, whose Spark Connect server pyspark starts itself."""
        if not remote and (driver_is_dead() or SparkSession.getActiveSession() is None):
            # left in the environment by a process that spoke Spark Connect and started this one:
            # pyspark would ask for the remote's address instead of starting Spark
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
            start_driver({"spark.master": self.master, "spark.app.name": _NAME, **self._local()})
        builder = SparkSession.Builder().appName(_NAME)
        builder = builder.remote(remote) if remote else builder.master(self.master)
        for key, value in (self._local() if not remote else dict(self.config)).items():
            builder = builder.config(key, value)
        try:
            with keeping_interrupts():
                return builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            raise SetupError(f"Spark did not start: {first_lines(error)}") from error

    def _local(self) -> dict[str, str]:
        settings = _DEFAULTS | {"spark.driver.memory": self.driver_memory} | _connector()
        if self.master.startswith("local"):
            settings |= _ON_THIS_MACHINE_ONLY
        return settings | dict(self.config)


def _connector() -> dict[str, str]:
    folder = os.environ.get(JARS_VARIABLE)
    if not folder:
        return {"spark.jars.packages": CONNECTOR}
    jars = sorted(Path(folder).glob("*.jar"))
    if not jars:
        raise SetupError(f"{JARS_VARIABLE} names a folder without jars; run `make setup`.")
    return {"spark.jars": ",".join(str(jar.absolute()) for jar in jars)}

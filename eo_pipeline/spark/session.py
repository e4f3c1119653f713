"""The Spark session: local, on a cluster, or a warm Spark Connect server.

All of the pipeline runs on all three: no ``_jvm``, no ``sparkContext``, no RDD.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from pydantic import Field

from eo_pipeline._process import process_is_ours
from eo_pipeline.config.settings import Settings
from eo_pipeline.errors import ConfigError, SetupError, SparkUnavailableError
from eo_pipeline.progress import phase
from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.jvm import launch_ahead
from eo_pipeline.spark.launch import (
    NAME,
    SPARKS_DEFAULTS,
    STAGING_SETTINGS,
    is_local,
    launch_settings,
    submit_arguments,
)
from eo_pipeline.spark.server.record import has_warm_server, warm_server, warn_unused
from eo_pipeline.spark.startup import fit, launched_for, without_pandas

# modules that import pyspark are imported where they are used: a run without new records needs only
# the settings
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

SparkProvider = Callable[[], "SparkSession"]

#: Seconds until an unresponsive warm Spark of this machine is skipped.
_WARM_PATIENCE_S = 5.0


class SparkSettings(Settings):
    """Location and settings of Spark.

    Args:
        master: ``local[*]`` or a cluster's URL.
        remote: ``sc://host:port`` of a Spark Connect server; wins over ``master``. The Kafka
            connector must then be on the server. ``SPARK_REMOTE`` in the environment does the
            same.
        connect_timeout: seconds without an answer of a Spark Connect server, at the start of a run
            and during its jobs, until the run ends with SparkUnavailableError.
        driver_memory: heap of a locally started driver.
        warm: use this project's server of ``eo spark start``, if it was started with these
            settings; ``remote`` wins over it.
        py_files: Python files, archives (``.py``, ``.zip``, ``.egg``) or folders of packages to
            send to Spark's Python workers. Modules beside the transform's that its functions use
            are sent automatically.
        config: any further Spark setting, except the time zone and Parquet time settings: batches
            are always staged in UTC. Some Spark SQL defaults are also overridden while a batch
            is staged.
    """

    master: str = "local[*]"
    remote: str | None = None
    connect_timeout: float = Field(default=10.0, gt=0)
    driver_memory: str = "2g"
    warm: bool = True
    py_files: tuple[str, ...] = ()
    config: Mapping[str, str] = Field(default_factory=dict)

    @property
    def server(self) -> str | None:
        """``remote``, or SPARK_REMOTE of the environment."""
        return self.remote or os.environ.get("SPARK_REMOTE")

    def session(self, *, of_ours: bool = False) -> SparkSession:
        """Start Spark, or return the session this process already has.

        Args:
            of_ours: only this package's code uses it; see :mod:`eo_pipeline.spark.learning`.

        Raises:
            ConfigError: ``remote`` is not an address, the server there did not let us in, or
                ``config`` has what staging decides, or one of ``py_files`` is not there.
            SetupError: no Java, or Spark did not start.
            SparkUnavailableError: the Spark Connect server did not answer.
        """
        session = self._session(of_ours=of_ours and process_is_ours())
        for key, value in SPARKS_DEFAULTS.items():
            if self.config.get(key, value) != value:
                log.warning(
                    "spark.config: %s is overridden with %s while a batch is staged", key, value
                )
        fit(session, self.config)
        if self.py_files:
            from eo_pipeline.spark.modules import send_files

            send_files(session, self.py_files)
        return session

    def begin(self) -> None:
        """Launch the JVM in the background, if :meth:`session` will start one.

        Raises:
            ConfigError: ``config`` has what staging decides.
            SetupError: no Java, or Spark does not take these settings.
        """
        # a process that has imported pyspark may have a JVM, and would gain little
        if "pyspark" in sys.modules or self.server:
            return
        if self.warm and has_warm_server(self.master, self.launch()):
            return
        self._name_python()
        launch_ahead(submit_arguments(self.master, self._launch_for_work()))

    def _session(self, *, of_ours: bool) -> SparkSession:
        self._refuse_staging_settings()
        # pyspark logs every query error it is about to raise, stack and all
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._name_python()
        if self.server and self.server.startswith("sc://"):
            # imported here: takes a quarter of a second
            with without_pandas():
                from eo_pipeline.spark.connect import connect

            with phase("connecting to the Spark Connect server", usually_short=True):
                return connect(self.server, self._session_settings(), self.connect_timeout)
        warm = None if self.server else self._warm_session()
        session = warm or self._start(self.server, of_ours=of_ours)
        if not of_ours and not is_connect(session):
            from eo_pipeline.spark.learning import register_deferred

            register_deferred()
        return session

    def _name_python(self) -> None:
        """Set the Python of Spark's workers to this interpreter, unless another one is configured,
        which must be of the same release and have pyarrow.
        """
        python = self.config.get("spark.pyspark.python", sys.executable)
        os.environ.setdefault("PYSPARK_PYTHON", python)

    def _launch_for_work(self) -> Mapping[str, str]:
        """Return :meth:`launch` for the amount of work; unset Spark Connect's client variables."""
        # inherited from a parent process that used Spark Connect: pyspark would require a remote
        # address instead of starting Spark
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        os.environ.pop("SPARK_REMOTE", None)  # empty here, which Spark takes for an address
        return launched_for(self.master, self.launch(), self.config)

    def _session_settings(self) -> dict[str, str]:
        """Return settings with those of staging, which would else be set in every checkpoint."""
        return {**STAGING_SETTINGS, **SPARKS_DEFAULTS, **self.config}

    def _refuse_staging_settings(self) -> None:
        for key, value in STAGING_SETTINGS.items():
            if self.config.get(key, value) != value:
                raise ConfigError(
                    f"spark.config: {key} is always {value} while a batch is staged, so that the "
                    "result does not depend on the machine. Remove it; convert local times "
                    "in the transform, with to_utc_timestamp and from_utc_timestamp."
                )

    def _start(self, remote: str | None, *, of_ours: bool) -> SparkSession:
        """Start Spark. ``remote`` may be a master, whose Spark Connect server pyspark starts."""
        from py4j.protocol import Py4JError
        from pyspark.sql import SparkSession

        from eo_pipeline.spark.driver import driver_is_dead, start_driver
        from eo_pipeline.spark.errors import error_text

        try:
            running = not driver_is_dead() and SparkSession.getActiveSession() is not None
        except (Py4JError, OSError) as error:
            raise SparkUnavailableError(
                "The JVM of this process ended unexpectedly. Nothing was read. Run again to start "
                f"a new JVM. Cause: {error_text(error)}"
            ) from error
        if running and not remote:
            return self._create(self.launch())
        with phase(f"Spark is starting ({remote or self.master})"):
            launch: Mapping[str, str] = self.config
            if not remote:
                launch = self._launch_for_work()
                # py4j needs it for its first list: 0.3 s, in which Java may be starting
                with without_pandas():
                    import_module("pyspark.testing.utils")
                start_driver(submit_arguments(self.master, launch))
            if not of_ours or remote or not is_local(self.master):
                return self._create(launch, remote)
            from eo_pipeline.spark.learning import deferred_registration

            with deferred_registration():
                return self._create(launch)

    def _create(self, settings: Mapping[str, str], remote: str | None = None) -> SparkSession:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from eo_pipeline.spark.errors import error_text
        from eo_pipeline.spark.interrupts import restoring_sigint

        builder = SparkSession.Builder().appName(NAME)
        builder = builder.remote(remote) if remote else builder.master(self.master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        try:
            with restoring_sigint():
                return builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            raise SetupError(f"Spark did not start: {error_text(error)}") from error

    def launch(self) -> dict[str, str]:
        """Return all start-up settings of a Spark, without its master.

        Raises:
            ConfigError: ``config`` has what staging decides.
            SetupError: EO_SPARK_JARS names a folder without jars.
        """
        self._refuse_staging_settings()
        return launch_settings(self.master, self.driver_memory, self.config)

    def _warm_session(self) -> SparkSession | None:
        """Return a session on the project's warm Spark, if one fits and answers."""
        from eo_pipeline.spark.driver import has_driver

        if not self.warm or has_driver():
            return None
        server = warm_server(self.master, self.launch())
        from_before = "pyspark.sql.connect.session" in sys.modules
        if server is None and not from_before:
            return None
        # imported here: takes a quarter of a second
        with without_pandas():
            from eo_pipeline.spark.connect import connect, discard_lost_sessions

        if server is not None:
            patience_s = min(self.connect_timeout, _WARM_PATIENCE_S)
            try:
                return connect(server.remote, self._session_settings(), patience_s)
            except (SparkUnavailableError, ConfigError) as error:
                warn_unused(server, error)
        discard_lost_sessions()
        return None

"""The servers that all lives share. Each dies with this program, and may be killed by it."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

from eo_pipeline.embedded.jars import kafka_broker_jars, spark_s3_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark.connector import spark_connector_jars
from tests.kills.clocks import Clock
from tests.kills.processes import ROOT, get_ready
from tests.kills.targets import (
    Delta,
    DeltaInBucket,
    Iceberg,
    Kafka,
    MariaDB,
    MySql,
    Parquet,
    Postgres,
    Redis,
    Target,
)

STATE = ROOT / ".eo"

_FAST = ["-XX:TieredStopAtLevel=1"]


class World:
    """A broker, a Spark, and each store from the moment it is asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._targets: dict[str, Target] = {}
        #: one at a time kills a server that others need, or starts it
        self.changing = threading.RLock()
        #: why operations have no clock that can be turned
        self.no_clock = ""

    def __enter__(self) -> Self:
        # not below .eo: PostgreSQL runs as another user, who must get there
        name = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="eo-kills-", ignore_cleanup_errors=True)
        )
        self.folder = Path(name)
        self.folder.chmod(0o755)
        os.environ["SPARK_CONF_DIR"] = str(ROOT / "tests" / "spark_conf")
        jars = (*spark_connector_jars(STATE), *spark_s3_jars(STATE))
        self.spark = EmbeddedSpark(self.folder / "spark", jars=jars, memory="1g")
        self.broker = EmbeddedKafka(
            self.folder / "kafka", jars=kafka_broker_jars(STATE), java_options=_FAST
        )
        self._stack.enter_context(self.broker)
        address = self.broker.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        self._stack.enter_context(self.spark)
        os.environ["SPARK_REMOTE"] = self.spark.remote
        try:
            self.clock: Clock | None = Clock(self.folder)
            self.clock.turn(0)
        except OSError as error:
            self.clock, self.no_clock = None, str(error)
        get_ready(self.clock)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def target(self, name: str) -> Target:
        """By the name of its scenario; started the first time."""
        with self.changing:
            return self._target(name)

    def _target(self, name: str) -> Target:
        if name not in self._targets:
            made = SCENARIOS_AND_CONTROLS[name](
                self, self.folder / name.replace(", ", "-").replace(" ", "_")
            )
            self._stack.callback(made.close)
            self._targets[name] = made
        self._targets[name].start()
        return self._targets[name]

    def heal(self, target: Target) -> None:
        """Whatever was killed runs again.

        Raises:
            SetupError: a server does not come back.
        """
        with self.changing:
            for server in self.servers(target):
                server.start()

    def servers(self, target: Target) -> Iterator[EmbeddedServer]:
        """All that a life of ``target`` needs."""
        yield self.broker
        yield self.spark
        if target.server is not None:
            yield target.server


_Make = Callable[[World, Path], Target]

#: Every store in every mode it has.
SCENARIOS: dict[str, _Make] = {
    "PostgreSQL, append": lambda _, folder: Postgres(folder),
    "PostgreSQL, upsert": lambda _, folder: Postgres(folder, "upsert"),
    "PostgreSQL, tables": lambda _, folder: Postgres(folder, "tables"),
    "MariaDB, append": lambda _, folder: MariaDB(folder),
    "MariaDB, upsert": lambda _, folder: MariaDB(folder, "upsert"),
    "MariaDB, tables": lambda _, folder: MariaDB(folder, "tables"),
    "MySQL, append": lambda _, folder: MySql(folder),
    "MySQL, upsert": lambda _, folder: MySql(folder, "upsert"),
    "MySQL, tables": lambda _, folder: MySql(folder, "tables"),
    "Delta, append": lambda _, folder: Delta(folder),
    "Delta, upsert": lambda _, folder: Delta(folder, "upsert"),
    "Delta in a bucket, append": lambda _, folder: DeltaInBucket(folder),
    "Delta in a bucket, upsert": lambda _, folder: DeltaInBucket(folder, "upsert"),
    "Iceberg, append": lambda _, folder: Iceberg(folder),
    "Iceberg, tables": lambda _, folder: Iceberg(folder, "tables"),
    "Parquet, append": lambda _, folder: Parquet(folder),
    "Kafka, append": lambda world, folder: Kafka(folder, world.broker),
    "Kafka, tables": lambda world, folder: Kafka(folder, world.broker, "tables"),
    "Redis, upsert": lambda _, folder: Redis(folder),
    "Redis, tables": lambda _, folder: Redis(folder, "tables"),
}

#: What is not exactly once, and says so: a judge that does not see it sees nothing.
CONTROLS: dict[str, _Make] = {
    "Kafka, at_least_once": lambda world, folder: Kafka(folder, world.broker, "at_least_once"),
}
SCENARIOS_AND_CONTROLS = {**SCENARIOS, **CONTROLS}

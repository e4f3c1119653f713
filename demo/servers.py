"""The real servers of the demo, started side by side and again if they die."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from demo.preflight import Jars
from demo.screen import Screen
from demo.state import PROJECT, State
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.ports import HOST
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.embedded.spark import EmbeddedSpark

KAFKA_PORT = 9092
POSTGRES_PORT = 5432
REGISTRY_PORT = 8081


class Servers:
    """Kafka and PostgreSQL, a schema registry if there are jars of one, and a warm Spark if many
    short runs will come.

    Their usual ports where those are free, others where not. Chosen here once: clients find a
    server again that was started again.
    """

    def __init__(self, state: State, jars: Jars, *, warm_spark: bool = False) -> None:
        self._state = state
        self._jars = jars
        self.kafka = EmbeddedKafka(state.kafka, port=KAFKA_PORT, jars=jars.broker)
        self.postgres = EmbeddedPostgres(state.postgres, port=POSTGRES_PORT)
        self.registry: EmbeddedRegistry | None = None
        if jars.registry:
            self.registry = EmbeddedRegistry(
                state.registry, port=REGISTRY_PORT, jar=jars.registry, keep=True
            )
        self.spark: EmbeddedSpark | None = None
        if warm_spark:
            connector = sorted(jars.connector.glob("*.jar"))
            self.spark = EmbeddedSpark(state.spark, jars=connector)

    @property
    def all(self) -> Sequence[EmbeddedServer]:
        named = (self.kafka, self.postgres, self.registry, self.spark)
        return [server for server in named if server is not None]

    @property
    def environment(self) -> dict[str, str]:
        """What the pipeline's definition, the engine and Dagster want to know."""
        variables = {
            "DAGSTER_HOME": str(self._state.dagster),
            "EO_KAFKA_BOOTSTRAP": self.kafka.bootstrap_servers,
            "EO_PG_DSN": self.postgres.dsn,
            "EO_SPARK_JARS": str(self._jars.connector),
            "EO_STAGING": str(self._state.staging),
            # a driver has ports of its own: on this machine only, and without asking for its name
            "SPARK_LOCAL_IP": HOST,
        }
        if self.registry:
            variables["EO_REGISTRY_URL"] = self.registry.url
        return variables | ({"SPARK_REMOTE": self.spark.remote} if self.spark else {})

    @contextlib.contextmanager
    def told_to_shells(self, pipelines: Path) -> Iterator[Path]:
        """A file to ``source``: the same variables, the document ``pipelines`` for the command
        ``eo``, and the paths to it and ``psql``. It is there as long as the servers are to be.
        """
        path = self._state.environment_file
        here = {"EO_PIPELINES": str(pipelines), "PYTHONPATH": str(PROJECT)}
        variables = self.environment | here
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        programs = f"{Path(sys.executable).parent}:{self.postgres.programs}"
        lines.append(f'export PATH={shlex.quote(programs)}:"$PATH"')
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)  # it has Spark's token
        path.write_text("\n".join([*lines, ""]))
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @staticmethod
    def client(module: str, *arguments: str) -> list[str]:
        """The command for a Python module that uses these servers, with :attr:`environment`: that
        goes to it alone, since a Spark server that knew of itself would not start.
        """
        return [sys.executable, "-m", module, *arguments]

    def revive(self) -> list[str]:
        """Start again what has died; the names.

        Raises:
            SetupError: a server could not be started.
        """
        dead = [server for server in self.all if not server.alive]
        for server in dead:
            server.start()
        return [server.NAME for server in dead]

    def start(self) -> None:
        """Start all of them, side by side.

        Raises:
            SetupError: a server could not be started.
        """
        with ThreadPoolExecutor() as pool:
            for starting in [pool.submit(server.start) for server in self.all]:
                starting.result()

    def stop(self) -> None:
        """End all of them, side by side."""
        with ThreadPoolExecutor() as pool:
            for stopping in [pool.submit(server.stop) for server in self.all]:
                stopping.result()

    def __str__(self) -> str:
        return ", ".join(f"{name} {at}" for name, at in self.addresses.items())

    @property
    def addresses(self) -> dict[str, str]:
        """Host and port by name."""
        at = {"Kafka": self.kafka.bootstrap_servers, "PostgreSQL": _address(self.postgres.dsn)}
        if self.registry:
            at["Registry"] = _address(self.registry.url)
        return at | ({"Spark": _address(self.spark.remote)} if self.spark else {})


def _address(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


@contextlib.contextmanager
def running(servers: Servers, screen: Screen) -> Iterator[None]:
    """The servers, up; and down again at the end, whatever happens.

    Raises:
        SetupError: a server could not be started.
    """
    names = [server.NAME for server in servers.all]
    try:
        with screen.step(f"Starting {' and '.join(names)}") as done:
            servers.start()
            done(str(servers))
        yield
    finally:
        with screen.busy("Stopping the servers"):
            servers.stop()

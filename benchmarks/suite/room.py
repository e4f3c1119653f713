"""The servers that everybody shares, the peers' installations, and the time there is."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.suite.bucket import Bucket
from benchmarks.suite.program import Program
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import delete_all
from benchmarks.suite.workloads.plain import PLAIN
from benchmarks.suite.workloads.registered import register
from benchmarks.suite.workloads.workload import Workload
from eo_pipeline.embedded.jars import kafka_broker_jars, registry_jar, spark_s3_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.class_archive import CACHE_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars

ROOT = Path(__file__).parents[2]
STATE = ROOT / ".eo"
PROGRAMS = Path(__file__).parent / "programs"

#: Write-ahead log that a run may fill before PostgreSQL spreads a checkpoint over the next run.
_POSTGRES = {"max_wal_size": "8GB"}
_ALWAYS_LEFT_S = 5.0

#: Where archives of Spark's classes lie.
_CACHES = (CACHE_VARIABLE, "XDG_CACHE_HOME")

#: How the names begin of topics that live for one run: outputs, and those that grow.
OUTPUT, END = "run_", "end-"


def linked(folder: Path, jars: Sequence[Path]) -> Path:
    """``folder`` with links to the jars; made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        if not (folder / jar.name).exists():
            (folder / jar.name).symlink_to(jar)
    return folder


class Room:
    """Kafka and PostgreSQL on this machine, below ``folder``; full topics outlive the program.

    Args:
        folder: where the peers are installed too.
        seconds: all the time there is, from now on.
        step: the most that one run may take, in seconds.
    """

    def __init__(self, folder: Path, seconds: float, step: float) -> None:
        self.folder = folder
        self._deadline = time.monotonic() + seconds
        self._step = step
        self._stack = ExitStack()
        self._programs: dict[str, Program] = {}
        self._spark: EmbeddedSpark | None = None
        self._registry: EmbeddedRegistry | None = None
        self._bucket: Bucket | None = None
        self._targets = 0
        self.kafka = EmbeddedKafka(folder / "kafka", jars=kafka_broker_jars(STATE))
        self.postgres = EmbeddedPostgres(folder / "postgres", settings=_POSTGRES)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.kafka)  # first: it refuses where another run is at work
        for left_behind in (self.runs, self.postgres.folder):
            shutil.rmtree(left_behind, ignore_errors=True)
        for prefix in (OUTPUT, END):
            delete_all(self.kafka.bootstrap_servers, prefix)
        self._stack.enter_context(self.postgres)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_programs()
        self._stack.close()

    @property
    def runs(self) -> Path:
        """What runs leave behind; emptied at the start."""
        return self.folder / "runs"

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self._deadline - time.monotonic()

    @property
    def limit(self) -> float:
        """Seconds that a run which begins now may take."""
        return max(min(self._step, self.left - _ALWAYS_LEFT_S), 1.0)

    @property
    def limit_to_install(self) -> float:
        """Seconds that an installation which begins now may take."""
        return max(self.left - _ALWAYS_LEFT_S, 1.0)

    def _connector(self) -> Path:
        """A folder of Spark's Kafka connector alone: `make setup` has one, and its archive. While
        there is a bucket it has the jars for that too.
        """
        folder = STATE / "jars" / "spark-connector"
        if folder.is_dir() and self._bucket is None:
            return folder
        folder = self.folder / ("connector" if self._bucket is None else "connector-s3")
        return linked(folder, self._spark_jars())

    def _spark_jars(self) -> Sequence[Path]:
        more = () if self._bucket is None else spark_s3_jars(STATE)
        return (*spark_connector_jars(STATE), *more)

    @property
    def remote(self) -> str:
        """A warm Spark Connect server; started when it is first asked for."""
        if self._spark is None:
            jars = self._spark_jars()
            self._spark = EmbeddedSpark(self.folder / "spark-connect", jars=jars)
            self._spark.start()
        return self._spark.remote

    @property
    def spark_pid(self) -> int:
        """Of the warm Spark Connect server, which has been asked for."""
        assert self._spark is not None
        return self._spark.pid

    @property
    def bucket(self) -> Bucket:
        """A bucket; started when it is first asked for."""
        if self._bucket is None:
            self._bucket = Bucket(self.folder / "bucket", STATE)
        return self._bucket

    @property
    def registry(self) -> str:
        """A schema registry with the workloads' schemas; started when it is first asked for."""
        if self._registry is None:
            self._registry = EmbeddedRegistry(self.folder / "registry", jar=registry_jar(STATE))
            self._registry.start()
            register(self._registry.url)
        return self._registry.url

    def target(self, store: Store, workload: Workload = PLAIN) -> Target:
        """A new empty place."""
        self._targets += 1
        name = f"{OUTPUT}{int(time.time())}_{self._targets:05d}"
        folder = self.runs / name
        dsn, bootstrap = self.postgres.dsn, self.kafka.bootstrap_servers
        bucket = self.bucket if workload.in_bucket else None
        made = Target(store, name, folder, dsn, bootstrap, workload, bucket)
        made.make()
        return made

    def start(self, name: str, command: Sequence[str]) -> Program:
        """A program in a clean environment; its log has its name."""
        return Program(command, self.runs / "logs" / f"{name}.log", self.environment())

    def environment(self) -> dict[str, str]:
        """A clean environment for a program."""
        names = ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR", "SSL_CERT_FILE", *_CACHES)
        environment = {name: os.environ[name] for name in names if name in os.environ}
        environment["PYTHONPATH"] = str(ROOT)
        # where `make setup` puts it
        environment.setdefault(CACHE_VARIABLE, str(STATE / "cache"))
        # else Spark asks a repository for its connector at each start
        environment[JARS_VARIABLE] = str(self._connector())
        return environment

    def program(self, name: str, command: Sequence[str]) -> Program:
        """The one of this name, which stays until :meth:`end_programs`."""
        known = self._programs.get(name)
        if known is None or not known.alive:
            known = self._programs[name] = self.start(f"{name}-warm", command)
        return known

    def end_programs(self) -> None:
        """Nobody who is warm takes memory or time from what follows."""
        for program in self._programs.values():
            program.kill()
        self._programs.clear()
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
        if self._registry is not None:
            self._registry.stop()
            self._registry = None
        if self._bucket is not None:
            self._bucket.stop()
            self._bucket = None

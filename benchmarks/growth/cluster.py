"""What a checkpoint costs the driver: over executors, and over staged files.

A standalone cluster on this machine, with executors of one core each that share a bucket. Spark's
driver is a Spark Connect server; the pipeline's process has its own figures. Requests are counted:
to Kafka in the broker's log, to the bucket on their way.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bench_small import CHECKOUT, STATE, Worker
from benchmarks.growth.runs import Load, Point, bulk
from benchmarks.suite.link import SlowLink
from benchmarks.suite.topic import create, dealt_out, delete, put
from eo_pipeline.embedded.cluster import EmbeddedCluster
from eo_pipeline.embedded.jars import kafka_broker_jars, spark_s3_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.object_store import EmbeddedObjectStore
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark.connector import spark_connector_jars

#: Enough for eight tasks of 15 MB, as many as of eight cores.
OVER_EXECUTORS = bulk(600_000, partitions=16)
#: Little enough for one task, of as many partitions as there are files at most.
OVER_FILES = bulk(80_000, partitions=1_000)
#: Executors in the curve over files.
EXECUTORS = 2
#: Checkpoints before any figure.
WARM_UP = 5
#: Java compiles what the driver runs over so many; small ones do.
COMPILED = 30
SMALL = bulk(8_000)

_BUCKET = "growth"
_REGISTERED_S = 120.0
_LOOK_AGAIN_S = 0.2
#: Spark's pages, and the log of Kafka, have all of a checkpoint so long after its end.
_SETTLED_S = 1.0
_HTTP_S = 60.0

#: A line of 150 characters for each request.
_LOGGING = """\
appender.requests.type = File
appender.requests.name = requests
appender.requests.fileName = {file}
appender.requests.layout.type = PatternLayout
appender.requests.layout.pattern = %maxLen{{%m}}{{150}}%n
logger.requests.name = kafka.request.logger
logger.requests.level = DEBUG
logger.requests.additivity = false
logger.requests.appenderRef.requests.ref = requests
"""
#: Clients of the pipeline's process, and of Spark's driver; those of the executors are consumers.
_OF_DRIVER = re.compile(rb'"clientId":"(?:rdkafka|adminclient-\d+)"')
_REQUEST = re.compile(rb"[A-Z]+ \S+ HTTP/1\.1\r\n")
#: What the page calls the figures.
_LINES = {
    "process": "this process, CPU ms",
    "driver": "Spark's driver, CPU ms",
    "returned": "returned by tasks, kB",
    "tasks": "tasks, number",
    "jobs": "jobs, number",
    "kafka": "requests to Kafka, number",
    "bucket": "requests to the bucket, number",
}
#: What S3 clients in Java call themselves.
_JAVA = b"aws-sdk-java"


class LoggingKafka(EmbeddedKafka):
    """A broker that logs every request: slow where a topic has many partitions, which are all named
    in what it would log.
    """

    def _prepare(self) -> None:
        super()._prepare()
        with (self.folder / "log4j2.properties").open("a") as file:
            file.write(_LOGGING.format(file=self._requests))

    @property
    def _requests(self) -> Path:
        return self.folder / "requests.log"

    def requests(self) -> int:
        """Return how many there were of the driver."""
        return len(_OF_DRIVER.findall(self._requests.read_bytes()))


class Site:
    """Servers and executors on this machine."""

    def __init__(
        self, scratch: Path, stack: ExitStack, executors: int, kafka: type[EmbeddedKafka]
    ) -> None:
        jars = kafka_broker_jars(STATE)
        self.kafka = stack.enter_context(kafka(scratch / "kafka", jars=jars))
        self.postgres = stack.enter_context(EmbeddedPostgres(scratch / "postgres"))
        self.store = stack.enter_context(EmbeddedObjectStore(scratch / "store"))
        self.store.bucket(_BUCKET)
        self.cluster = stack.enter_context(EmbeddedCluster(scratch / "spark", workers=executors))
        #: of the pipeline's process to the bucket
        self.requests = 0
        self.link = SlowLink(self.store.port, 0, self._heard)
        stack.callback(self.link.close)
        self.worker = stack.enter_context(Worker(CHECKOUT))
        self._scratch, self._numbers = scratch, count(1)

    def _heard(self, request: bytes) -> None:
        if _REQUEST.match(request) and _JAVA not in request:
            self.requests += 1

    @contextmanager
    def topic(self, load: Load) -> Iterator[str]:
        """Yield the name of a new one."""
        name = f"growth-{next(self._numbers)}"
        create(self.kafka.bootstrap_servers, name, load.partitions)
        yield name
        delete(self.kafka.bootstrap_servers, name)

    def fill(self, topic: str, load: Load) -> None:
        """Put the records of ``load`` at the end of ``topic``."""
        put(self.kafka.bootstrap_servers, topic, dealt_out(load.made(), load.partitions))

    def run(self, topic: str, sink: str, remote: str, load: Load) -> None:
        """Run the pipeline of ``topic``, which finds the records of ``load``."""
        self.worker.run(self._config(topic, sink, remote), load.records)

    def _config(self, topic: str, sink: str, remote: str) -> dict[str, Any]:
        storage = self.store.storage_by(f"http://{HOST}:{self.link.port}")
        assert storage.access_key_id is not None
        assert storage.secret_access_key is not None
        sinks = {
            "delta": {"path": f"s3://{_BUCKET}/{topic}"},
            "postgres": {"dsn": self.postgres.dsn, "table": topic},
        }
        return {
            "name": topic,
            "source": {
                "bootstrap_servers": self.kafka.bootstrap_servers,
                "topics": [topic],
                "value_schema": OVER_FILES.schema,
            },
            "sink": {"type": sink, **sinks[sink]},
            "storage": {
                "endpoint": storage.endpoint,
                "access_key_id": storage.access_key_id.get_secret_value(),
                "secret_access_key": storage.secret_access_key.get_secret_value(),
            },
            "staging": f"s3://{_BUCKET}/staging",
            "spark": {"remote": remote},
            "inline_records": 0,
        }

    @contextmanager
    def driver(self, executors: int, **settings: str) -> Iterator[Driver]:
        """Yield a Spark's driver with so many executors."""
        page = free_port()
        spark = EmbeddedSpark(
            self._scratch / f"connect-{next(self._numbers)}",
            jars=[*spark_connector_jars(STATE), *spark_s3_jars(STATE)],
            master=self.cluster.url,
            settings={
                "spark.cores.max": str(executors),
                "spark.executor.cores": "1",
                "spark.executor.memory": "512m",
                "spark.ui.enabled": "true",
                "spark.ui.port": str(page),
                **settings,
            },
        )
        with spark:
            driver = Driver(self, spark, page)
            driver.wait_for(executors)
            yield driver


class Driver:
    """Spark's driver, and the pipelines of a process on it."""

    def __init__(self, site: Site, spark: EmbeddedSpark, page: int) -> None:
        self._site, self._spark = site, spark
        self._pages = f"http://{HOST}:{page}/api/v1/applications"

    def wait_for(self, executors: int) -> None:
        """Return once so many executors are registered."""
        ends = time.monotonic() + _REGISTERED_S
        while len(self._page("executors")) <= executors:  # the driver is one of them
            if time.monotonic() > ends:
                raise SystemExit(f"Spark did not get {executors} executors")
            time.sleep(_LOOK_AGAIN_S)

    def compile(self) -> None:
        """Let Java see what it runs."""
        with self._site.topic(SMALL) as topic:
            for _ in range(COMPILED):
                self._site.fill(topic, SMALL)
                self._site.run(topic, "delta", self._spark.remote, SMALL)

    def costs(self, sink: str, load: Load, rounds: int) -> Mapping[str, float]:
        """Return the median costs of ``rounds`` checkpoints of ``load``."""
        with self._site.topic(load) as topic:
            each = [self._cost(topic, sink, load) for _ in range(WARM_UP + rounds)][WARM_UP:]
        return {name: statistics.median(costs[name] for costs in each) for name in each[0]}

    def _cost(self, topic: str, sink: str, load: Load) -> Mapping[str, float]:
        self._site.fill(topic, load)
        time.sleep(_SETTLED_S)
        before = self._counted()
        self._site.run(topic, sink, self._spark.remote, load)
        time.sleep(_SETTLED_S)
        return {name: figure - before[name] for name, figure in self._counted().items()}

    def _counted(self) -> Mapping[str, float]:
        """Return all that grows with every checkpoint."""
        stages, kafka = self._page("stages?status=complete"), self._site.kafka
        return {
            "process": _cpu_ms(self._site.worker.pid),
            "driver": _cpu_ms(self._spark.pid),
            "returned": sum(stage["resultSize"] for stage in stages) / 1000,
            "tasks": sum(stage["numTasks"] for stage in stages),
            "jobs": len(self._page("jobs")),
            "kafka": kafka.requests() if isinstance(kafka, LoggingKafka) else 0,
            "bucket": self._site.requests,
        }

    def _page(self, name: str) -> list[dict[str, Any]]:
        (application,) = _json(self._pages)
        return _json(f"{self._pages}/{application['id']}/{name}")


def _json(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(url, timeout=_HTTP_S) as answer:
        return list(json.load(answer))


def _cpu_ms(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return (times.user + times.system) * 1000


@contextmanager
def _site(executors: int, kafka: type[EmbeddedKafka] = EmbeddedKafka) -> Iterator[Site]:
    prefix = "eo-growth-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        yield Site(Path(folder), stack, executors, kafka)


def executors(sizes: Sequence[int], rounds: int) -> Iterator[Point]:
    """Costs of a checkpoint into Delta by so many executors."""
    with _site(max(sizes), LoggingKafka) as site:
        for size in sizes:
            with site.driver(size) as driver:
                driver.compile()
                costs = driver.costs("delta", OVER_EXECUTORS, rounds)
            for name, line in _LINES.items():
                yield line, size, costs[name]


def files(sizes: Sequence[int], rounds: int) -> Iterator[Point]:
    """Costs of a checkpoint of so many files: as many as Spark says that it has cores."""
    with _site(EXECUTORS) as site:
        for size in sizes:
            settings = {"spark.default.parallelism": str(size)}
            with site.driver(EXECUTORS, **settings) as driver:
                delta, postgres = (driver.costs(to, OVER_FILES, rounds) for to in _SINKS)
            assert delta["tasks"] == postgres["tasks"] == size
            for name in ("process", "driver", "returned"):
                yield _LINES[name], size, delta[name]
            yield f"Delta: {_LINES['bucket']}", size, delta["bucket"]
            yield f"PostgreSQL: {_LINES['bucket']}", size, postgres["bucket"]
            yield f"PostgreSQL: {_LINES['process']}", size, postgres["process"]


_SINKS = ("delta", "postgres")

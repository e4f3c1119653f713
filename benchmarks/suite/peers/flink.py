"""Apache Flink, in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.suite.errors import PeerMissingError
from benchmarks.suite.jars import Jar, resolved, spark_jars
from benchmarks.suite.peers.peer import ProgramPeer
from benchmarks.suite.peers.structured_streaming import DRIVER, jdbc_url
from benchmarks.suite.room import PROGRAMS
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from benchmarks.suite.workloads.workload import Workload
from eo_pipeline.spark.java import find_java

FLINK = "2.1.1"
KAFKA = "4.0.1-2.0"
JDBC = "4.0.0-2.0"
_CONNECTORS = (
    Jar("org.apache.flink", "flink-sql-connector-kafka", KAFKA),
    Jar("org.apache.flink", "flink-connector-jdbc-core", JDBC),
    Jar("org.apache.flink", "flink-connector-jdbc-postgres", JDBC),
    Jar("org.apache.flink", "flink-parquet", FLINK),
    DRIVER,
)
_S3 = Jar("org.apache.flink", "flink-s3-fs-hadoop", FLINK)
#: What flink-parquet needs of others; pyspark holds them.
_PARQUET = (
    *("parquet-hadoop", "parquet-column", "parquet-common", "parquet-encoding"),
    *("parquet-format-structures", "parquet-jackson", "snappy-java"),
    *("hadoop-client-api", "hadoop-client-runtime", "commons-logging"),
)
_SETTINGS = {
    "parallelism.default": "{cores}",
    "pipeline.object-reuse": "true",
    "execution.runtime-mode": "streaming",
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.dir": "file://{folder}/checkpoints",
    "table.local-time-zone": "UTC",
}


class Flink(ProgramPeer):
    """A bounded SQL job on a MiniCluster."""

    PROGRAM: ClassVar[str] = "Flink"
    PROMISE: ClassVar[str] = (
        "Parquet, Kafka: exactly once. Databases: at least once, or by key. A bounded job "
        "starts again at the topic's beginning, so it has no small runs."
    )
    SETTINGS: ClassVar[str] = (
        "SQL on a MiniCluster, a slot per core, 2 GB, parallel collector, object reuse, a "
        "checkpoint per second; JDBC: 10,000 rows per flush, `reWriteBatchedInserts=true`; "
        "Kafka: `exactly-once`. Warm: next job on the same cluster."
    )

    @classmethod
    def takes(cls, workload: Workload, store: Store) -> bool:
        job = workload.flink
        kind = Store.DELTA if store is Store.PARQUET else store
        return super().takes(workload, kind) and job is not None and store in job.stores

    def install(self) -> None:
        libraries = self._folder / f"libraries-{FLINK}"
        if not (libraries / "pyflink").is_dir():
            self._pip(libraries)
        self._jars()
        if self.workload.in_bucket:
            self._plugins()
        classes = self._folder / "classes"
        compiled = classes / "FlinkJobs.class"
        source = PROGRAMS / "FlinkJobs.java"
        if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
            self._compile(source, classes)

    def versions(self) -> Mapping[str, str]:
        return {"Flink": FLINK, "Kafka connector": KAFKA, "JDBC connector": JDBC}

    @property
    def _folder(self) -> Path:
        return self.room.folder / "flink"

    def _pip(self, libraries: Path) -> None:
        """Flink's own jars come in a Python package; nothing else of it is used."""
        wanted = f"apache-flink-libraries=={FLINK}"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", wanted]
        partial = libraries.with_suffix(".partial")
        try:
            run = subprocess.run(
                [*command, "--upgrade", "--target", str(partial)],
                capture_output=True,
                text=True,
                timeout=self.room.limit_to_install,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PeerMissingError(f"{wanted} took too long to install") from error
        if run.returncode != 0:
            raise PeerMissingError(f"{wanted} could not be installed: {run.stderr[-300:]}")
        partial.rename(libraries)

    def _compile(self, source: Path, classes: Path) -> None:
        compiler = find_java().command.resolve().with_name("javac")
        if not compiler.exists():
            raise PeerMissingError("its job is a Java file, and this Java is without a compiler")
        command = [str(compiler), "-cp", self._class_path(), "-d", str(classes), str(source)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise PeerMissingError(f"its job could not be compiled: {run.stderr[-300:]}")

    def _jars(self) -> Sequence[Path]:
        """The connectors, and what the workload's format needs."""
        more = self.workload.flink.jars if self.workload.flink else ()
        return [
            jar
            for those in (_CONNECTORS, more)
            if those
            for jar in resolved(those, self._folder, self.room.limit_to_install)
        ]

    def _plugins(self) -> Path:
        """A folder with the plugin for buckets, in a folder of its own as Flink wants it."""
        folder = self._folder / "plugins"
        (folder / "s3").mkdir(parents=True, exist_ok=True)
        for jar in resolved([_S3], self._folder, self.room.limit_to_install):
            if not (link := folder / "s3" / jar.name).exists():
                link.symlink_to(jar)
        return folder

    def _s3(self) -> Mapping[str, str]:
        """The cluster's settings for the bucket."""
        if not self.workload.in_bucket:
            return {}
        key, secret = self.room.bucket.keys
        return {
            "s3.endpoint": self.room.bucket.endpoint,
            "s3.endpoint.region": "us-east-1",
            "s3.access-key": key,
            "s3.secret-key": secret,
            "s3.path.style.access": "true",
        }

    def _class_path(self) -> str:
        own = sorted((self._folder / f"libraries-{FLINK}" / "pyflink" / "lib").glob("*.jar"))
        jars = [*own, *self._jars(), *spark_jars(*_PARQUET)]
        return os.pathsep.join(map(str, [self._folder / "classes", *jars]))

    def command(self) -> Sequence[str]:
        opened = ("java.util", "java.lang", "java.net", "java.time", "java.util.concurrent")
        plugins = [f"FLINK_PLUGINS_DIR={self._plugins()}"] if self.workload.in_bucket else []
        return [
            *("/usr/bin/env", *plugins, str(find_java().command)),
            *("-Xmx2g", "-XX:+UseParallelGC", "-Dlog4j2.level=ERROR", "-Duser.timezone=UTC"),
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened),
            *("-cp", self._class_path(), "FlinkJobs", _cores()),
            *(f"{name}={value}" for name, value in self._s3().items()),
        ]

    def line(self, topic: Topic, target: Target) -> str:
        job = self.workload.flink
        assert job is not None
        settings = {
            name: value.format(cores=_cores(), folder=target.folder)
            for name, value in {**_SETTINGS, **job.settings}.items()
        }
        statements = [
            *(f"SET {name} = {value}" for name, value in settings.items()),
            _table("records", job.columns, {**_source(topic), **job.source}),
            _table("output", job.output, self._sink(target), job.partition_by),
            *job.views,
            f"INSERT INTO output {job.query}",
        ]
        script = target.folder / "job.sql"
        script.write_text(self.filled_in("\n;\n".join(statements)))
        return str(script)

    def _sink(self, target: Target) -> Mapping[str, str]:
        if self.store is Store.PARQUET:
            return {
                "connector": "filesystem",
                "path": target.table if target.bucket else target.lake.as_uri(),
                "format": "parquet",
                "parquet.utc-timezone": "true",
            }
        if self.store is Store.KAFKA:
            return {
                "connector": "kafka",
                "topic": target.name,
                "properties.bootstrap.servers": target.bootstrap,
                "properties.transaction.timeout.ms": "600000",
                "format": "json",
                "json.timestamp-format.standard": "ISO-8601",
                "sink.delivery-guarantee": "exactly-once",
                "sink.transactional-id-prefix": target.name,
            }
        return {
            "connector": "jdbc",
            "url": jdbc_url(target),
            "table-name": target.name,
            "sink.buffer-flush.max-rows": "10000",
            "sink.buffer-flush.interval": "1 s",
        }


def _cores() -> str:
    return str(len(os.sched_getaffinity(0)))


def _source(topic: Topic) -> Mapping[str, str]:
    return {
        "connector": "kafka",
        "topic": topic.name,
        "properties.bootstrap.servers": topic.bootstrap,
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
    }


def _table(name: str, columns: str, options: Mapping[str, str], partition_by: str = "") -> str:
    settings = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    partitions = f" PARTITIONED BY (`{partition_by}`)" if partition_by else ""
    return f"CREATE TEMPORARY TABLE {name} ({columns}){partitions} WITH ({settings})"

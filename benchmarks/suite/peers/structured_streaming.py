"""Spark Structured Streaming."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.suite.bucket import Bucket
from benchmarks.suite.jars import Jar, resolved
from benchmarks.suite.peers.peer import ProgramPeer
from benchmarks.suite.room import PROGRAMS, STATE
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from benchmarks.suite.workloads.workload import Workload
from eo_pipeline.embedded.jars import spark_s3_jars
from eo_pipeline.spark.connector import spark_connector_jars

DELTA = Jar("io.delta", "delta-spark_2.13", "4.0.0", alone=False)
ICEBERG = Jar("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.10.1")
DRIVER = Jar("org.postgresql", "postgresql", "42.7.7")


class StructuredStreaming(ProgramPeer):
    """``Trigger.AvailableNow``: a query that reads what is there and ends."""

    PROGRAM: ClassVar[str] = "Structured Streaming"
    PROMISE: ClassVar[str] = (
        "Delta, Iceberg: exactly once. `foreachBatch` and Kafka: at least once. "
        "`Trigger.AvailableNow` ends by itself; offsets are in a checkpoint folder outside the "
        "store."
    )
    SETTINGS: ClassVar[str] = (
        "Same Spark, `local[*]`, 2 GB, parallel collector, one micro-batch; "
        "`kafka.fetch.max.wait.ms=10`, `snapshotPartitions=1`, `batchsize=10000`, "
        "`reWriteBatchedInserts=true`."
    )

    @classmethod
    def takes(cls, workload: Workload, store: Store) -> bool:
        query = workload.streaming
        return super().takes(workload, store) and query is not None and store in query.stores

    def install(self) -> None:
        self._jars()

    def versions(self) -> Mapping[str, str]:
        return {
            "Spark": version("pyspark"),
            "delta-spark": DELTA.version,
            "Iceberg": ICEBERG.version,
            "pgjdbc": DRIVER.version,
        }

    def _jars(self) -> Sequence[Path]:
        folder = self.room.folder / "structured-streaming"
        own = resolved([DELTA, DRIVER], folder, self.room.limit_to_install)
        if self.workload.streaming and (more := self.workload.streaming.jars):
            own += resolved(more, folder, self.room.limit_to_install)
        if self.workload.in_bucket:
            own += spark_s3_jars(STATE)
        if self.store is Store.ICEBERG:
            own += resolved([ICEBERG], folder, self.room.limit_to_install)
        # Scala's library is Spark's own
        return [jar for jar in own if "scala-library" not in jar.name] + [
            *spark_connector_jars(STATE)
        ]

    def command(self) -> Sequence[str]:
        jars = ",".join(map(str, self._jars()))
        return [sys.executable, str(PROGRAMS / "structured_streaming.py"), jars]

    def line(self, topic: Topic, target: Target) -> str:
        query = self.workload.streaming
        assert query is not None
        job: dict[str, Any] = {
            "bootstrap": topic.bootstrap,
            "topic": topic.name,
            "views": query.views,
            "query": query.query,
            "settings": _s3a(target.bucket) if target.bucket else {},
            "checkpoint": str(target.folder / "checkpoint"),
        }
        if self.store is Store.DELTA:
            path = target.table.replace("s3:", "s3a:")
            place = {"path": path, "partition_by": query.partition_by}
            return json.dumps({**job, "sink": "delta", **place})
        if self.store is Store.ICEBERG:
            assert target.bucket is not None, "Iceberg tables are in a bucket"
            job["settings"] |= _catalog(target.bucket)
            path = target.table.replace("s3:", "s3a:")
            place = {"path": path, "table": f"rest.{target.iceberg}"}
            return json.dumps({**job, "sink": "iceberg", **place})
        if self.store is Store.KAFKA:
            return json.dumps({**job, "sink": "kafka", "output": target.name})
        url = jdbc_url(target)
        job |= {"sink": "jdbc", "url": url, "table": target.name}
        if query.into_database:
            job |= {"query": query.into_database, "url": f"{url}&stringtype=unspecified"}
        if query.key:
            job |= {"sink": "upsert", "key": query.key, "dsn": target.dsn}
        return json.dumps(job)


def _catalog(bucket: Bucket) -> Mapping[str, str]:
    """Spark's settings for the catalog ``rest``, whose files Hadoop writes."""
    return {
        "spark.sql.catalog.rest": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.rest.type": "rest",
        "spark.sql.catalog.rest.uri": bucket.catalog,
        "spark.sql.catalog.rest.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    }


def _s3a(bucket: Bucket) -> dict[str, str]:
    """Hadoop's settings for the bucket."""
    key, secret = bucket.keys
    return {
        "spark.hadoop.fs.s3a.endpoint": bucket.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": key,
        "spark.hadoop.fs.s3a.secret.key": secret,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def jdbc_url(target: Target) -> str:
    """The target's database, as Java's driver takes it; several rows an INSERT."""
    place = target.dsn.split("@", 1)[1]
    return f"jdbc:postgresql://{place}?user=postgres&reWriteBatchedInserts=true"

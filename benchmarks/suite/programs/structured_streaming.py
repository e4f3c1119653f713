"""Spark Structured Streaming, ``Trigger.AvailableNow``: a query for each line of stdin.

A line is ``{"bootstrap", "topic", "views", "query", "settings", "sink", "checkpoint", ...}`` with
perhaps ``every``, the time between micro-batches of a query that does not end, and
what the sink needs: ``path`` and ``partition_by`` (delta), ``path`` and ``table`` (iceberg),
``url`` and ``table`` (jdbc; for upsert ``key`` and ``dsn`` too), ``output`` (kafka). ``query`` is
SQL over the stream ``kafka`` and the views; ``settings`` of the first job are Spark's. Argument:
the jars, divided by commas.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    # Delta's default of 50 tasks is meant for large logs
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


JDBC = {"batchsize": "10000", "driver": "org.postgresql.Driver"}


def session(jars: str, more: dict[str, str]) -> SparkSession:
    """Spark on this machine's cores."""
    builder = SparkSession.Builder().master("local[*]").config("spark.jars", jars)
    for key, value in {**SETTINGS, **more}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def rows(spark: SparkSession, job: dict[str, Any]) -> DataFrame:
    """The stream of the query's rows."""
    reader = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": job["bootstrap"],
            "subscribe": job["topic"],
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            # else every task that reaches the log's end waits there for half a second
            "kafka.fetch.max.wait.ms": "10",
        }
    )
    reader.load().createOrReplaceTempView("kafka")
    for name, statement in job["views"].items():
        spark.sql(statement).createOrReplaceTempView(name)
    return spark.sql(job["query"])


def upsert(batch: DataFrame, job: dict[str, Any]) -> None:
    """The newest row of each key, by way of a table beside the target."""
    newest = Window.partitionBy(job["key"]).orderBy(F.col("offset").desc())
    rows = batch.withColumn("place", F.row_number().over(newest)).where("place = 1")
    rows = rows.drop("place", "offset")
    staging = f"{job['table']}_staging"
    rows.write.mode("overwrite").options(**JDBC).jdbc(job["url"], staging)
    columns = ", ".join(rows.columns)
    replaced = ", ".join(f"{name} = EXCLUDED.{name}" for name in rows.columns)
    with psycopg.connect(job["dsn"]) as database:
        database.execute(
            f"INSERT INTO {job['table']} ({columns}) SELECT {columns} FROM {staging}"
            f" ON CONFLICT ({job['key']}) DO UPDATE SET {replaced}".encode()
        )
        database.execute(f"DROP TABLE {staging}".encode())


def run(spark: SparkSession, job: dict[str, Any]) -> None:
    """Everything that is new, then the end."""
    frame = rows(spark, job)
    if job["sink"] == "kafka":
        frame = frame.select(F.to_json(F.struct("*")).alias("value"))
    every = job.get("every")
    trigger = {"processingTime": every} if every else {"availableNow": True}
    writer = frame.writeStream.trigger(**trigger)
    writer = writer.option("checkpointLocation", job["checkpoint"])
    if job["sink"] == "delta":
        if job["partition_by"]:
            writer = writer.partitionBy(job["partition_by"])
        query = writer.format("delta").start(job["path"])
    elif job["sink"] == "iceberg":
        spark.sql("CREATE NAMESPACE IF NOT EXISTS rest.lake")
        query = writer.format("iceberg").option("path", job["path"]).toTable(job["table"])
    elif job["sink"] == "kafka":
        options = {"kafka.bootstrap.servers": job["bootstrap"], "topic": job["output"]}
        query = writer.format("kafka").options(**options).start()
    else:

        def insert(batch: DataFrame, _: int) -> None:
            if job["sink"] == "upsert":
                upsert(batch, job)
            else:
                batch.write.mode("append").options(**JDBC).jdbc(job["url"], job["table"])

        query = writer.foreachBatch(insert).start()
    query.awaitTermination()


def main() -> None:
    """A query for each line."""
    [jars] = sys.argv[1:]
    spark = None
    for line in sys.stdin:
        started = time.perf_counter()
        job = json.loads(line)
        spark = spark or session(jars, job["settings"])
        run(spark, job)
        sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started}) + "\n")
        sys.stdout.flush()
    if spark is not None:
        spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main()

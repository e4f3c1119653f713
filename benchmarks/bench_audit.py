"""How long an audit takes beside the run it proves: ``python -m benchmarks.bench_audit [RECORDS]``.

Starts Kafka, PostgreSQL and a warm Spark of its own, writes JSON records to a topic of eight
partitions, materializes them in PostgreSQL in checkpoints of 100,000 records, and audits the table
twice; the second time everything is warm. Then one row is deleted, and the audit must find it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from benchmarks.suite.topic import create, dealt_out, put
from eo_pipeline import Pipeline
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark.connector import spark_connector_jars

STATE = Path(__file__).parents[1] / ".eo"
RECORDS = 1_000_000
A_CHECKPOINT = 100_000
PARTITIONS = 8


def fill(bootstrap_servers: str, records: int) -> None:
    """Records of about 100 bytes, dealt out to the partitions in turn."""
    create(bootstrap_servers, "events", PARTITIONS)
    more = {"place": "somewhere", "note": "x" * 30}
    made = (
        json.dumps({"id": i, "name": f"record number {i}", **more}).encode() for i in range(records)
    )
    put(bootstrap_servers, "events", dealt_out(made, PARTITIONS))


@contextmanager
def world(scratch: Path, records: int) -> Iterator[Pipeline]:
    """The pipeline, with its servers around it."""
    with ExitStack() as servers:
        broker = EmbeddedKafka(scratch / "kafka", jars=kafka_broker_jars(STATE))
        kafka = servers.enter_context(broker)
        database = servers.enter_context(EmbeddedPostgres(scratch / "postgres"))
        spark = EmbeddedSpark(scratch / "spark", jars=spark_connector_jars(STATE))
        remote = servers.enter_context(spark).remote
        fill(kafka.bootstrap_servers, records)
        yield Pipeline.from_config(
            {
                "name": "events",
                "source": {
                    "bootstrap_servers": kafka.bootstrap_servers,
                    "topics": ["events"],
                    "value_schema": "id BIGINT NOT NULL, name STRING, place STRING, note STRING",
                    "max_records": A_CHECKPOINT,
                },
                "sink": {"type": "postgres", "dsn": database.dsn, "table": "events"},
                "staging": str(scratch / "staging"),
                "spark": {"remote": remote},
            }
        )


def delete_one_row(pipeline: Pipeline) -> None:
    dsn = pipeline.sink.dsn.get_secret_value()  # type: ignore[attr-defined]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("delete from events where id = 0")


def timed(pipeline: Pipeline, records: int, *, passes: bool) -> str:
    """One audit, which must pass or fail as it should."""
    started = time.perf_counter()
    report = pipeline.audit()
    spent = time.perf_counter() - started
    if report.passed is not passes:
        raise SystemExit(str(report))
    parts = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in report.seconds.items())
    return f"{spent:5.1f} s, {records / spent:,.0f} records/s ({parts})"


def main() -> None:
    """Print a line for each step."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    with (
        tempfile.TemporaryDirectory(prefix="eo-audit-") as folder,
        world(Path(folder), records) as pipeline,
    ):
        started = time.perf_counter()
        committed = pipeline.run().rows
        spent = time.perf_counter() - started
        sys.stdout.write(f"run:          {spent:5.1f} s, {committed / spent:,.0f} records/s\n")
        sys.stdout.write(f"first audit:  {timed(pipeline, records, passes=True)}\n")
        sys.stdout.write(f"second audit: {timed(pipeline, records, passes=True)}\n")
        delete_one_row(pipeline)
        sys.stdout.write(f"one row gone: {timed(pipeline, records, passes=False)}\n")


if __name__ == "__main__":
    main()

"""What a run costs that finds a handful of new records: ``python -m benchmarks.bench_small``.

Starts Kafka, PostgreSQL and a warm Spark of its own. Each round appends a few records to a topic
that has been read to its end, and runs the pipeline, once as it comes and once with Kafka's own
``fetch.max.wait.ms`` of 500, in turn: the two share the machine's moods, so look at their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline import Pipeline
from eo_pipeline.embedded.jars import kafka_broker_jars, spark_connector_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.spark import EmbeddedSpark

STATE = Path(__file__).parents[1] / ".eo"
BEFORE = 10_000
CASES = {"as it comes": {}, "500 ms": {"kafka.fetch.max.wait.ms": "500"}}


@contextmanager
def servers(scratch: Path) -> Iterator[tuple[EmbeddedKafka, EmbeddedPostgres, EmbeddedSpark]]:
    """All three, on this machine."""
    with ExitStack() as stack:
        yield (
            stack.enter_context(EmbeddedKafka(scratch / "kafka", jars=kafka_broker_jars(STATE))),
            stack.enter_context(EmbeddedPostgres(scratch / "postgres")),
            stack.enter_context(EmbeddedSpark(scratch / "spark", jars=spark_connector_jars(STATE))),
        )


def pipeline(
    topic: str, options: dict[str, str], kafka: str, dsn: str, spark: str, staging: Path
) -> Pipeline:
    """The pipeline from ``topic`` to a table of the same name."""
    config: dict[str, Any] = {
        "name": topic,
        "source": {
            "bootstrap_servers": kafka,
            "topics": [topic],
            "value_schema": "id BIGINT NOT NULL, name STRING",
            "spark_options": options,
        },
        "sink": {"type": "postgres", "dsn": dsn, "table": topic},
        "staging": str(staging),
        "spark": {"remote": spark},
    }
    return Pipeline.from_config(config)


def append(kafka: str, topic: str, records: int, partitions: int) -> None:
    """``records`` at the end of ``topic``, dealt out to its partitions in turn."""
    producer = Producer({"bootstrap.servers": kafka, "log_level": 0})
    for n in range(records):
        value = json.dumps({"id": n, "name": f"record number {n}"}).encode()
        producer.produce(topic, value, partition=n % partitions)
    producer.flush()


def seconds(pipeline: Pipeline, records: int) -> float:
    """One run, which must find ``records``."""
    started = time.perf_counter()
    found = pipeline.run().rows
    spent = time.perf_counter() - started
    if found != records:
        raise SystemExit(f"{found} rows instead of {records}")
    return spent


def main() -> None:
    """Print the median of each case, and how they compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100, help="new ones at each run")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eo-small-") as folder, ExitStack() as stack:
        kafka, postgres, spark = stack.enter_context(servers(Path(folder)))
        names = {f"case_{n}": options for n, options in enumerate(CASES.values())}
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        new = [NewTopic(name, asked.partitions, 1) for name in names]
        for made in admin.create_topics(new).values():
            made.result()
        spent: dict[str, list[float]] = {name: [] for name in names}
        places = kafka.bootstrap_servers, postgres.dsn, spark.remote, Path(folder) / "staging"
        for turn in range(asked.rounds + 1):
            records = asked.records if turn else BEFORE
            for name, options in names.items():
                append(kafka.bootstrap_servers, name, records, asked.partitions)
                took = seconds(pipeline(name, options, *places), records)
                if turn:  # the first one is everybody's warming up
                    spent[name].append(took)
    medians = [statistics.median(each) for each in spent.values()]
    for case, median, each in zip(CASES, medians, spent.values(), strict=True):
        sys.stdout.write(f"{case:<12} {median:6.2f} s, best {min(each):.2f} s\n")
    sys.stdout.write(f"{'ratio':<12} {medians[1] / medians[0]:6.1f}\n")


if __name__ == "__main__":
    main()

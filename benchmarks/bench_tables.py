"""Several tables of one topic beside one table of it: ``python -m benchmarks.bench_tables``.

Starts Kafka, PostgreSQL and a warm Spark of its own. The same records go into one table, then into
three, by their key and by a field of their value, into three of two hundred, and with a transform
into one and three; into Iceberg tables and into PostgreSQL, in a first checkpoint and a next one of
as many, again and again: the rounds share the machine's moods, so look at the ratios. Three tables
are to take at most 1.3 times one; two hundred, of which three take records, 1.5 times three.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.suite.topic import create, put
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark.connector import spark_connector_jars

STATE = Path(__file__).parents[1] / ".eo"
PARTITIONS = 8
MANY = 200
SCHEMA = "id BIGINT NOT NULL, name STRING, amount DOUBLE, kind STRING, note STRING"

TRANSFORM = "benchmarks.bench_tables:derived"

#: Rounds until the server has compiled what it runs.
WARM_UP = 1

Tables = Sequence[Mapping[str, str]]


def derived(records: DataFrame) -> DataFrame:
    """Return the records with two more columns."""
    return records.withColumns({"twice": F.col("amount") * 2, "upper": F.upper("name")})


#: The tables of each case.
CASES: Mapping[str, Tables] = {
    "one": [{"name": "t"}],
    "three by key": [{"name": k, "where": f"key = '{k}'"} for k in "abc"],
    "three by value": [
        {"name": k, "where": f"get_json_object(value, '$.kind') = '{k}'"} for k in "abc"
    ],
    "200, three of them": [
        {"name": f"t{n}", "where": f"key = '{'abc'[n] if n < 3 else n}'"} for n in range(MANY)
    ],
    "one, a transform": [{"name": "t", "transform": TRANSFORM}],
    "three by key, a transform": [
        {"name": k, "where": f"key = '{k}'", "transform": TRANSFORM} for k in "abc"
    ],
}

#: Of a case the one that it is divided by, and the most that the ratio is to be.
GOALS = {
    "three by key": ("one", 1.3),
    "three by value": ("one", 1.3),
    "200, three of them": ("three by key", 1.5),
    "three by key, a transform": ("one, a transform", 1.3),
}


def value(n: int) -> bytes:
    """About 200 bytes."""
    fields = {"id": n, "name": f"customer {n % 9973}", "amount": n * 0.25, "kind": "abc"[n % 3]}
    return json.dumps({**fields, "note": "x" * 100}).encode()


@contextmanager
def servers(scratch: Path, records: int) -> Iterator[tuple[str, str, EmbeddedSpark]]:
    """Kafka with the topic, PostgreSQL, and Spark."""
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka(scratch / "kafka", jars=kafka_broker_jars(STATE)))
        database = stack.enter_context(EmbeddedPostgres(scratch / "postgres"))
        jars = spark_connector_jars(STATE)
        spark = stack.enter_context(EmbeddedSpark(scratch / "spark", jars=jars))
        create(kafka.bootstrap_servers, "events", PARTITIONS)
        values = ((value(n), n // 3 % PARTITIONS) for n in range(records))
        keys = ("abc"[n % 3].encode() for n in range(records))
        put(kafka.bootstrap_servers, "events", values, keys)
        yield kafka.bootstrap_servers, database.dsn, spark


def run(
    store: str,
    tables: Tables,
    records: int,
    kafka: str,
    dsn: str,
    spark: EmbeddedSpark,
    folder: Path,
) -> list[float]:
    """Seconds of one pipeline's run of each half of the topic; the first one makes the tables."""
    sink: dict[str, Any] = {"type": "iceberg", "namespace": "n", "warehouse": str(folder / "lake")}
    if store == "PostgreSQL":
        sink = {"type": "postgres", "dsn": dsn, "schema": "n"}
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("drop schema if exists n cascade")
            connection.execute("create schema n")
    pipeline = Pipeline.from_config(
        {
            "name": "bench",
            "source": {
                "bootstrap_servers": kafka,
                "topics": "events",
                "value_schema": SCHEMA,
                "max_records": records // 2,
            },
            "sink": sink,
            "tables": tables,
            "staging": str(folder / "staging"),
            "spark": {"remote": spark.remote},
        }
    )
    took = []
    for half in (1, 2):
        begun = time.perf_counter()
        counts = pipeline.run(max_checkpoints=1).head.counts
        took.append(time.perf_counter() - begun)
        if not counts.records * half == counts.rows_total > 0:
            raise RuntimeError(f"{counts.rows_total} rows of {counts.records} records")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        with servers(scratch, options.records) as running:
            for store in ("Iceberg", "PostgreSQL"):
                took: dict[str, list[list[float]]] = {case: [] for case in CASES}
                for number in range(WARM_UP + options.rounds):
                    for case, tables in CASES.items():
                        folder = scratch / f"{store} {case} {number}"
                        took[case].append(run(store, tables, options.records, *running, folder))
                for half, name in enumerate(("first", "next")):
                    of_half = {c: [of[half] for of in took[c][WARM_UP:]] for c in CASES}
                    report(f"{store}, {name}", of_half)


def report(store: str, took: Mapping[str, Sequence[float]]) -> None:
    """Medians, and the ratios round by round."""
    for case, rounds in took.items():
        line = f"{store}, {case}: {statistics.median(rounds):.2f} s"
        if case in GOALS:
            other, most = GOALS[case]
            ratios = [a / b for a, b in zip(rounds, took[other], strict=True)]
            line += f", {statistics.median(ratios):.2f} of {other}; at most {most}"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

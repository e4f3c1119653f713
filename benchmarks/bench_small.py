"""What a run costs that finds a handful of new records: ``python -m benchmarks.bench_small``.

Starts Kafka, PostgreSQL and a warm Spark of its own. Each round appends a few records to topics
that have been read to their ends, and runs a pipeline of each case, all cases in turn: they share
the machine's moods, so look at their ratios. ``--against`` another checkout runs that one's code as
well, in processes of its own, with the same servers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.suite.topic import put
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark.connector import spark_connector_jars

CHECKOUT = Path(__file__).parents[1]
STATE = CHECKOUT / ".eo"
BEFORE = 10_000


class Case(NamedTuple):
    """What is compared: whose code, where Spark runs, where rows go, partitions of the topic."""

    code: str
    spark: str
    sink: str
    partitions: int

    @property
    def topic(self) -> str:
        return f"{self.code}_{self.spark}_{self.sink}_{self.partitions}"


class Servers(NamedTuple):
    """All on this machine; ``spark`` is None if no case wants it."""

    kafka: EmbeddedKafka
    postgres: EmbeddedPostgres
    spark: EmbeddedSpark | None
    scratch: Path


@contextmanager
def servers(scratch: Path, *, connect: bool) -> Iterator[Servers]:
    """Started, and ended with the block."""
    with ExitStack() as stack:
        jars = spark_connector_jars(STATE)
        warm = EmbeddedSpark(scratch / "spark", jars=jars) if connect else None
        yield Servers(
            stack.enter_context(EmbeddedKafka(scratch / "kafka", jars=kafka_broker_jars(STATE))),
            stack.enter_context(EmbeddedPostgres(scratch / "postgres")),
            stack.enter_context(warm) if warm else None,
            scratch,
        )


class Worker:
    """A process with the code of one ``checkout``; see :mod:`benchmarks.small_worker`."""

    def __init__(self, checkout: Path) -> None:
        jars = str(spark_connector_jars(STATE)[0].parent)
        environment = os.environ | {"PYTHONPATH": str(checkout), "EO_SPARK_JARS": jars}
        script = Path(__file__).with_name("small_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def run(self, config: dict[str, Any], records: int) -> dict[str, Any]:
        """One run of the pipeline."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"config": config, "records": records}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the worker ended; it said why")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def config(case: Case, on: Servers) -> dict[str, Any]:
    """The pipeline of ``case``."""
    sink = (
        {"type": "postgres", "dsn": on.postgres.dsn, "table": case.topic}
        if case.sink == "postgres"
        else {"type": case.sink, "path": str(on.scratch / case.topic)}
    )
    return {
        "name": case.topic,
        "source": {
            "bootstrap_servers": on.kafka.bootstrap_servers,
            "topics": [case.topic],
            "value_schema": "id BIGINT NOT NULL, name STRING",
        },
        "sink": sink,
        "staging": str(on.scratch / "staging"),
        "spark": {"remote": on.spark.remote} if case.spark == "connect" and on.spark else {},
    }


def append(kafka: str, topic: str, records: int, partitions: int, skew: float) -> None:
    """``records`` at the end of ``topic``: a share ``skew`` in its first partition, the others
    dealt out to all in turn.
    """
    put(
        kafka,
        topic,
        (
            (
                json.dumps({"id": n, "name": f"record number {n}"}).encode(),
                0 if n < records * skew else n % partitions,
            )
            for n in range(records)
        ),
    )


def make_topics(kafka: str, cases: Sequence[Case]) -> None:
    """One for each case."""
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    new = [NewTopic(case.topic, case.partitions, 1) for case in cases]
    for made in admin.create_topics(new).values():
        made.result()


def measure(asked: argparse.Namespace, cases: Sequence[Case]) -> dict[Case, list[dict[str, Any]]]:
    """What every round found, without the rounds that warm up."""
    spent: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
    checkouts = {"this": CHECKOUT, "that": asked.against}
    with tempfile.TemporaryDirectory(prefix="eo-small-") as folder, ExitStack() as stack:
        connect = "connect" in asked.spark
        on = stack.enter_context(servers(Path(folder), connect=connect))
        make_topics(on.kafka.bootstrap_servers, cases)
        workers = {
            key: stack.enter_context(Worker(checkouts[key[0]]))
            for key in dict.fromkeys((case.code, case.spark) for case in cases)
        }
        for turn in range(asked.warm_up + asked.rounds):
            records = asked.records if turn else max(BEFORE, asked.records)
            for case in cases:
                place = on.kafka.bootstrap_servers
                append(place, case.topic, records, case.partitions, asked.skew)
                found = workers[case.code, case.spark].run(config(case, on), records)
                if turn >= asked.warm_up:
                    spent[case].append(found)
    return spent


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of one case, in seconds."""
    seconds = [each["seconds"] for each in found]
    phases = {
        name: statistics.median(each["phases"].get(name, 0.0) for each in found)
        for name in found[0]["phases"]
    }
    return {"p50": statistics.median(seconds), "best": min(seconds), "phases": phases}


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=8_000, help="new ones at each run")
    parser.add_argument("--partitions", type=int, nargs="+", default=[8])
    parser.add_argument("--skew", type=float, default=0.0, help="share of the first partition")
    parser.add_argument("--sinks", nargs="+", default=["delta", "postgres"])
    parser.add_argument("--spark", nargs="+", default=["connect"], help="connect, classic")
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all figures there")
    return parser.parse_args()


def main() -> None:
    """Print the medians of each case."""
    asked = arguments()
    codes = ["this", "that"] if asked.against else ["this"]
    chosen = product(asked.partitions, asked.sinks, asked.spark, codes)
    cases = [Case(code, spark, sink, n) for n, sink, spark, code in chosen]
    found = {case: summary(each) for case, each in measure(asked, cases).items()}
    for case, each in found.items():
        phases = "  ".join(f"{name} {s * 1000:.0f}" for name, s in each["phases"].items())
        told = f"{case.topic:<32} {each['p50']:6.3f} s, best {each['best']:.3f} s; ms: {phases}"
        sys.stdout.write(told + "\n")
    if asked.json:
        figures = [{**case._asdict(), **each} for case, each in found.items()]
        asked.json.write_text(json.dumps({"records": asked.records, "cases": figures}, indent=1))


if __name__ == "__main__":
    main()

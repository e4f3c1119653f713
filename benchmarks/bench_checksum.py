"""What the checksum costs that staging makes of rows: ``python -m benchmarks.bench_checksum``.

Starts Kafka and a warm Spark of its own, writes JSON records of about 200 bytes, and stages the
same ranges for a Parquet table, read, decoded and written, once with the checksum and once without,
in turn: the two share the machine's moods, so look at their ratio. What counts is the processor
time that Spark takes, of which others on the machine take nothing. At most 1.05.
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
from dataclasses import replace
from pathlib import Path

import psutil
from pyspark.sql.types import DataType

from benchmarks.suite.topic import create, dealt_out, put
from eo_pipeline.batch.stage import Stager
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.sinks.parquet import ParquetSink
from eo_pipeline.spark import SparkProvider, SparkSettings
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.staging.attempt import StagingArea
from eo_pipeline.testing import first_entry

STATE = Path(__file__).parents[1] / ".eo"
PARTITIONS = 8
RATIO_MAX = 1.05

#: Rounds until the server has compiled what it runs.
WARM_UP = 2
SCHEMA = (
    "id BIGINT NOT NULL, at TIMESTAMP, carrier STRING, flight INT, origin STRING, dest STRING, "
    "distance DOUBLE, delay INT, note STRING"
)


class WithoutChecksum(ParquetSink):
    """The same table, of which nothing is asked later."""

    def gives_back(self, data_type: DataType) -> bool:  # noqa: ARG002
        return False


def fill(bootstrap_servers: str, records: int) -> None:
    """Records of about 200 bytes, dealt out to the partitions in turn."""
    create(bootstrap_servers, "events", PARTITIONS)
    put(bootstrap_servers, "events", dealt_out(map(flight, range(records)), PARTITIONS))


def flight(n: int) -> bytes:
    """The record of that number."""
    value = {
        "id": n,
        "at": f"2013-01-{n % 28 + 1:02}T{n % 24:02}:00:00Z",
        "carrier": "UA",
        "flight": n % 5000,
        "origin": "EWR",
        "dest": "IAH",
        "distance": n % 4000 + 0.5,
        "delay": n % 60 - 10,
        "note": f"{n:040}",
    }
    return json.dumps(value).encode()


@contextmanager
def servers(scratch: Path, records: int) -> Iterator[tuple[KafkaSource, SparkProvider, int]]:
    """A topic with ``records``, and a Spark server and its process."""
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka(scratch / "kafka", jars=kafka_broker_jars(STATE)))
        jars = spark_connector_jars(STATE)
        spark = stack.enter_context(EmbeddedSpark(scratch / "spark", jars=jars))
        fill(kafka.bootstrap_servers, records)
        source = KafkaSource(
            bootstrap_servers=kafka.bootstrap_servers, topics=("events",), value_schema=SCHEMA
        )
        yield source, SparkSettings(remote=spark.remote).session, spark.pid


def ranges(source: KafkaSource) -> tuple[tuple[OffsetRange, ...], dict[str, str]]:
    """All that the topic holds, and its id."""
    cluster = KafkaAdmin(source).cluster()
    found = [(TopicPartition("events", n), n) for n in range(PARTITIONS)]
    read = (OffsetRange("events", n, 0, cluster.bounds[tp].end) for tp, n in found)
    return tuple(read), dict(cluster.topic_ids)


def main() -> None:
    """Print a line for each round and the ratio of the medians; fails above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eo-checksum-") as folder:
        scratch = Path(folder)
        with servers(scratch, arguments.records) as world:
            busy, waited = _compared(*world, scratch, arguments.rounds)
    sys.stdout.write(
        f"medians: processor time {busy:.3f}, at most {RATIO_MAX}; time {waited:.3f}\n"
    )
    raise SystemExit(0 if busy <= RATIO_MAX else 1)


def _compared(
    source: KafkaSource, spark: SparkProvider, pid: int, scratch: Path, rounds: int
) -> tuple[float, float]:
    """The ratios of the medians of processor time and time."""
    read, topic_ids = ranges(source)
    area, head = StagingArea(scratch / "staging", "bench"), first_entry("bench")
    spent: dict[type[ParquetSink], list[tuple[float, float]]] = {
        WithoutChecksum: [],
        ParquetSink: [],
    }
    for turn in range(-WARM_UP, rounds):
        cases = list(spent) if turn % 2 else list(spent)[::-1]
        for case in cases:
            stager = Stager(source, case(path=str(scratch / "table")), None, lineage=True)
            child = head.child(Operation.FORWARD, "bench", {})
            head = replace(child, ranges=read, topic_ids=topic_ids)
            attempt = area.begin(head)
            started, busy = time.perf_counter(), _busy(pid)
            _, counts = stager.stage(spark(), head, attempt)
            took = _busy(pid) - busy, time.perf_counter() - started
            attempt.delete()
            assert (counts.checksum is None) is (case is WithoutChecksum)
            sys.stdout.write(f"{turn:3} {case.__name__:16} {took[0]:6.2f} s of {took[1]:6.2f} s\n")
            sys.stdout.flush()
            if turn >= 0:
                spent[case].append(took)
    without, with_it = (list(zip(*seconds, strict=True)) for seconds in spent.values())
    busy, waited = (
        statistics.median(more) / statistics.median(less)
        for more, less in zip(with_it, without, strict=True)
    )
    return busy, waited


def _busy(pid: int) -> float:
    """Processor seconds of a process and those it started."""
    server = psutil.Process(pid)
    times = [each.cpu_times() for each in (server, *server.children(recursive=True))]
    return sum(each.user + each.system for each in times)


if __name__ == "__main__":
    main()

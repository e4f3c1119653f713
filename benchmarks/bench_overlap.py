"""What staging the next checkpoint during a commit gives: ``python -m benchmarks.bench_overlap``.

Starts Kafka, PostgreSQL and a warm Spark of its own. Each round reads one topic from its beginning
into new tables, in many checkpoints: with ``overlap`` and without, straight to the server and
through a line that carries so many bytes a second, behind which COPY waits for the line and not for
cores. All in turn: they share the machine's moods, so look at the ratios of each round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.bench_small import STATE, Servers, servers
from benchmarks.suite.topic import put
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark.connector import spark_connector_jars

TOPIC = "overlap"
HOST = "127.0.0.1"
PIECE = 64 * 1024


class Case(NamedTuple):
    """Which way the rows take, and whether the next ones are staged meanwhile."""

    line: str
    overlap: bool

    @property
    def name(self) -> str:
        return f"{self.line}_{'overlap' if self.overlap else 'plain'}"


class Found(NamedTuple):
    """One catch-up: seconds by the clock, and summed over its checkpoints."""

    seconds: float
    stage_s: float
    commit_s: float


def carry(source: socket.socket, target: socket.socket, bytes_per_second: float | None) -> None:
    """Pass on what comes, not faster than that."""
    due = time.monotonic()
    with suppress(OSError):
        while data := source.recv(PIECE):
            if bytes_per_second:
                due = max(due, time.monotonic() - 0.05) + len(data) / bytes_per_second
                time.sleep(max(0.0, due - time.monotonic()))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def serve(listener: socket.socket, port: int, bytes_per_second: float) -> None:
    """A line to ``port``: what a client sends is slowed down, answers are not."""
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((HOST, port))
        # what lies in buffers has not waited for the line
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        for way in ((client, server, bytes_per_second), (server, client, None)):
            threading.Thread(target=carry, args=way, daemon=True).start()


@contextmanager
def slow_line(port: int, bytes_per_second: float) -> Iterator[int]:
    """The port of a line in a process of its own."""
    with socket.create_server((HOST, 0)) as listener:
        asked = (listener, port, bytes_per_second)
        line = multiprocessing.get_context("spawn").Process(target=serve, args=asked, daemon=True)
        line.start()
        try:
            yield listener.getsockname()[1]
        finally:
            line.kill()
            line.join()


def fill(kafka: str, records: int, partitions: int) -> None:
    """A topic of records of 200 bytes."""
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result()
    text = "x" * 150
    values = (
        json.dumps({"id": n, "name": f"record number {n}", "text": text}).encode()
        for n in range(records)
    )
    put(kafka, TOPIC, ((value, n % partitions) for n, value in enumerate(values)))


def catch_up(on: Servers, case: Case, port: int, number: int, a_checkpoint: int) -> Found:
    """Read all of it into a new table."""
    name = f"{case.name}_{number}"
    dsn = make_conninfo(on.postgres.dsn, port=port)
    assert on.spark is not None
    config: dict[str, Any] = {
        "name": name,
        "source": {
            "bootstrap_servers": on.kafka.bootstrap_servers,
            "topics": [TOPIC],
            "value_schema": "id BIGINT NOT NULL, name STRING, text STRING",
            "max_records": a_checkpoint,
        },
        "sink": {"type": "postgres", "dsn": dsn, "table": name},
        "staging": str(on.scratch / "staging"),
        "spark": {"remote": on.spark.remote},
        "inline_records": 0,
        "overlap": case.overlap,
    }
    began = time.perf_counter()
    report = Pipeline.from_config(config).run()
    seconds = time.perf_counter() - began
    of_phase = {
        phase: sum(each.seconds.get(phase, 0.0) for each in report.checkpoints)
        for phase in ("stage", "commit")
    }
    return Found(seconds, of_phase["stage"], of_phase["commit"])


def measure(asked: argparse.Namespace) -> dict[Case, list[Found]]:
    """Every round's figures, without those that warm up."""
    cases = [Case(line, overlap) for line, overlap in product(("slow", "direct"), (False, True))]
    found: dict[Case, list[Found]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(prefix="eo-overlap-") as folder:
        os.environ["EO_SPARK_JARS"] = str(spark_connector_jars(STATE)[0].parent)
        with servers(Path(folder), connect=True) as on:
            fill(on.kafka.bootstrap_servers, asked.records, asked.partitions)
            direct = int(conninfo_to_dict(on.postgres.dsn)["port"])
            with slow_line(direct, asked.megabytes * 1e6) as slow:
                ports = {"slow": slow, "direct": direct}
                for number in range(asked.warm_up + asked.rounds):
                    for case in cases:
                        each = catch_up(on, case, ports[case.line], number, asked.a_checkpoint)
                        tell(f"{number} {case.name}", each)
                        if number >= asked.warm_up:
                            found[case].append(each)
    return found


def tell(name: str, found: Found) -> None:
    told = f"{found.seconds:6.1f} s, staging {found.stage_s:.1f} s, commits {found.commit_s:.1f} s"
    sys.stdout.write(f"{name:<20} {told}\n")
    sys.stdout.flush()


def ratios(found: dict[Case, list[Found]], line: str) -> list[float]:
    """With overlap, of without, round by round."""
    both = zip(found[Case(line, True)], found[Case(line, False)], strict=True)
    return [overlapped.seconds / plain.seconds for overlapped, plain in both]


def main() -> None:
    """Print every catch-up, the medians, and the ratios of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--a-checkpoint", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=20.0, help="a second, of the slow line")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1)
    found = measure(parser.parse_args())
    for case, each in found.items():
        tell(f"median {case.name}", Found(*map(statistics.median, zip(*each, strict=True))))
    for line in ("slow", "direct"):
        told = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios(found, line)))
        sys.stdout.write(f"{line}: with overlap of without: {told}\n")


if __name__ == "__main__":
    main()

"""From a record's arrival in Kafka to its row in the table, through Dagster's sensors:
``python -m benchmarks.bench_arrival``.

Starts Kafka, PostgreSQL, a warm Spark and ``dagster dev`` with a project of one pipeline whose lag
sensor is on. Then a record is written, at moments that have nothing to do with the sensor's, and
the table is asked until it holds it; again and again. Dagster's own times tell where it went.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.bench_small import STATE, Servers, servers
from eo_pipeline.embedded.ports import free_port
from eo_pipeline.spark.connector import spark_connector_jars
from tests.dagster.projects import write_project

#: Moments of one record on its way, in their order, and what each next one waited for.
_PARTS = {
    "tick": "the sensor looked",
    "launched": "the run was taken from the queue",
    "started": "its process was up",
    "planned": "its step began",
    "visible": "read, staged, committed",
}


def project_of(folder: Path, on: Servers, topic: str, automation: dict[str, float]) -> str:
    """A Dagster project with one pipeline from ``topic``, and the settings of docs/dagster.md.

    Returns the name of its package.
    """
    pipeline = {
        "name": topic,
        "source": {
            "bootstrap_servers": on.kafka.bootstrap_servers,
            "topics": [topic],
            "value_schema": "id BIGINT NOT NULL",
        },
        "sink": {"type": "postgres", "dsn": on.postgres.dsn, "table": topic},
        "staging": str(folder / "staging"),
        "sensors": "running",
        **automation,
    }
    document = json.dumps(pipeline)  # which is YAML, too
    package = write_project(folder, document, name="pipeline")
    settings = Path(__file__).parents[1] / "dagster_defs" / "dagster.yaml"
    home = folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(settings.read_text())
    return package.name


@contextmanager
def dagster_dev(folder: Path, package: str, on: Servers) -> Iterator[None]:
    """``dagster dev`` of ``package`` while the block lasts."""
    jars = str(spark_connector_jars(STATE)[0].parent)
    remote = {"SPARK_REMOTE": on.spark.remote} if on.spark else {}
    environment = {
        **os.environ,
        **remote,
        "EO_SPARK_JARS": jars,
        "DAGSTER_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[1])]),
    }
    command = [sys.executable, "-m", "dagster", "dev", "-m", f"{package}.definitions"]
    with (folder / "dagster.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "-p", str(free_port())],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield
        except SystemExit:
            sys.stderr.write((folder / "dagster.log").read_text()[-3000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)


class Table:
    """The rows, from outside."""

    def __init__(self, dsn: str, name: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._name = name

    def wait_for(self, number: int, patience_s: float = 90.0) -> float:
        """When the row was there."""
        deadline = time.time() + patience_s
        while time.time() < deadline:
            try:
                found = self._connection.execute(
                    f"select 1 from {self._name} where id = {number}"
                ).fetchone()
            except psycopg.errors.UndefinedTable:
                found = None
            if found:
                return time.time()
            time.sleep(0.02)
        raise SystemExit(
            f"record {number} did not arrive within {patience_s:g} s; Dagster's log says why"
        )


def parts(instance: dg.DagsterInstance, arrived: float, visible: float) -> dict[str, float]:
    """Seconds of each of :data:`_PARTS`, by the run that was made for the record."""
    runs = instance.get_run_records(limit=20)
    made = [run for run in runs if run.create_timestamp.timestamp() >= arrived]
    run = min(made, key=lambda each: each.create_timestamp)
    kinds = dg.DagsterEventType
    wanted = {
        kinds.PIPELINE_STARTING: "launched",
        kinds.PIPELINE_START: "started",
        kinds.STEP_START: "planned",
    }
    moments = {"tick": run.create_timestamp.timestamp(), "visible": visible}
    for entry in instance.all_logs(run.dagster_run.run_id, of_type=set(wanted)):
        kind = entry.get_dagster_event().event_type
        moments.setdefault(wanted[kind], entry.timestamp)
    spent, before = {}, arrived
    for name in _PARTS:
        spent[name] = moments[name] - before
        before = moments[name]
    return spent


def measure(asked: argparse.Namespace) -> list[dict[str, float]]:
    """The parts of each record's way."""
    topic, found = "arrivals_topic", list[dict[str, float]]()
    looks = {"lag_interval_seconds": asked.interval}
    if asked.wait is not None:
        looks["lag_wait_seconds"] = asked.wait
    with tempfile.TemporaryDirectory(prefix="eo-arrival-") as scratch, ExitStack() as stack:
        folder = Path(scratch)
        on = stack.enter_context(servers(folder, connect=True))
        admin = AdminClient({"bootstrap.servers": on.kafka.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(topic, 8, 1)])[topic].result()
        producer = Producer({"bootstrap.servers": on.kafka.bootstrap_servers, "log_level": 0})
        project = folder / "project"
        package = project_of(project, on, topic, looks)
        stack.enter_context(dagster_dev(project, package, on))
        table = Table(on.postgres.dsn, topic)
        instance = stack.enter_context(dg.DagsterInstance.from_config(str(project / "home")))
        for number in range(asked.warm_up + asked.records):
            producer.produce(topic, json.dumps({"id": number}).encode())
            producer.flush()
            arrived = time.time()
            visible = table.wait_for(number)
            # so that the run is over, and the next record comes at any moment of a tick
            time.sleep(3 + random.uniform(0, 5))
            if number >= asked.warm_up:
                found.append(parts(instance, arrived, visible))
                sys.stdout.write(f"{number}: {told(found[-1])}\n")
                sys.stdout.flush()
    return found


def told(spent: dict[str, float]) -> str:
    """All of it, and its parts."""
    each = "  ".join(f"{name} {seconds:.2f}" for name, seconds in spent.items())
    return f"{sum(spent.values()):.2f} s: {each}"


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--interval", type=int, default=1, help="lag_interval_seconds")
    parser.add_argument("--wait", type=float, help="lag_wait_seconds")
    asked = parser.parse_args()
    # so that what was started ends with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before its end"))
    found = measure(asked)
    whole = statistics.median(sum(each.values()) for each in found)
    sys.stdout.write(f"p50 {whole:.2f} s from arrival to visibility\n")
    for name, words in _PARTS.items():
        median: Any = statistics.median(each[name] for each in found)
        sys.stdout.write(f"  {median:6.2f} s  {words}\n")


if __name__ == "__main__":
    main()

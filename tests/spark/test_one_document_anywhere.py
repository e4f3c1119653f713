"""One document, of which the environment fills in the URIs: the demo's flights, into a table in a
bucket, from Spark in the same process, on a cluster, and over Spark Connect; killed anywhere.

In `make test-all` tests/spark/test_on_a_cluster.py has a cell of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.flights import PARTITIONS, publish
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.storage.paths import files_below
from tests.dagster.test_flights_pipeline import DOCUMENT
from tests.demo.test_flights import messages
from tests.spark.cluster_jobs import DeltaTableInABucket, IcebergTableInABucket
from tests.support.clusters import Cluster
from tests.support.engine import Coordinates
from tests.support.servers import MakeTopic
from tests.support.stores import Bucket

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

FLIGHTS = 3_000
OFFSETS = 600  # of a checkpoint

CATALOG = {"type": "sql", "uri": "${CATALOG}", "warehouse": "${LAKE}"}
SINKS: dict[str, dict[str, Any]] = {
    "delta": {"type": "delta", "path": "${LAKE}/flights"},
    "iceberg": {
        "type": "iceberg",
        "table": "ops.flights",
        "catalog": {"name": "eo", "properties": CATALOG},
    },
}
WAYS = ("in this process", "on the cluster", "over connect")


AT = CrashPoint
#: Each run is killed at the next of these, when it gets there so often. Of two times the first one
#: is the recovery of what the run before had promised.
LIVES = {
    "before the promise": [(AT.RECOVERED, 1), (AT.PLANNED, 1), (AT.STAGING, 1), (AT.STAGED, 1)],
    "behind the promise": [
        *((AT.PRE_COMMITTED, 1), (AT.ROWS_SENT, 1), (AT.ENTRY_SENT, 2)),
        *((AT.COMMITTED, 2), (AT.REPORTED, 1)),
    ],
}
assert {point for lives in LIVES.values() for point, _ in lives} == {*CrashPoint}


def document(sink: str) -> str:
    """The demo's, but for the sink."""
    demo = yaml.safe_load(DOCUMENT.read_text())["attributes"]
    place = {"bootstrap_servers": "${KAFKA}", "topics": ["${TOPIC}"], "max_records": OFFSETS}
    names = ("endpoint", "access_key_id", "secret_access_key")
    fields = {
        **{name: demo[name] for name in ("name", "transform")},
        "source": {**demo["source"], **place},
        "sink": SINKS[sink],
        "storage": {name: f"${{LAKE_{name.upper()}}}" for name in names},
        "spark": {"master": "${MASTER:-local[2]}"},
        "inline_records": 0,
    }
    return yaml.safe_dump(fields)


@dataclass(frozen=True)
class Run:
    """The document's pipeline into a table of its own, on one of the Sparks, and an observer."""

    document: Path
    environment: dict[str, str]
    table: DeltaTableInABucket | IcebergTableInABucket

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.runs.driver", str(self.document), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
            cwd=Path(__file__).parents[2],
        )

    def to_the_end(self) -> list[str]:
        """What it said of each of its checkpoints."""
        out, err = self.started().communicate(timeout=240)
        assert out.endswith("done\n"), err
        return out.splitlines()[:-1]

    def pipeline(self) -> Pipeline:
        """In this process, where no Spark is started."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            return Pipeline.from_yaml(self.document)

    def assert_consistent(self) -> None:
        """Every row is under a ledger entry that counted it."""
        counted = {e.version: e.counts.rows for e in self.pipeline().history()}
        assert self.rows_of_checkpoints() == {v: rows for v, rows in counted.items() if rows}

    def rows_of_checkpoints(self) -> dict[int, int]:
        if not self.table.coordinates():
            return {}
        return dict(Counter(self.table.frame()[CHECKPOINT_COLUMN].to_list()))

    def left_over(self) -> list[str]:
        """What lies in the bucket and is neither the table's nor its ledger's."""
        root = self.table.bucket.storage.place(self.table.uri)
        found = [str(place) for place, _ in files_below(root)]
        kept = (
            "/_witness/",
            "/_lost/",
            "_delta_log",
            "_eo_ledger",
            "/metadata/",
            *self.table.files(),
        )
        return [name for name in found if not any(each in name for each in kept)]


@dataclass(frozen=True)
class World:
    """The flights in Kafka, and wherever a run may be."""

    sink: str
    folder: Path
    topic: str
    bootstrap_servers: str
    written: frozenset[Coordinates]
    ids: frozenset[str]
    bucket: Bucket
    #: started when it is asked for
    cluster: Callable[[], Cluster]
    jars: Path

    def run(self, way: str) -> Run:
        path = self.folder / f"{self.sink}.yaml"
        path.write_text(document(self.sink))
        name = way.replace(" ", "-")
        lake = f"{self.bucket.uri}/{name}"
        catalog = f"sqlite:///{self.folder}/{name}.db"
        storage = self.bucket.document()
        environment = {
            "KAFKA": self.bootstrap_servers,
            "TOPIC": self.topic,
            "LAKE": lake,
            "CATALOG": catalog,
            **{f"LAKE_{name.upper()}": str(value) for name, value in storage.items()},
            JARS_VARIABLE: str(self.jars),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_REMOTE": "",
            **self._spark(way),
        }
        properties = {"type": "sql", "uri": catalog, "warehouse": lake}
        tables = {
            "delta": DeltaTableInABucket(f"{lake}/flights", self.bucket),
            "iceberg": IcebergTableInABucket(
                lake, self.bucket, {"properties": properties}, "ops.flights"
            ),
        }
        return Run(path, environment, tables[self.sink])

    def _spark(self, way: str) -> dict[str, str]:
        if way == "on the cluster":
            return {"MASTER": self.cluster().servers.url}
        return {"SPARK_REMOTE": self.cluster().connect.remote} if way == "over connect" else {}

    def assert_holds_once(self, run: Run) -> None:
        """Exactly the flights of the topic, each once, each with its airline."""
        run.table.assert_holds_once(self.written)
        frame = run.table.frame()
        assert frame["flight_id"].is_duplicated().sum() == 0
        assert set(frame["flight_id"]) == self.ids
        assert frame["airline"].null_count() == 0
        run.assert_consistent()


@pytest.fixture
def world(
    request: pytest.FixtureRequest,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    bucket: Bucket,
    spark_jars: Path,
    tmp_path: Path,
) -> World:
    # by their timestamps the flights are long out of date
    topic = make_topic(partitions=PARTITIONS, config={"retention.ms": "-1"})
    publish(kafka.bootstrap_servers, topic=topic, total=FLIGHTS)
    written, ids = set(), set()
    for message in messages(kafka, topic):
        written.add((topic, message.partition() or 0, message.offset() or 0))
        ids.add(json.loads(message.value() or b"")["flight_id"])
    assert len(ids) == len(written) == FLIGHTS
    return World(
        sink=request.param,
        folder=tmp_path,
        topic=topic,
        bootstrap_servers=kafka.bootstrap_servers,
        written=frozenset(written),
        ids=frozenset(ids),
        bucket=bucket,
        cluster=lambda: request.getfixturevalue("cluster"),
        jars=spark_jars,
    )


INTO_EACH = pytest.mark.parametrize("world", SINKS, indirect=True)


@INTO_EACH
def test_one_document_makes_the_same_table_wherever_spark_is(world: World) -> None:
    said, frames = [], []
    for way in WAYS:
        run = world.run(way)
        said.append(run.to_the_end())
        world.assert_holds_once(run)
        assert run.left_over() == []
        frames.append(run.table.frame().sort("flight_id"))
    assert len(said[0]) > FLIGHTS // OFFSETS
    assert said == [said[0]] * len(WAYS)
    assert all(frame.equals(frames[0]) for frame in frames), "values and checkpoints"


@pytest.mark.parametrize("lives", LIVES)
@pytest.mark.parametrize("way", WAYS)
@INTO_EACH
def test_killed_at_every_named_point_in_turn_the_last_run_has_every_flight_once(
    world: World, way: str, lives: str
) -> None:
    """Scenario: each run settles what the one before left, and is killed at the next point."""
    run = world.run(way)
    said = []
    for point, nth in LIVES[lives]:
        out, err = run.started("--crash-at", point, str(nth)).communicate(timeout=300)
        said.append(out)
        assert "done" not in out, f"{point} was not reached {nth} times"
        assert "Traceback" not in err, err
        found = run.table.coordinates()
        assert found.keys() <= world.written
        assert set(found.values()) <= {1}
        run.assert_consistent()

    said += run.to_the_end()

    world.assert_holds_once(run)
    kept = '"recovered": true' in "".join(said)
    assert kept == (lives == "behind the promise"), "what is promised is not staged again"
    for _ in range(2):
        assert run.to_the_end() == []
    assert run.left_over() == [], "what lost its version goes with the runs after that"

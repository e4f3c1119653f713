"""Whole pipelines from Kafka through Spark into an Iceberg table in a bucket, killed anywhere."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.storage.paths import files_below
from tests.sinks.iceberg.iceberg_world import catalog_in, files_in, rows_in, sink_in
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Coordinates, Table, Topic
from tests.support.stores import Bucket

#: Which points leave a promise behind that the next run keeps without reading again.
PROMISED = {CrashPoint.PRE_COMMITTED, CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT}


@dataclass(frozen=True)
class Lake:
    """A pipeline into the table, and an observer who reads it with PyIceberg."""

    bench: Bench
    sink: IcebergSink

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = rows_in(self.sink).to_pylist()
        return found

    def coordinates(self) -> Counter[Coordinates]:
        return Counter((r["_eo_topic"], r["_eo_partition"], r["_eo_offset"]) for r in self.rows())

    def assert_consistent(self) -> None:
        """Every row is under a ledger entry that counted it."""
        counted = {e.version: e.counts.rows for e in self.bench.pipeline().history()}
        found = Counter(row[CHECKPOINT_COLUMN] for row in self.rows())
        assert found == {version: rows for version, rows in counted.items() if rows}

    def files_of_no_use(self) -> list[str]:
        """Files where the rows lie that are not the table's."""
        table = files_in(self.sink)
        found = (str(place) for place, _ in files_below(self.sink.root / "data" / "eo_rows"))
        return sorted(path for path in found if path not in table)

    def promises(self) -> list[str]:
        folder = self.sink.root / "_eo_staging" / "events"
        found = {place.parent.name for place, _ in files_below(folder)}
        return sorted(name for name in found if "-" in name)


@pytest.fixture
def lake(spark_server: EmbeddedSpark, events: Topic, bucket: Bucket, tmp_path: Path) -> Lake:
    """An append pipeline, 100 offsets a checkpoint, laid out by the partition in Kafka."""
    sink = sink_in(bucket, tmp_path, table="ops.events", partition_by=("_eo_partition",))
    config = {
        "name": "events",
        "source": events.source(max_records=100),
        "sink": {
            "type": "iceberg",
            "table": "ops.events",
            "catalog": catalog_in(tmp_path, f"{bucket.uri}/warehouse"),
            "partition_by": ["_eo_partition"],
        },
        "storage": bucket.document(),
        "inline_records": 0,
    }
    return Lake(Bench(events, Table("unused"), config), sink)


@pytest.mark.parametrize(
    ("point", "inline_records"),
    rest_is_chaos(
        [(point, inline) for inline in (0, 10_000) for point in CrashPoint],
        but=[(CrashPoint.ENTRY_SENT, 0)],
    ),
)
def test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
    lake: Lake, point: CrashPoint, inline_records: int
) -> None:
    bench = lake.bench
    bench.topic.write(300, partitions=range(4))
    nth = {"recovered": 1, "committed": 3, "rows_sent": 3, "entry_sent": 3}.get(point, 2)
    killed = bench.run_in_a_process("--crash-at", point, str(nth), inline_records=inline_records)
    out, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    assert "done" not in out
    lake.assert_consistent()

    report = bench.pipeline(inline_records=inline_records).run()

    assert lake.coordinates() == Counter(bench.topic.written)
    lake.assert_consistent()
    assert [e.version for e in bench.pipeline().history()] == list(range(report.head.version + 1))
    assert lake.promises() == []
    bench.pipeline(inline_records=inline_records).run()
    assert lake.files_of_no_use() == [], "what lost its version goes with the run after that"
    kept = [r for r in report.checkpoints if r.recovered]
    assert bool(kept) == (point in PROMISED and inline_records == 0)


@pytest.mark.chaos
def test_there_and_back_again_in_a_bucket(lake: Lake) -> None:
    """Scenario: three checkpoints, back to the first, one of them again with today's transform, and
    an audit; then the files that left the table are removed as orphans are.
    """
    bench = lake.bench
    bench.topic.write(300, partitions=range(4))
    pipeline = bench.pipeline()
    pipeline.run()
    written = Counter(bench.topic.written)
    pipeline.rewind(1)
    assert len(lake.rows()) == 100
    pipeline.run()
    assert lake.coordinates() == written
    pipeline.replay(1)
    assert lake.coordinates() == written
    assert pipeline.audit().passed
    assert lake.files_of_no_use() != [], "they are left to who removes orphans"

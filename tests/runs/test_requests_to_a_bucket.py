"""How often a bucket is asked when there is nothing to do: after 300 versions as after 60.

In `make test-all` tests/sinks have it of recovery, and of shorter histories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Counts, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.attempt import StagingArea
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from tests.sinks.iceberg.iceberg_world import catalog_in
from tests.support.engine import Topic
from tests.support.proxy import Proxy
from tests.support.stores import Bucket

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

#: Versions nine and none after the last checkpoint of Delta's log; more than what a plan looks at.
EARLY, LATE = (59, 60), (309, 310)

#: SeaweedFS pages through folders that were emptied in the last minutes; nothing grows with all.
MORE = 12

#: What a request's first line ends with.
REQUEST = b" HTTP/1.1\r\n"

LOOKS: dict[str, Callable[[Pipeline], object]] = {
    "a run that finds nothing": lambda pipeline: pipeline.run(),
    "a look at where it stands": lambda pipeline: pipeline.status(),
    "what the next run would do": lambda pipeline: pipeline.plan_run(),
}


@dataclass(frozen=True)
class Idle:
    """A pipeline into a bucket, the same one behind a proxy, and a topic that it has read."""

    topic: Topic
    direct: Pipeline
    watched: Pipeline
    proxy: Proxy

    def grow(self, until: int) -> None:
        """Versions of one record each, as runs would have made them, up to ``until``."""
        head = self.direct.run().head if self.direct.head() is None else self.direct.head()
        assert head is not None
        tp = TopicPartition(self.topic.name, 0)
        sink, name = self.direct.sink, self.direct.name
        folders = sink.staging_folders()
        assert folders.manifests is not None
        area = StagingArea(folders.manifests, name, folders.rows, sink.describe())
        with sink.open(name) as session:
            while head.version < until:
                self.topic.write(1)
                version, start = head.version + 1, head.offsets[tp]
                rows = {"id": [version], "name": ["x"], CHECKPOINT_COLUMN: [version]}
                head = replace(
                    head.child(Operation.FORWARD, "run", {**head.offsets, tp: start + 1}),
                    ranges=(OffsetRange(*tp, start, start + 1),),
                    counts=Counts(records=1, rows=1, rows_total=head.counts.rows_total + 1),
                )
                staged = StagedOutput(StagedTable.in_memory(pa.table(rows)))
                attempt = area.begin(head)
                attempt.runs_in("a session")
                assert session.publish(head, staged) is CommitOutcome.COMMITTED
                attempt.delete_committed(rows=sink.copies_rows)

    def requests(self) -> dict[str, int]:
        """What each look asks of the bucket, once an earlier one has settled what was left."""
        asked = {}
        for name, look in LOOKS.items():
            look(self.watched)
            self.proxy.recorded = bytearray()
            look(self.watched)
            asked[name] = self.proxy.recorded.count(REQUEST)
        return asked


@pytest.fixture(params=["delta", "iceberg"])
def idle(
    request: pytest.FixtureRequest, events: Topic, bucket: Bucket, tmp_path: Path
) -> Iterator[Idle]:
    sinks: dict[str, Any] = {
        "delta": {"type": "delta", "path": f"{bucket.uri}/events"},
        "iceberg": {
            "type": "iceberg",
            "table": "ops.events",
            "catalog": catalog_in(tmp_path, f"{bucket.uri}/warehouse"),
        },
    }
    config = {
        "name": "events",
        "source": events.source(),
        "sink": sinks[request.param],
        "lineage": False,
    }
    with Proxy(bucket.server.host, bucket.server.port) as proxy:
        endpoint = {"endpoint": f"http://127.0.0.1:{proxy.port}"}
        yield Idle(
            events,
            Pipeline.from_config({**config, "storage": bucket.document()}),
            Pipeline.from_config({**config, "storage": {**bucket.document(), **endpoint}}),
            proxy,
        )


def test_what_is_asked_of_a_bucket_does_not_grow_with_the_history(idle: Idle) -> None:
    asked = []
    for versions in (EARLY, LATE):
        found = []
        for version in versions:
            idle.grow(version)
            found.append(idle.requests())
        asked.append(found)
    print(asked)  # noqa: T201
    early, late = asked
    for before, after in zip(early, late, strict=True):
        assert all(after[look] <= before[look] + MORE for look in LOOKS), asked

"""What each staged file costs the process that commits it, in requests to its bucket."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.attempt import StagingArea
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.config import Storage
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.iceberg.iceberg_world import catalog_in
from tests.support.proxy import Proxy
from tests.support.stores import Bucket

#: What a request's first line ends with.
REQUEST = b" HTTP/1.1\r\n"
FEW, MANY = 5, 25

#: Requests by which two commits may differ for other reasons; one more for each file is 20.
OTHERS = 9

#: Of each file the footer: when the task has written it, when the manifest is checked, and where
#: the table's log names it; PostgreSQL has its rows instead, behind a footer.
FOR_EACH = {"delta": 3, "iceberg": 3, "postgres": 4}


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket.server.host, bucket.server.port) as proxy:
        yield proxy


def sink_of(kind: str, bucket: Bucket, storage: Storage, database: str, folder: Path) -> Sink:
    makers: dict[str, Callable[[], Sink]] = {
        "delta": lambda: DeltaSink(path=f"{bucket.uri}/flights", storage=storage),
        "iceberg": lambda: IcebergSink.model_validate(
            {
                "table": "ops.flights",
                "catalog": catalog_in(folder, f"{bucket.uri}/warehouse"),
                "storage": storage,
            }
        ),
        "postgres": lambda: PostgresSink.model_validate({"dsn": database, "table": "flights"}),
    }
    return makers[kind]()


@pytest.mark.parametrize("kind", FOR_EACH)
def test_a_file_costs_few_requests(
    kind: str, bucket: Bucket, proxy: Proxy, database: str, tmp_path: Path
) -> None:
    storage = bucket.server.storage_by(f"http://127.0.0.1:{proxy.port}")
    sink = sink_of(kind, bucket, storage, database, tmp_path)
    manifests = storage.place(f"{bucket.uri}/staging")
    area = StagingArea(manifests, "p", sink.staging_folders().rows)
    asked = {}
    with sink.open("p") as session:
        head = first_entry("p")
        session.publish(head, StagedOutput())
        for files in (1, FEW, MANY):  # a table is made for the first
            head = child_of(head, files)
            attempt = area.begin(head)
            for number in range(files):
                content = io.BytesIO()
                rows = {"id": [number], CHECKPOINT_COLUMN: [head.version]}
                pq.write_table(pa.table(rows), content)
                (attempt.rows_folder() / f"{number}.parquet").write_bytes(content.getvalue())
            proxy.recorded = bytearray()
            staged = attempt.collect(attempt.rows_folder(), lambda: pa.schema([]))
            assert session.publish(head, StagedOutput(staged)) is CommitOutcome.COMMITTED
            asked[files] = proxy.recorded.count(REQUEST)
    assert asked[MANY] - asked[FEW] <= FOR_EACH[kind] * (MANY - FEW) + OTHERS, asked

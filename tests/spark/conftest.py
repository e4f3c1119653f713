"""Fixtures of tests on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sinks.iceberg.iceberg_world import catalog_in
from tests.spark.cluster_jobs import DeltaTableInABucket, IcebergTableInABucket, Job, PostgresTable
from tests.support.engine import TABLE, Bench, Table, Topic
from tests.support.stores import Bucket


@pytest.fixture
def job(
    request: pytest.FixtureRequest, events: Topic, bucket: Bucket, database: str, tmp_path: Path
) -> Job:
    config: dict[str, Any] = {
        "name": "events",
        "source": events.source(max_records=1_000),
        "storage": bucket.document(),
        "inline_records": 0,
    }
    bench = Bench(events, Table(database), config)
    if request.param == "postgres":
        config["sink"] = {"type": "postgres", "dsn": database, "table": TABLE}
        config["staging"] = f"{bucket.uri}/staging"
        return Job(bench, PostgresTable(database), bucket)
    if request.param == "iceberg":
        uri = f"{bucket.uri}/warehouse"
        catalog = catalog_in(tmp_path, uri)
        config["sink"] = {"type": "iceberg", "table": "ops.events", "catalog": catalog}
        return Job(bench, IcebergTableInABucket(uri, bucket, catalog), bucket)
    uri = f"{bucket.uri}/lake/events"
    config["sink"] = {"type": "delta", "path": uri}
    return Job(bench, DeltaTableInABucket(uri, bucket), bucket)

"""Plain records into a table in a bucket, of Iceberg also behind a REST catalog."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.suite.bucket import DELAY_S
from benchmarks.suite.stores import Store
from benchmarks.suite.workloads.plain import PLAIN, PLAIN_STREAM

BUCKET = replace(
    PLAIN,
    key="bucket",
    title="Into a bucket, 8 partitions",
    text=(
        f"Plain records into an S3-compatible server on this machine, {DELAY_S * 1000:.0f} ms for "
        "each request to it, or to the catalog of Iceberg's tables. Cold: with an archive of "
        "Spark's classes, as for the other workloads."
    ),
    by_dlt=False,
    by_hand=False,
    in_bucket=True,
    streaming=replace(PLAIN_STREAM, stores=(Store.DELTA, Store.ICEBERG)),
    stores=(Store.DELTA, Store.ICEBERG),
)

"""Plain records into a table in a bucket."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.suite.bucket import DELAY_S
from benchmarks.suite.stores import Store
from benchmarks.suite.workloads.plain import PLAIN

BUCKET = replace(
    PLAIN,
    key="bucket",
    title="Into a bucket, 8 partitions",
    text=(
        f"Plain records into an S3-compatible server on this machine, {DELAY_S * 1000:.0f} ms for "
        "each request. Cold: with an archive of Spark's classes, as for the other workloads."
    ),
    by_dlt=False,
    by_hand=False,
    in_bucket=True,
    stores=(Store.DELTA,),
)

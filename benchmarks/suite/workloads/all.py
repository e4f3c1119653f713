"""All workloads but the plain ones, in the order in which a round takes them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.suite.workloads.avro import AVRO
from benchmarks.suite.workloads.bucket import BUCKET
from benchmarks.suite.workloads.dead_letters import DEAD_LETTERS
from benchmarks.suite.workloads.keys import KEYS
from benchmarks.suite.workloads.nested import NESTED
from benchmarks.suite.workloads.partitioned import PARTITIONED
from benchmarks.suite.workloads.protobuf import PROTOBUF_RECORDS
from benchmarks.suite.workloads.transform import TRANSFORM
from benchmarks.suite.workloads.upsert import UPSERT
from benchmarks.suite.workloads.workload import Workload

WORKLOADS: Sequence[Workload] = (
    TRANSFORM,
    NESTED,
    AVRO,
    PROTOBUF_RECORDS,
    KEYS,
    DEAD_LETTERS,
    UPSERT,
    PARTITIONED,
    BUCKET,
)

"""What a ledger's length costs on each sink.

Commits one checkpoint of one row after the other, without Kafka and Spark, and at the lengths asked
for measures a look that finds nothing new (connect, recover, compare) and a commit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.suite.topic import create
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.redis import EmbeddedRedis
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry

PIPELINE = "growth"
SINKS = ("postgres", "mysql", "redis", "kafka", "delta", "iceberg", "parquet")
TIMES = 9
PARTITIONS = 8

_STATE = Path(__file__).parents[2] / ".eo"


@contextmanager
def made(kind: str, folder: Path) -> Iterator[Sink]:
    """An empty table, and the server it needs."""
    with ExitStack() as stack:
        yield sink_from_config({"type": kind, **_place(kind, folder / kind, stack)})


def _place(kind: str, folder: Path, stack: ExitStack) -> dict[str, Any]:
    if kind == "postgres":
        return {"dsn": stack.enter_context(EmbeddedPostgres(folder)).dsn, "table": PIPELINE}
    if kind == "mysql":
        server = stack.enter_context(EmbeddedMariaDB(folder))
        told = {"host": server.host, "port": server.port, "database": server.DATABASE}
        return {**told, "user": server.USER, "table": PIPELINE}
    if kind == "redis":
        return {"url": stack.enter_context(EmbeddedRedis(folder)).url(), "key": "{id}"}
    if kind == "kafka":
        broker = stack.enter_context(EmbeddedKafka(folder, jars=kafka_broker_jars(_STATE)))
        create(broker.bootstrap_servers, PIPELINE, PARTITIONS)
        return {"bootstrap_servers": broker.bootstrap_servers, "topic": PIPELINE}
    if kind == "iceberg":
        return {"table": f"ops.{PIPELINE}", "warehouse": str(folder)}
    return {"path": str(folder)}


def commit(session: SinkSession, head: LedgerEntry) -> LedgerEntry:
    """One more checkpoint, of one row."""
    entry = session.identified(child_of(head, 1))
    version = pa.array([entry.version], pa.int64())
    rows = pa.table({CHECKPOINT_COLUMN: version, "id": version})
    session.publish(entry, StagedOutput(rows=StagedTable.in_memory(rows)))
    return entry


def idle(sink: Sink) -> None:
    """What a run does before it finds that nothing is new."""
    with sink.open(PIPELINE) as session:
        session.verified(session.recover())


def milliseconds(act: Callable[[], object]) -> float:
    """Once."""
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000


def measure(kind: str, lengths: Sequence[int], folder: Path, seconds: float) -> Iterator[Any]:
    """Of each of the ``lengths`` that ``seconds`` suffice for: ``(name, versions, ms)`` of a look,
    of the recovery in it, and of a commit, medians of nine.
    """
    ends = time.monotonic() + seconds
    with made(kind, folder) as sink, sink.open(PIPELINE) as session:
        head = first_entry(PIPELINE)
        session.publish(head, StagedOutput())
        spent: list[float] = []
        while head.version < max(lengths) and time.monotonic() < ends:
            started = time.perf_counter()
            head = commit(session, head)
            spent = [*spent[-TIMES + 1 :], (time.perf_counter() - started) * 1000]
            if head.version in lengths:
                looks = [milliseconds(lambda: idle(sink)) for _ in range(TIMES)]
                recoveries = [milliseconds(session.recover) for _ in range(TIMES)]
                yield "nothing new", head.version, statistics.median(looks)
                yield "recover", head.version, statistics.median(recoveries)
                yield "commit", head.version, statistics.median(spent)

"""What a ledger's length costs: ``python -m benchmarks.bench_growth --versions 10 100 1000 5000``.

Commits one small checkpoint after the other, without Kafka and Spark, and at the lengths asked for
measures a look that finds nothing new (connect, recover, compare) and a commit. With PostgreSQL
beside Delta, unless ``--sinks`` says otherwise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry

PIPELINE = "growth"
TIMES = 9


@contextmanager
def made(kind: str, folder: Path) -> Iterator[Sink]:
    """An empty table, and the server it needs."""
    with ExitStack() as stack:
        if kind == "postgres":
            server = stack.enter_context(EmbeddedPostgres(folder / "postgres"))
            yield sink_from_config({"type": kind, "dsn": server.dsn, "table": PIPELINE})
        else:
            yield sink_from_config({"type": kind, "path": str(folder / kind)})


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


def kilobytes(folder: Path) -> int:
    """Of the log of a lake table; 0 of what has none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // 1024


def measure(kind: str, lengths: list[int], folder: Path) -> Iterator[dict[str, Any]]:
    """What each of the ``lengths`` costs."""
    with made(kind, folder) as sink, sink.open(PIPELINE) as session:
        head = first_entry(PIPELINE)
        session.publish(head, StagedOutput())
        spent: list[float] = []
        while head.version < max(lengths):
            started = time.perf_counter()
            head = commit(session, head)
            spent = [*spent[-2 * TIMES :], (time.perf_counter() - started) * 1000]
            if head.version in lengths:
                looks = [milliseconds(lambda: idle(sink)) for _ in range(TIMES)]
                yield {
                    "sink": kind,
                    "versions": head.version,
                    "idle_ms": round(statistics.median(looks), 1),
                    "commit_ms": round(statistics.median(spent), 1),
                    "log_kb": kilobytes(folder / kind / "_delta_log"),
                }


def main() -> None:
    """Print a line for each sink and length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--versions", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--sinks", nargs="+", default=["delta", "postgres"])
    parser.add_argument("--json", type=Path, help="write all figures there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eo-growth-") as folder:
        found = (measure(kind, asked.versions, Path(folder)) for kind in asked.sinks)
        shown(chain.from_iterable(found), asked.json)


def shown(found: Iterable[dict[str, Any]], file: Path | None) -> None:
    """A line for each, as soon as it is there; and all of them as JSON in ``file``, if any."""
    figures = []
    for each in found:
        sys.stdout.write("  ".join(f"{k} {v}" for k, v in each.items()) + "\n")
        sys.stdout.flush()
        figures.append(each)
    if file:
        file.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

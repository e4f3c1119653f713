"""What many small checkpoints cost before and after `eo maintain`.

``python -m benchmarks.bench_maintain --checkpoints 1000 --rows 8000 --sinks delta iceberg``

Commits the checkpoints one after the other, without Kafka and Spark, and measures how long it takes
to read the table from outside (a sum over all rows, and one column of the newest checkpoint), a
look that finds nothing new, a commit, and a rewind of ten checkpoints; then the same behind
maintenance.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from deltalake import DeltaTable

from benchmarks.growth.ledger import idle, milliseconds
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.capabilities import Maintenance
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.iceberg.config import IcebergSink
from eo_pipeline.sinks.iceberg.table import connect, load
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry

PIPELINE = "growth"
TIMES = 5

#: What takes longer is measured once.
LONG_MS = 5_000

#: Seconds after which what was made in ``--folder`` is left to the next call to measure.
MADE_S_MAX = 300


def sink_of(kind: str, folder: Path) -> Sink:
    """An empty table."""
    if kind == "iceberg":
        return sink_from_config({"type": kind, "table": "ops.t", "warehouse": str(folder / kind)})
    return sink_from_config({"type": kind, "path": str(folder / kind)})


def rows_of(version: int, count: int) -> pa.Table:
    """Of one checkpoint: some numbers and words, and where they came from."""
    ids = np.arange(version * count, (version + 1) * count)
    words = pa.array(["AA", "UA", "DL", "B6"])
    return pa.table(
        {
            "id": ids,
            "carrier": words.take(pa.array(ids % 4)),
            "delay": np.sin(ids) * 100,
            CHECKPOINT_COLUMN: pa.array([version] * count, pa.int64()),
            "_eo_partition": pa.array(ids % 8, pa.int32()),
            "_eo_offset": ids // 8,
        }
    )


def commit(session: SinkSession, head: LedgerEntry, rows: int) -> LedgerEntry:
    """One more checkpoint."""
    entry = session.identified(child_of(head, rows))
    staged = StagedTable.in_memory(rows_of(entry.version, rows))
    session.publish(entry, StagedOutput(rows=staged))
    return entry


def rewind(session: SinkSession, head: LedgerEntry) -> LedgerEntry:
    """The newest ten checkpoints leave."""
    entry = child_of(head, 0, operation=Operation.REWIND, target=head.version - 10)
    session.publish(session.identified(entry), StagedOutput())
    return entry


def sum_of_all(sink: Sink) -> float:
    """As a reader does who knows nothing of us."""
    if isinstance(sink, IcebergSink):
        catalog = connect(sink)
        table = load(catalog, sink)
        assert table is not None
        found = table.scan(selected_fields=("delay",)).to_arrow()
        catalog.close()
        return float(pc.sum(found["delay"]).as_py())
    dataset = DeltaTable(sink.describe()["uri"]).to_pyarrow_dataset()
    return float(pc.sum(dataset.to_table(columns=["delay"])["delay"]).as_py())


def newest(sink: Sink, version: int) -> int:
    """Rows of one checkpoint."""
    if isinstance(sink, IcebergSink):
        catalog = connect(sink)
        table = load(catalog, sink)
        assert table is not None
        found = table.scan(f"{CHECKPOINT_COLUMN} = {version}").to_arrow().num_rows
        catalog.close()
        return int(found)
    dataset = DeltaTable(sink.describe()["uri"]).to_pyarrow_dataset()
    return int(dataset.count_rows(filter=pads.field(CHECKPOINT_COLUMN) == version))


def _median(act: Callable[[], object], times: int = TIMES) -> float:
    """Of fewer, if one takes long."""
    found = [milliseconds(act)]
    while len(found) < times and found[0] < LONG_MS:
        found.append(milliseconds(act))
    return round(statistics.median(found), 1)


def figures(sink: Sink, head: LedgerEntry, rows: int) -> tuple[dict[str, float], LedgerEntry]:
    """Milliseconds, and where the ledger stands afterwards."""
    found = {
        "read_all_ms": _median(lambda: sum_of_all(sink), 3),
        "read_newest_ms": _median(lambda: newest(sink, head.version), 3),
        "idle_ms": _median(lambda: idle(sink)),
    }
    with sink.open(PIPELINE) as session:
        spent = []
        for _ in range(2 * TIMES):
            started = time.perf_counter()
            head = commit(session, head, rows)
            spent.append((time.perf_counter() - started) * 1000)
        found["commit_ms"] = round(statistics.median(spent), 1)
        started = time.perf_counter()
        head = rewind(session, head)
        found["rewind_ms"] = round((time.perf_counter() - started) * 1000, 1)
    return found, head


def measure(
    kind: str, checkpoints: int, rows: int, folder: Path, keep: str
) -> Iterator[dict[str, Any]]:
    """Before, what maintenance did, and after."""
    sink = sink_of(kind, folder)
    started = time.perf_counter()
    with sink.open(PIPELINE) as session:
        head = session.head() or first_entry(PIPELINE)
        if not head.version:
            session.publish(head, StagedOutput())
        while head.version < checkpoints:
            head = commit(session, head, rows)
    yield {"sink": kind, "checkpoints": checkpoints, "made_s": round(time.perf_counter() - started)}
    before, head = figures(sink, head, rows)
    total = sum_of_all(sink)
    yield {"sink": kind, "when": "before"} | before
    with sink.open(PIPELINE) as session:
        rules = Maintenance.model_construct(target_file_size="128MB", keep=keep)
        for each in session.maintain(rules, dry_run=False):
            yield {"sink": kind} | each.to_json()
    same = abs(sum_of_all(sink) / total - 1) < 1e-9
    after, _ = figures(sink, head, rows)
    yield {"sink": kind, "when": "after", "same_sum": same} | after


def _not_for_too_long(measured: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    made = next(measured)
    yield made
    if made["made_s"] < MADE_S_MAX:
        yield from measured


def main() -> None:
    """Print a line for each thing measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--sinks", nargs="+", default=["delta"])
    parser.add_argument("--keep", default="7d", help="0h: as if all were that old")
    parser.add_argument(
        "--folder",
        type=Path,
        help="keep the tables there, and go on with them; what took more than five minutes to make "
        "is measured by the next call",
    )
    parser.add_argument("--json", type=Path, help="write all figures there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eo-maintain-") as temporary:
        folder = asked.folder or Path(temporary)
        found = (
            measure(kind, asked.checkpoints, asked.rows, folder, asked.keep) for kind in asked.sinks
        )
        each = map(_not_for_too_long, found) if asked.folder else found
        shown(chain.from_iterable(each), asked.json)


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

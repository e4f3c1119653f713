"""Maintenance and a run at the same time, each in a process of its own, for a while."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.maintaining import AT_ONCE, maintain

LAKES: dict[str, Callable[[Path], Sink]] = {
    "delta": lambda folder: DeltaSink(path=str(folder)),
    "iceberg": lambda folder: IcebergSink(table="ops.events", warehouse=folder),
}

#: Every tenth checkpoint is followed by a rewind that takes it and the one before back, and every
#: seventh by a replay of the one two before.
CHECKPOINTS = 40


def rows(checkpoint: int, count: int) -> StagedTable:
    numbers = pa.array([checkpoint] * count, pa.int64())
    return StagedTable.in_memory(
        pa.table({"id": pa.array(range(count)), CHECKPOINT_COLUMN: numbers})
    )


def work(sink: Sink) -> None:
    """Commit, rewind and replay; every commit has to land."""
    with sink.open("p") as session:
        head = session.head()
        assert head is not None
        for n in range(1, CHECKPOINTS + 1):
            head = child_of(head, 5)
            session.publish(head, StagedOutput(rows=rows(head.version, 5)))
            if n % 10 == 0:
                head = child_of(head, operation=Operation.REWIND, target=head.version - 2)
                session.publish(head, StagedOutput())
            elif n % 7 == 0:
                target = head.version - 2
                head = child_of(head, 2, operation=Operation.REPLAY, target=target)
                session.publish(head, StagedOutput(rows=rows(target, 2)))


def expected(sink: Sink) -> Counter[int]:
    """By checkpoint: how many rows it has, as the ledger tells."""
    found: Counter[int] = Counter()
    with sink.open("p") as session:
        for entry in session.history():
            if entry.operation is Operation.REWIND:
                assert entry.target is not None
                target = entry.target
                found = Counter({n: count for n, count in found.items() if n <= target})
            elif entry.counts.rows:
                number = entry.target if entry.operation is Operation.REPLAY else entry.version
                assert number is not None
                found[number] = entry.counts.rows
    return found


@pytest.mark.slow
@pytest.mark.parametrize("lake", LAKES)
def test_every_commit_of_a_run_lands_and_every_row_is_there_once(lake: str, tmp_path: Path) -> None:
    sink = LAKES[lake](tmp_path / "lake")
    with sink.open("p") as session:
        session.publish(first_entry("p"), StagedOutput())
    run = multiprocessing.get_context("spawn").Process(target=work, args=(sink,))
    run.start()
    put_together = 0
    while run.is_alive():
        try:
            put_together += maintain(sink, "p", AT_ONCE).get("compact") is not None
        except SinkUnavailableError as error:
            assert "conflicting commits" in str(error)  # noqa: PT017 - the rest is none
    run.join()
    assert run.exitcode == 0
    assert put_together
    with sink.open("p") as session:
        lineage = pa.Table.from_batches(session.lineage())
        assert len(list(session.history())) > CHECKPOINTS
    assert Counter(lineage[CHECKPOINT_COLUMN].to_pylist()) == expected(sink)

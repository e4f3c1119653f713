"""Ledger entries and staged rows for tests of sinks, without Kafka and without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation, new_transaction_id
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.staging.rows import StagedFile, StagedOutput, StagedTable
from eo_pipeline.storage.paths import Place, new_file, size_of

_TOPIC = "events"

#: How dead letters are staged, whatever the source.
DEAD_LETTERS = pa.schema(
    [
        ("_eo_checkpoint", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("error", pa.string()),
    ]
)


def first_entry(pipeline: str) -> LedgerEntry:
    """The start entry of a new ledger."""
    return LedgerEntry(
        pipeline=pipeline,
        ledger_id=new_transaction_id(),
        version=0,
        transaction_id=new_transaction_id(),
        parent=None,
        operation=Operation.START,
        offsets={TopicPartition(_TOPIC, 0): 0},
        topic_ids={_TOPIC: "x8ClxKOHQy2BYyUJ9HcHjA"},
        run_id="run",
    )


def child_of(
    head: LedgerEntry,
    staged: int | StagedOutput = 0,
    *,
    operation: Operation = Operation.FORWARD,
    target: int | None = None,
) -> LedgerEntry:
    """A new attempt at the version after ``head``, with a transaction id of its own. It counts
    what is ``staged``, or so many rows.
    """
    output = StagedOutput() if isinstance(staged, int) else staged
    rows = staged if isinstance(staged, int) else _rows(output.rows)
    bad = _rows(output.dead_letters)
    records = rows + bad
    topic_partition = TopicPartition(_TOPIC, 0)
    start = head.offsets[topic_partition]
    return replace(
        head.child(operation, "run", {topic_partition: start + records}),
        ranges=(OffsetRange(_TOPIC, 0, start, start + records),),
        counts=Counts(
            records=records,
            rows=rows,
            dead_letters=bad,
            rows_total=head.counts.rows_total + rows,
        ),
        target=target,
        details={"reason": "a test"},
    )


def _rows(table: StagedTable | None) -> int:
    return table.rows if table else 0


def dead_letters(checkpoint: int, values: Iterable[bytes]) -> StagedTable:
    """Records that could not be read, as the pipeline stages them."""
    letters: list[dict[str, Any]] = [
        {
            "_eo_checkpoint": checkpoint,
            "topic": _TOPIC,
            "partition": 0,
            "offset": offset,
            "timestamp": datetime(2013, 1, 1, 5, 15, tzinfo=UTC),
            "key": None,
            "value": value,
            "headers": [{"key": "carrier", "value": b"\x00UA"}],
            "error": "not JSON",
        }
        for offset, value in enumerate(values)
    ]
    return StagedTable.in_memory(pa.Table.from_pylist(letters, DEAD_LETTERS))


def to_files(staged: StagedTable, folder: Place, files: int = 2) -> StagedTable:
    """Write the rows to Parquet files below ``folder``, as a large batch has them."""
    if staged.table is None:
        return staged
    folder.mkdir(parents=True, exist_ok=True)
    step = max(1, -(-staged.rows // files))
    written = []
    for part, start in enumerate(range(0, max(staged.rows, 1), step)):
        path = folder / f"part-{part:05}.parquet"
        piece = staged.table.slice(start, step)
        path.unlink(missing_ok=True)
        with new_file(path) as file:
            pq.write_table(piece, file)
        written.append(StagedFile(path.name, size_of(path) or 0, piece.num_rows))
    return StagedTable(schema=staged.schema, root=folder, files=tuple(written))

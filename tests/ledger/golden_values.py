"""What the files below ``golden/`` hold, as values. The files were written by release 0.1.0; a
ledger or a manifest of that release must open for good, so they are never written again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa

from eo_pipeline.ledger.entry import Counts, EntryId, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.staging.manifest import Manifest
from eo_pipeline.staging.rows import StagedFile, StagedOutput, StagedTable

GOLDEN = Path(__file__).parent / "golden"

_T0 = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
_A, _B, _X = TopicPartition("a.b-c_d", 0), TopicPartition("a.b-c_d", 10), TopicPartition("x", 2)


def _entry(version: int, operation: Operation, **fields: object) -> LedgerEntry:
    values: dict[str, object] = {
        "pipeline": "orders",
        "ledger_id": "l" * 32,
        "version": version,
        "transaction_id": f"{version:032x}",
        "parent": EntryId(version - 1, f"{version - 1:032x}") if version else None,
        "operation": operation,
        "offsets": {_X: 5, _B: 2**53 + 1, _A: 0},
        "topic_ids": {"a.b-c_d": "x8ClxKOHQy2BYyUJ9HcHjA", "x": "AAAAAAAAAAAAAAAAAAAAAQ"},
        "run_id": "run-é",
        "started_at": _T0 + timedelta(microseconds=version),
    }
    return LedgerEntry(**{**values, **fields})  # type: ignore[arg-type]


#: One of each operation.
ENTRIES = [
    _entry(0, Operation.START, committed_at=_T0),
    _entry(
        1,
        Operation.FORWARD,
        ranges=(OffsetRange("a.b-c_d", 10, 7, 2**53 + 1), OffsetRange("x", 2, 0, 5)),
        counts=Counts(
            records=12, bytes=3_000_000_000, rows=9, dead_letters=2, tombstones=1, rows_total=9
        ),
        committed_at=datetime(2013, 1, 1, 6, 15, 0, 250, tzinfo=timezone(timedelta(hours=1))),
    ),
    _entry(2, Operation.REWIND, target=0, details={"reason": "Grüße", "asked_by": "me"}),
    _entry(
        3,
        Operation.REPLAY,
        target=1,
        ranges=(OffsetRange("x", 2, 0, 5),),
        counts=Counts(records=5, rows=5, rows_total=5),
    ),
    _entry(0, Operation.FORK, details={"forked_from": {"pipeline": "p", "version": 3}}),
    _entry(4, Operation.ACCEPT_LOSS, details={"losses": [["x", 2, None, 1.5, True]]}),
    _entry(5, Operation.ADOPT, offsets={}, topic_ids={}, run_id="", committed_at=_T0),
]

_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def manifest(root: Path) -> Manifest:
    """Of an attempt whose files lie below ``root``."""
    files = (StagedFile("rows/part-0.parquet", 1234, 9), StagedFile("rows/é/part-1.parquet", 99, 1))
    letters = StagedTable(pa.schema([("error", pa.string())]), root)
    return Manifest(ENTRIES[1], StagedOutput(StagedTable(_SCHEMA, root, files), letters))


def manifest_without_rows() -> Manifest:
    return Manifest(ENTRIES[0], StagedOutput())

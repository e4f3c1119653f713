"""A Delta table with a pipeline in it, and somebody else who looks at it and works on it."""

from __future__ import annotations

import base64
import json
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake

from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import (
    child_of,
    first_entry,
    to_files,
)


def in_memory(table: pa.Table) -> StagedOutput:
    """Rows that are not in files."""
    return StagedOutput(rows=StagedTable.in_memory(table))


def rows_of(checkpoint: int, count: int = 3, **columns: Any) -> pa.Table:
    """``count`` rows of one checkpoint; ``columns`` are added to the id."""
    ids = range(checkpoint * 100, checkpoint * 100 + count)
    numbers = pa.array([checkpoint] * count, pa.int64())
    return pa.table({"id": pa.array(ids, pa.int64()), CHECKPOINT_COLUMN: numbers, **columns})


@dataclass
class World:
    """One table, one pipeline in it, and an observer who is not the pipeline."""

    root: Path
    settings: dict[str, Any] = field(default_factory=dict)
    pipeline: str = "p"

    def sink(self, **settings: Any) -> DeltaSink:
        return DeltaSink.model_validate({"path": str(self.root), **self.settings, **settings})

    def observe(self) -> DeltaTable:
        return DeltaTable(str(self.root))

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.observe().to_pyarrow_table().to_pylist()
        return found

    def checkpoints(self) -> dict[int | None, int]:
        """How many rows each checkpoint has in the table."""
        return dict(Counter(row[CHECKPOINT_COLUMN] for row in self.rows()))

    def files(self) -> list[str]:
        return sorted(self.observe().file_uris())

    def start(self) -> LedgerEntry:
        entry = first_entry(self.pipeline)
        self.commit(entry)
        return entry

    def forward(self, *batches: pa.Table, files: bool = False) -> LedgerEntry:
        """Publish each batch as one more checkpoint; the start entry where there is none."""
        head = self.head() or self.start()
        for batch in batches or (rows_of(head.version + 1),):
            head = child_of(head, batch.num_rows)
            self.commit(head, self.staged(batch, head, files=files))
        return head

    def staged(self, rows: pa.Table, entry: LedgerEntry, *, files: bool = False) -> StagedOutput:
        staged = StagedTable.in_memory(rows)
        folder = self.root / "eo_rows" / self.pipeline / f"{entry.version}-{entry.transaction_id}"
        return StagedOutput(rows=to_files(staged, folder, files=1) if files else staged)

    def commit(
        self, entry: LedgerEntry, staged: StagedOutput | None = None, reach: Reach = keep_going
    ) -> None:
        with self.sink().open(self.pipeline) as session:
            outcome = session.publish(entry, staged or StagedOutput(), reach)
        assert outcome is CommitOutcome.COMMITTED

    def rewind(self, target: int) -> LedgerEntry:
        return self._back(Operation.REWIND, target, None)

    def replay(self, target: int, rows: pa.Table, *, files: bool = False) -> LedgerEntry:
        return self._back(Operation.REPLAY, target, rows, files=files)

    def _back(
        self, operation: Operation, target: int, rows: pa.Table | None, *, files: bool = False
    ) -> LedgerEntry:
        head = self.head()
        assert head is not None
        count = rows.num_rows if rows is not None else 0
        entry = child_of(head, count, operation=operation, target=target)
        self.commit(entry, self.staged(rows, entry, files=files) if rows is not None else None)
        return entry

    def head(self) -> LedgerEntry | None:
        with self.sink().open(self.pipeline) as session:
            return session.head()

    def history(self) -> list[LedgerEntry]:
        with self.sink().open(self.pipeline) as session:
            return list(session.history())

    def ledger_files(self) -> list[str]:
        return sorted(p.name for p in (self.root / "_eo_ledger").rglob("*.json"))

    def optimize(self) -> None:
        assert self.observe().optimize.compact()["numFilesRemoved"] > 1

    def forget(self) -> None:
        """Everything maintenance may do, at once: no retention, no old log, no unused file."""
        table = self.observe()
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
        table.create_checkpoint()
        table.cleanup_metadata()
        write_deltalake(str(self.root), rows_of(0).slice(0, 0), mode="append")
        table = self.observe()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        table = self.observe()
        table.create_checkpoint()
        table.cleanup_metadata()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "table")


def optimize(world: World) -> None:
    world.optimize()


def append_of_another_application(world: World) -> None:
    foreign = rows_of(1).set_column(1, CHECKPOINT_COLUMN, pa.nulls(3, pa.int64()))
    other = CommitProperties(app_transactions=[Transaction("other", 7)])
    write_deltalake(str(world.root), foreign, mode="append", commit_properties=other)


# Tables with rules of their own.


def with_features(world: World, *features: str, reader: bool = False) -> None:
    """Give a new table's first log entry a protocol with ``features``."""
    log = world.root / "_delta_log" / "00000000000000000000.json"
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(features) if reader else [],
        "writerFeatures": list(features),
    }
    text = json.dumps({"protocol": protocol})
    lines = [text if '"protocol"' in line else line for line in log.read_text().splitlines()]
    log.write_text("\n".join(lines))


def with_deleted_row(world: World) -> None:
    """The first row of a new table's first file is taken out by a deletion vector."""
    log = world.root / "_delta_log" / "00000000000000000000.json"
    # a bitmap array of one bitmap with one container: the position 0
    said = struct.pack("<IQI", 1681511377, 1, 0) + struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)
    text = base64.b85encode(said + bytes(-len(said) % 4)).translate(_Z85).decode()
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(said)}
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = vector | {"cardinality": 1}
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")


#: From the letters of Python's base 85 to those of the Delta protocol.
_Z85 = bytes.maketrans(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)


def table_of(world: World, schema: pa.Schema, **settings: str) -> DeltaTable:
    return DeltaTable.create(
        str(world.root), Schema.from_arrow(schema), configuration=dict(settings)
    )


ID_ONLY = pa.schema([("id", pa.int64()), (CHECKPOINT_COLUMN, pa.int64())])

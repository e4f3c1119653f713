"""A Delta table with a pipeline in it, and somebody else who looks at it and works on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from eo_pipeline.checkpoint import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.sinks.base import CommitOutcome
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.staged import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, to_files


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
        entry = child_of(head, operation=operation, target=target)
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

"""Rows that wait, invisible, for the sink's transaction: in Parquet files or in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eo_pipeline.errors import RefusedError

#: Rows per Arrow batch handed to a sink: bounds memory, large enough for a fast COPY.
BATCH_ROWS = 50_000


@dataclass(frozen=True)
class StagedFile:
    """One Parquet file, its path relative to the attempt's folder."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True)
class StagedTable:
    """Rows of one table, either in ``files`` below ``root`` or in ``table``; never both."""

    schema: pa.Schema
    rows: int
    root: Path | None = None
    files: tuple[StagedFile, ...] = ()
    table: pa.Table | None = None

    @classmethod
    def in_memory(cls, table: pa.Table) -> StagedTable:
        return cls(schema=table.schema, rows=table.num_rows, table=table)

    def paths(self) -> list[Path]:
        """Absolute paths of the files. Empty for rows in memory."""
        root = self.root
        return [] if root is None else [root / file.path for file in self.files]

    def verify(self) -> None:
        """Raise :class:`RefusedError` unless every file is there with the size it was given.

        A sink calls this before it publishes: a file cut short or removed must not be half-read.
        """
        for file, path in zip(self.files, self.paths(), strict=True):
            size = _size(path)
            if size != file.size:
                found = "is missing" if size is None else f"has {size} bytes"
                raise RefusedError(
                    f"staged file {file.path} {found}, the manifest says {file.size} bytes. "
                    "Nothing was published; the next run reads the ranges again."
                )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, at most :data:`BATCH_ROWS` at a time, so that memory stays flat."""
        if self.table is not None:
            yield from self.table.to_batches(max_chunksize=BATCH_ROWS)
        for path in self.paths():
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=BATCH_ROWS)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class StagedOutput:
    """Everything one checkpoint will make visible. ``rows`` is ``None`` for a ledger-only entry
    (start, adopt, accept-loss); ``dead_letters`` is ``None`` when there are none.
    """

    rows: StagedTable | None = None
    dead_letters: StagedTable | None = None

    def verify(self) -> None:
        for table in (self.rows, self.dead_letters):
            if table is not None:
                table.verify()

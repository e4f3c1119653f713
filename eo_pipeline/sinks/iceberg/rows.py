"""Staged rows as files to add: those that are there already, and new ones for rows in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.metadata import TableMetadata

from eo_pipeline.sinks.iceberg.partitioning import (
    LAYOUT_PREFIX,
    one_file_each,
    partition_values,
    refuse_unclear,
)
from eo_pipeline.sinks.iceberg.sink import ROWS_FOLDER, TYPES
from eo_pipeline.sinks.lake.ledger import Pointer, sync
from eo_pipeline.staging.rows import StagedTable

#: Below a pipeline's folder of rows: files of batches that came in memory.
_INLINE_FOLDER = "inline"


@dataclass(frozen=True)
class RowFiles:
    """Of one pipeline, in the table at ``root``."""

    root: Path
    pipeline: str

    @property
    def inline_folder(self) -> Path:
        return self.root / ROWS_FOLDER / self.pipeline / _INLINE_FOLDER

    def uris(
        self, rows: StagedTable | None, metadata: TableMetadata, at: Pointer, written: list[Path]
    ) -> list[str]:
        """The files that hold ``rows``. Rows in memory are written first.

        Raises:
            RefusedError: a value cannot be stored, or a file does not show its partition.
        """
        if rows is None:
            return []
        schema = metadata.schema()
        sources = [schema.find_field(f.source_id).name for f in metadata.spec().fields]
        paths = rows.paths()
        if rows.table is not None:
            transforms = [str(field.transform) for field in metadata.spec().fields]
            layout = list(zip(sources, transforms, strict=True))
            paths = list(self._write(rows.table, layout, at, written))
        for path in paths if sources else []:
            refuse_unclear(path, sources)
        return [f"file://{path}" for path in paths]

    def _write(
        self, table: pa.Table, layout: list[tuple[str, str]], at: Pointer, written: list[Path]
    ) -> Iterator[Path]:
        """One file for each partition; nothing refers to them until the commit."""
        table = TYPES.table(table.select(own_columns(table.schema).names))
        keys = [partition_values(table[source], transform) for source, transform in layout]
        folder = self.inline_folder / at.bucket
        folder.mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(one_file_each(table, keys)):
            path = folder / f"{at.stem}-{number}.parquet"
            written.append(path)
            with path.open("xb") as file:
                pq.write_table(part, file, compression="snappy")
            sync(path)
            yield path
        sync(folder)


def own_columns(schema: pa.Schema) -> pa.Schema:
    """``schema`` without the copies by which Spark lays out files."""
    return pa.schema([field for field in schema if not field.name.startswith(LAYOUT_PREFIX)])

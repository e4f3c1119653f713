"""Where the rows of a folder of Parquet files came from, and what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from eo_pipeline.arrow import pa, pq
from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.lineage import lineage_of_batches, lineage_schema
from eo_pipeline.sinks.parquet.store import EntryFile, version_of
from eo_pipeline.sinks.parquet.types import TYPES
from eo_pipeline.sinks.past import Selected
from eo_pipeline.staging.rows import batches_of


def read_lineage(root: Path, head: EntryFile, since: int) -> Iterator[pa.RecordBatch]:
    """The checkpoints up to ``head``, in the folder that has the name now: if it is exchanged for
    another meanwhile this goes on in the old one, and fails when that is removed.

    Raises:
        SinkUnavailableError: it was removed, or a file cannot be read.
    """
    schema = lineage_schema(head.columns.names)
    return lineage_of_batches(_rows(root, head, since, schema.names), schema, since)


def read_values(root: Path, head: EntryFile, since: int) -> Iterator[pa.RecordBatch]:
    """The same rows with all their columns; raises as :func:`read_lineage`."""
    return TYPES.shown(_rows(root, head, since))


def queries(root: Path, selected: Selected) -> dict[str, str]:
    """See ``SinkSession.queries``."""
    condition = selected.condition(CHECKPOINT_COLUMN)
    files = str(root / "checkpoint=*" / "*.parquet").replace("'", "''")
    return {
        "DuckDB": f"SELECT * FROM read_parquet('{files}', union_by_name = true, "
        f"hive_partitioning = false) WHERE {condition}",
        "Spark": f"SELECT * FROM parquet.`{root}` WHERE {condition}",
    }


def _rows(
    root: Path, head: EntryFile, since: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    try:
        with _folder(root) as table:
            versions = (version_of(name) for name in os.listdir(table))
            for version in sorted(v for v in versions if v is not None):
                if version <= head.entry.version:
                    yield from _checkpoint(table, f"checkpoint={version}", columns, since)
    except (OSError, pa.ArrowException) as error:
        raise SinkUnavailableError(
            f"{root} cannot be read: {error}. Were rows taken back meanwhile? Ask again."
        ) from error


def _checkpoint(
    table: int, name: str, columns: Sequence[str] | None, since: int
) -> Iterator[pa.RecordBatch]:
    with _folder(name, table) as folder:
        for file in sorted(os.listdir(folder)):
            if file.endswith(".parquet") and not file.startswith(("_", ".")):
                handle = os.open(file, os.O_RDONLY, dir_fd=folder)
                with os.fdopen(handle, "rb") as opened, pq.ParquetFile(opened) as rows:
                    yield from _batches(rows, columns, since)


def _batches(
    rows: pq.ParquetFile, columns: Sequence[str] | None, since: int
) -> Iterator[pa.RecordBatch]:
    known = [name for name in columns or () if name in rows.schema_arrow.names]
    groups = [n for n in range(rows.num_row_groups) if not _is_older(rows.metadata, n, since)]
    yield from batches_of(rows, known or None, groups)


def _is_older(metadata: pq.FileMetaData, group: int, since: int) -> bool:
    """True if the file's own bounds say that all its rows belong to older checkpoints."""
    columns = metadata.row_group(group)
    for number in range(columns.num_columns):
        found = columns.column(number)
        if found.path_in_schema == CHECKPOINT_COLUMN and found.is_stats_set:
            bounds = found.statistics
            return bool(bounds.has_min_max and bounds.null_count == 0 and bounds.max < since)
    return False


@contextmanager
def _folder(name: str | Path, within: int | None = None) -> Iterator[int]:
    """A folder kept open, so that it is the same one until the end."""
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=within)
    try:
        yield handle
    finally:
        os.close(handle)

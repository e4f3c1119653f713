"""Several files of a Delta table written as one, with the same rows."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline.errors import DamagedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.places import Place, new_file, parquet_source, relative_name, size_of
from eo_pipeline.sinks.delta.rows import partition_value
from eo_pipeline.sinks.delta.stats import stats_json
from eo_pipeline.sinks.delta.store import Snapshot
from eo_pipeline.sinks.delta.types import TYPES
from eo_pipeline.sinks.lake.bins import DataFile

#: Bytes of rows in one row group: what is held in memory, and what a reader reads at least.
_ROW_GROUP_BYTES = 64 * 1024 * 1024
_BATCH_ROWS = 131_072

_PARTITION = "partition."

#: delta-rs tells other paths than the log has of names that are encoded there. Ours never are.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./=-]+")


@dataclass(frozen=True)
class Compacted:
    """A new file, and what makes it take the place of the old ones. No reader sees a change."""

    place: Place
    add: AddAction
    removes: tuple[RemoveAction, ...]


def data_files(table: Snapshot) -> list[DataFile]:
    """The files of this version of the table."""
    return [
        DataFile(
            path=action["path"],
            size=action["size_bytes"],
            rows=action["num_records"],
            partition=tuple(
                (name.removeprefix(_PARTITION), partition_value(name, value))
                for name, value in sorted(action.items())
                if name.startswith(_PARTITION)
            ),
            first=action.get(f"min.{CHECKPOINT_COLUMN}"),
            movable=_PLAIN_PATH.fullmatch(action["path"]) is not None,
        )
        for action in pa.table(table.table.get_add_actions(flatten=True)).to_pylist()
    ]


def write_together(table: Snapshot, files: Sequence[DataFile], folder: Place) -> Compacted:
    """One new file below ``folder`` with the rows of ``files``, flushed; nothing refers to it.

    Raises:
        DamagedError: it has not as many rows as the table's log says.
        SinkUnavailableError: one of the files is not there any more.
    """
    partition = dict(files[0].partition)
    dataset = _dataset(table, files)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{uuid.uuid4().hex}.parquet"
    columns = [name for name in dataset.schema.names if name not in partition]
    schema = pa.schema([dataset.schema.field(name) for name in columns])
    with new_file(place) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        batches = dataset.to_batches(columns=columns, batch_size=_BATCH_ROWS)
        for part in _row_groups(batches, schema):
            writer.write_table(part, row_group_size=max(part.num_rows, 1))
    with pq.ParquetFile(parquet_source(place)) as written:
        metadata = written.metadata
    _refuse_other_count(place, files, metadata.num_rows)
    now = int(time.time() * 1000)
    path, size = relative_name(place, table.root), size_of(place) or 0
    stats = stats_json(metadata, TYPES.schema(schema))
    return Compacted(
        place,
        AddAction(path, size, partition, now, False, stats),
        tuple(RemoveAction(f.path, False, now, f.size, partition) for f in files),
    )


def _dataset(table: Snapshot, files: Sequence[DataFile]) -> pads.FileSystemDataset:
    """Their rows with the columns of the table as it is now, in this order."""
    known = table.table.to_pyarrow_dataset()
    found = {fragment.path: fragment for fragment in known.get_fragments()}
    fragments = [found[each.path] for each in files]
    return pads.FileSystemDataset(fragments, known.schema, known.format, known.filesystem)


def _row_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)
            held = []
    if held:
        yield pa.Table.from_batches(held, schema)


def _refuse_other_count(place: Place, files: Sequence[DataFile], rows: int) -> None:
    counts = [each.rows for each in files]
    if None in counts or sum(map(int, filter(None, counts))) == rows:
        return
    raise DamagedError(
        f"{place} was to hold the rows of {len(files)} files, as many as the table's log says, and "
        f"holds {rows:,}. Nothing was changed. `eo audit` tells which checkpoints differ."
    )

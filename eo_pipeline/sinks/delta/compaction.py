"""Rewrites of a Delta table's files: several into one, or one without some of its rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline._lazy import pa, pc, pq
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.delta.files import stats_json
from eo_pipeline.sinks.delta.layout import folder_of, has_folder, partition_value
from eo_pipeline.sinks.delta.log import file_name, is_removable
from eo_pipeline.sinks.delta.table import Snapshot
from eo_pipeline.sinks.delta.types import TYPES
from eo_pipeline.sinks.lake.maintenance import DataFile, refuse_other_count, write_batches
from eo_pipeline.storage.paths import Place, parquet_source, relative_name, size_of

_BATCH_ROWS = 131_072

_PARTITION = "partition."


@dataclass(frozen=True)
class Compacted:
    """A new file that takes the place of old ones. No reader sees a change."""

    add: AddAction
    removes: tuple[RemoveAction, ...]


def data_files(table: Snapshot) -> list[DataFile]:
    """The files of this version of the table, by their names below its folder."""
    layout = table.described.partition_by
    return [data_file(action, layout) for action in table.add_actions()]


def data_file(action: dict[str, Any], layout: Sequence[str]) -> DataFile:
    """One of them, by its action in the log."""
    values = {name: action[f"{_PARTITION}{name}"] for name in layout}
    return DataFile(
        path=file_name(action["path"]),
        size=action["size_bytes"],
        rows=action["num_records"],
        partition=tuple((name, partition_value(name, value)) for name, value in values.items()),
        folder=folder_of(values),
        first=action.get(f"min.{CHECKPOINT_COLUMN}"),
        movable=is_removable(action["path"]) and has_folder(values),
    )


def removal_of(file: DataFile, *, data_change: bool) -> RemoveAction:
    """Return the action that removes ``file`` from the table."""
    now = int(time.time() * 1000)
    return RemoveAction(file.path, data_change, now, file.size, dict(file.partition))


def is_laid_out(file: DataFile) -> bool:
    """Return whether it lies where every reader looks for the values of its partition."""
    return not file.folder or f"/{file.folder}/" in f"/{file.path}"


class Writing:
    """New files, flushed, to which nothing refers yet; with the columns that the table has now, but
    for those it is laid out by.
    """

    def __init__(self, table: Snapshot) -> None:
        self._table = table
        self._rows = table.dataset()
        self._fragments = {fragment.path: fragment for fragment in self._rows.get_fragments()}
        layout = table.described.partition_by
        self._schema = pa.schema(
            [column for column in self._rows.schema if column.name not in layout]
        )

    def together(self, place: Place, files: Sequence[DataFile]) -> Compacted:
        """``place``, with the rows of ``files``, which are of one partition.

        Raises:
            DamagedError: it has not as many rows as the table's log says.
        """
        metadata = self._write(place, self._batches(files))
        refuse_other_count(place, files, metadata.num_rows)
        add = self._added(place, files[0], metadata, data_change=False)
        return Compacted(add, tuple(removal_of(file, data_change=False) for file in files))

    def checkpoints(self, file: DataFile) -> pa.ChunkedArray:
        """Of each of its rows the number of its checkpoint."""
        scanner = self._fragments[file.path].scanner(self._rows.schema, columns=[CHECKPOINT_COLUMN])
        return scanner.to_table()[CHECKPOINT_COLUMN]

    def without(self, place: Place, file: DataFile, first: int, last: int) -> AddAction:
        """``place``, with the rows of ``file`` but those of checkpoints ``first`` to ``last``."""

        def kept() -> Iterator[pa.RecordBatch]:
            for batch in self._batches([file]):
                goes = is_among(batch[CHECKPOINT_COLUMN], first, last)
                yield batch.filter(pc.invert(goes))

        return self._added(place, file, self._write(place, kept()), data_change=True)

    def _batches(self, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
        fragments = [self._fragments[file.path] for file in files]
        rows = type(self._rows)(
            fragments, self._rows.schema, self._rows.format, self._rows.filesystem
        )
        yield from rows.to_batches(columns=self._schema.names, batch_size=_BATCH_ROWS)

    def _write(self, place: Place, batches: Iterator[pa.RecordBatch]) -> pq.FileMetaData:
        write_batches(place, batches, self._schema)
        with pq.ParquetFile(parquet_source(place)) as written:
            return written.metadata

    def _added(
        self, place: Place, like: DataFile, metadata: pq.FileMetaData, *, data_change: bool
    ) -> AddAction:
        return AddAction(
            relative_name(place, self._table.root),
            size_of(place) or 0,
            dict(like.partition),
            int(time.time() * 1000),
            data_change,
            stats_json(metadata, TYPES.schema(self._schema)),
        )


def is_among(numbers: pa.Array, first: int, last: int) -> pa.Array:
    """Of each whether it is one of ``first`` to ``last``; none is not."""
    among = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.fill_null(among, False)

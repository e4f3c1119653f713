"""Several files of a Delta table written as one, with the same rows."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline.arrow import pa, pq
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.places import Place, parquet_source, relative_name, size_of
from eo_pipeline.sinks.delta.rows import partition_value
from eo_pipeline.sinks.delta.stats import stats_json
from eo_pipeline.sinks.delta.store import Snapshot
from eo_pipeline.sinks.delta.types import TYPES
from eo_pipeline.sinks.lake.bins import DataFile
from eo_pipeline.sinks.lake.together import refuse_other_count, write_batches

_BATCH_ROWS = 131_072

_PARTITION = "partition."

#: delta-rs tells other paths than the log has of names that are encoded there. Ours never are.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./=-]+")


@dataclass(frozen=True)
class Compacted:
    """A new file that takes the place of old ones. No reader sees a change."""

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


class Writing:
    """New files below ``folder``, flushed, to which nothing refers yet; with the columns that the
    table has now.
    """

    def __init__(self, table: Snapshot, folder: Place) -> None:
        self._table, self._folder = table, folder
        self._rows = table.table.to_pyarrow_dataset()
        self._fragments = {each.path: each for each in self._rows.get_fragments()}
        folder.mkdir(parents=True, exist_ok=True)

    def together(self, files: Sequence[DataFile]) -> Compacted:
        """One, with the rows of ``files``.

        Raises:
            DamagedError: it has not as many rows as the table's log says.
        """
        place, partition = self._folder / f"{uuid.uuid4().hex}.parquet", dict(files[0].partition)
        # what a table is laid out by is in its log, and not in its files
        columns = [name for name in self._rows.schema.names if name not in partition]
        schema = pa.schema([self._rows.schema.field(name) for name in columns])
        metadata = self._write(place, files, schema)
        refuse_other_count(place, files, metadata.num_rows)
        now = int(time.time() * 1000)
        path, size = relative_name(place, self._table.root), size_of(place) or 0
        stats = stats_json(metadata, TYPES.schema(schema))
        return Compacted(
            AddAction(path, size, partition, now, False, stats),
            tuple(RemoveAction(each.path, False, now, each.size, partition) for each in files),
        )

    def _write(self, place: Place, files: Sequence[DataFile], schema: pa.Schema) -> pq.FileMetaData:
        fragments = [self._fragments[each.path] for each in files]
        rows = type(self._rows)(
            fragments, self._rows.schema, self._rows.format, self._rows.filesystem
        )
        batches = rows.to_batches(columns=schema.names, batch_size=_BATCH_ROWS)
        write_batches(place, batches, schema)
        with pq.ParquetFile(parquet_source(place)) as written:
            return written.metadata

"""Several files of a lake table written as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from eo_pipeline.arrow import pa, pq
from eo_pipeline.errors import DamagedError
from eo_pipeline.places import Place, new_file
from eo_pipeline.sinks.lake.bins import DataFile

#: Bytes of rows in one row group: what is held in memory, and what a reader reads at least.
_ROW_GROUP_BYTES = 64 * 1024 * 1024


def write_batches(place: Place, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """The new file ``place``, flushed; in bounded memory."""
    with new_file(place) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in _row_groups(batches, schema):
            writer.write_table(part, row_group_size=max(part.num_rows, 1))


def refuse_other_count(place: Place, files: Sequence[DataFile], rows: int) -> None:
    """Return if ``place``, with ``rows`` rows, can hold all of ``files``.

    Raises:
        DamagedError: the table says that these have more, or fewer.
    """
    counts = [each.rows for each in files]
    if None in counts or sum(count for count in counts if count) == rows:
        return
    raise DamagedError(
        f"{place} was to hold the rows of {len(files)} files, as many as the table says, and holds "
        f"{rows:,}. Nothing was changed. `eo audit` tells which checkpoints differ."
    )


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    size = 0
    for batch in batches:
        # those of two files may have two forms of one type
        held.append(pa.Table.from_batches([batch]).cast(schema))
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)

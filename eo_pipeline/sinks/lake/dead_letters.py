"""Dead letters of a lake table: Parquet files beside the ledger, real exactly when the entry is.

One commit covers one table, so a second table of dead letters could not appear together with the
rows. A file named by the entry's pointer can: it is read only by following the ledger's chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eo_pipeline.arrow import pa, pq
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.places import Place, new_file, parquet_source, sync
from eo_pipeline.sinks.lake.ledger import LedgerFiles, Pointer
from eo_pipeline.staging.rows import StagedTable, batches_of

_FOLDER = "dead_letters"


class DeadLetterFiles:
    """``<ledger folder>/dead_letters/<thousand>/<version>-<token>.parquet``."""

    def __init__(self, ledger: LedgerFiles) -> None:
        self.folder = ledger.folder / _FOLDER

    def path(self, at: Pointer) -> Place:
        return self.folder / at.bucket / f"{at.stem}.parquet"

    def write(self, at: Pointer, staged: StagedTable) -> Place:
        """Keep the letters of the attempt ``at``. They mean nothing until it is the head."""
        path = self.path(at)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file, pq.ParquetWriter(file, staged.schema) as writer:
            for batch in staged.batches():
                writer.write_batch(batch)
        sync(path.parent)
        return path

    def checkpoint(self, at: Pointer) -> int:
        """The number of the checkpoint that the letters of ``at`` belong to; a replay's is not its
        own version.
        """
        with pq.ParquetFile(parquet_source(self.path(at))) as file:
            first = next(file.iter_batches(1, columns=[CHECKPOINT_COLUMN]), None)
        return at.version if first is None else int(first.column(0)[0].as_py())

    def batches(self, pointers: Iterable[Pointer]) -> Iterator[pa.RecordBatch]:
        """The same, as far as they are still there."""
        for at in pointers:
            if self.path(at).is_file():
                with pq.ParquetFile(parquet_source(self.path(at))) as file:
                    yield from batches_of(file)

    def read(self, pointers: Iterable[Pointer]) -> pa.Table:
        """The letters of entries that are in the ledger, in their order."""
        tables = [pq.read_table(parquet_source(self.path(at))) for at in pointers]
        return pa.concat_tables(tables) if tables else pa.table({})

"""Staged rows as files to add, and rows taken back."""

from __future__ import annotations

import warnings

from pyiceberg.expressions.parser import parse
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata

from eo_pipeline import side_by_side
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.iceberg.added import Added, NewFiles
from eo_pipeline.sinks.iceberg.fields import with_ids
from eo_pipeline.sinks.iceberg.partitioning import partition_values
from eo_pipeline.sinks.iceberg.types import TYPES, reads_as_it_stands
from eo_pipeline.sinks.lake.bounds import refuse_unbounded_rows
from eo_pipeline.sinks.lake.rows import PublishedFiles, one_file_each
from eo_pipeline.sinks.lake.types import own_columns
from eo_pipeline.sinks.removal import goes_back, target_of
from eo_pipeline.staging.rows import StagedTable


def new_files(
    rows: StagedTable | None, metadata: TableMetadata, files: PublishedFiles
) -> list[Added]:
    """The files that hold ``rows``, for a table that has this ``metadata`` then. Rows in memory
    become ``files`` first.

    Raises:
        RefusedError: a value cannot be stored, or a file does not show its partition.
    """
    if rows is None:
        return []
    new, paths = NewFiles(metadata), rows.paths()
    if rows.table is not None:
        table = TYPES.table(rows.table.select(own_columns(rows.table.schema).names))
        refuse_unbounded_rows(table, TYPES.store)
        transforms = [str(field.transform) for field in metadata.spec().fields]
        layout = zip(new.sources, transforms, strict=True)
        keys = [partition_values(table[source], transform) for source, transform in layout]
        paths = files.write(one_file_each(table.cast(with_ids(table.schema, new.ids)), keys))
    return side_by_side.each(new.added, paths)


def take_back(transaction: Transaction, entry: LedgerEntry, summary: dict[str, str]) -> None:
    """The rows that leave the table by ``entry``, if it is about that."""
    if not goes_back(entry):
        return
    operator = ">" if entry.operation is Operation.REWIND else "="
    leaving = f"{CHECKPOINT_COLUMN} {operator} {target_of(entry)}"
    _refuse_odd_rewrite(transaction, leaving)
    with warnings.catch_warnings():
        # that nothing matched is no news: a checkpoint may have no rows
        warnings.filterwarnings("ignore", message="Delete operation did not match")
        transaction.delete(leaving, summary)


def _refuse_odd_rewrite(transaction: Transaction, leaving: str) -> None:
    """Refuse to let PyIceberg write rows anew that it does not read as they stand: of an array of
    structs that is null it makes an empty one.
    """
    schema = transaction.table_metadata.schema()
    odd = [field.name for field in schema.as_arrow() if not reads_as_it_stands(field.type)]
    if not odd:
        return
    looked_at = transaction.update_snapshot().delete()  # of which nothing is made
    looked_at.delete_by_predicate(parse(leaving))
    if looked_at.rewrites_needed:
        raise RefusedError(
            f"rows that stay share a file with rows that leave the table, and PyIceberg, which "
            f"would write that file anew, reads {', '.join(map(repr, odd))} otherwise than they "
            "stand in it. Nothing was changed. Take the rows out with Spark, and try again: DELETE "
            f"FROM ... WHERE {leaving}"
        )

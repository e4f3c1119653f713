"""Which types and names a folder of Parquet files holds."""

from __future__ import annotations

from collections.abc import Iterable

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.lake.types import AS_STORED

TYPES = AS_STORED

#: The column that readers take from the folders' names.
PARTITION_COLUMN = "checkpoint"

#: Said to somebody who asks for maintenance.
TOO_SMALL = (
    "a checkpoint's files are its own, and are not put together with others: for fewer files make "
    "fewer, larger checkpoints (source.max_records), or use type: delta or iceberg"
)


def refuse_partition_name(names: Iterable[str]) -> None:
    """Raise SchemaChangeError if a column has the name that readers take from the folders."""
    taken = [name for name in names if name.lower() == PARTITION_COLUMN]
    if taken:
        raise SchemaChangeError(
            f"column {taken[0]!r}: readers take a column of that name from the folders "
            f"{PARTITION_COLUMN}=<version>. Nothing was written; rename it in the transform."
        )

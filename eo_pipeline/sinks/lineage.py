"""Where rows came from, as every sink says it; see ``SinkSession.lineage``."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from eo_pipeline.arrow import pa, pc
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN


@functools.cache
def whole_lineage() -> pa.Schema:
    """The columns and their types."""
    return pa.schema(
        [
            (CHECKPOINT_COLUMN, pa.int64()),
            ("_eo_topic", pa.string()),
            ("_eo_partition", pa.int32()),
            ("_eo_offset", pa.int64()),
        ]
    )


def lineage_schema(columns: Collection[str]) -> pa.Schema:
    """What is known of a table with ``columns``. The checkpoint always: a table without the
    column holds rows of no checkpoint.
    """
    known = [field for field in whole_lineage() if field.name in {*columns, CHECKPOINT_COLUMN}]
    return pa.schema(known)


def lineage_of_rows(
    pages: Iterable[Sequence[Sequence[Any]]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """``pages`` of rows with a value for each field of ``schema``, as Arrow."""
    for page in pages:
        columns = zip(*page, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def lineage_of_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, since: int = 0
) -> Iterator[pa.RecordBatch]:
    """``batches`` with the columns and types of ``schema``, a column they lack as null; without the
    rows of checkpoints before ``since``.
    """
    for batch in batches:
        arrays = [_column(batch, field) for field in schema]
        lineage = pa.RecordBatch.from_arrays(arrays, schema=schema)
        checkpoint = lineage.column(CHECKPOINT_COLUMN)
        asked = pc.or_kleene(pc.is_null(checkpoint), pc.greater_equal(checkpoint, since))
        if (lineage := lineage.filter(asked)).num_rows:
            yield lineage


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)

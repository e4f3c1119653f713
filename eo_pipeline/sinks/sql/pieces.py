"""Staged rows in pieces of bounded size, so that wide rows do not pile up in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from eo_pipeline.errors import RefusedError
from eo_pipeline.staging.rows import StagedTable

#: A batch is sent in pieces of about this many bytes.
PIECE_BYTES = 8 * 1024 * 1024


def pieces(staged: StagedTable) -> Iterator[pa.RecordBatch]:
    """The staged rows, at most about :data:`PIECE_BYTES` at a time.

    Raises:
        RefusedError: a staged file cannot be read.
    """
    try:
        for batch in staged.batches():
            step = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, PIECE_BYTES))
            for start in range(0, batch.num_rows, step):
                yield batch.slice(start, step)
    except (OSError, pa.ArrowException) as error:
        raise RefusedError(
            f"a staged file cannot be read: {error}. "
            "Nothing was published; the next run reads the ranges again."
        ) from error


def check_all_sent(target: object, sent: int, staged: StagedTable) -> None:
    """Raise :class:`RefusedError` unless as many rows were found as were promised."""
    if sent != staged.rows:
        raise RefusedError(
            f"staged rows for {target}: {sent} found, {staged.rows} promised. "
            "Nothing was published; the next run reads the ranges again."
        )

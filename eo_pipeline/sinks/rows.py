"""Staged rows on their way into a store: in batches of bounded size, and all of them."""

from __future__ import annotations

from collections.abc import Iterator

from eo_pipeline.arrow import pa, pc
from eo_pipeline.errors import RefusedError
from eo_pipeline.staging.rows import StagedTable

#: Rows are sent about this many bytes at a time, so that wide ones do not pile up in memory.
BATCH_BYTES = 8 * 1024 * 1024


def bounded_batches(staged: StagedTable) -> Iterator[pa.RecordBatch]:
    """The staged rows, at most about :data:`BATCH_BYTES` at a time.

    Raises:
        RefusedError: a staged file cannot be read.
    """
    try:
        for batch in staged.batches():
            step = max(1, batch.num_rows * BATCH_BYTES // max(batch.nbytes, BATCH_BYTES))
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


def whole_digits(staged: StagedTable, name: str) -> int:
    """The most digits that a value of the column ``name``, exact numbers, has before the point.

    Raises:
        RefusedError: a staged file cannot be read.
    """
    most = 0
    for values in staged.column(name):
        ends = pc.min_max(values).as_py().values()
        most = max(most, *(len(str(abs(int(end or 0)))) for end in ends))
    return most

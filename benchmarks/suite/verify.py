"""Whether an output holds every record exactly once, with the values it was sent with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.suite.records import checksums


@dataclass(frozen=True)
class Verdict:
    """How an output differs from the ids ``0`` to ``records``, not included: all zero if it is
    exact.
    """

    records: int
    rows: int
    lost: int
    doubled: int
    unknown: int
    changed: int

    @property
    def exact(self) -> bool:
        return self.rows == self.records and not (
            self.lost or self.doubled or self.unknown or self.changed
        )

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows for {self.records:,} records: {self.lost:,} lost, "
            f"{self.doubled:,} more than once, {self.unknown:,} of no record, "
            f"{self.changed:,} with other values"
        )


def compare(output: pl.DataFrame, expected: NDArray[np.uint64]) -> Verdict:
    """``output`` against the checksums of records 0, 1, 2 ...

    Args:
        output: the rows as they were read back from outside, in any order.
        expected: what :func:`benchmarks.suite.records.expected` gives.
    """
    records = len(expected)
    ids = output["id"].cast(pl.Int64).fill_null(-1).to_numpy()
    known = (ids >= 0) & (ids < records)
    times = np.bincount(ids[known], minlength=records)
    same = checksums(output)[known] == expected[ids[known]]
    return Verdict(
        records=records,
        rows=len(output),
        lost=int((times == 0).sum()),
        doubled=int((times > 1).sum()),
        unknown=int((~known).sum()),
        changed=int((~same).sum()),
    )

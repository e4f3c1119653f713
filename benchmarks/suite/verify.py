"""Whether an output holds every expected row exactly once, with the values it should have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.suite.records import frames
from benchmarks.suite.workloads.workload import Workload


@dataclass(frozen=True)
class Verdict:
    """How an output differs from the expected rows: all zero if it is exact."""

    expected: int
    rows: int
    lost: int
    doubled: int
    unknown: int
    changed: int

    @property
    def exact(self) -> bool:
        return self.rows == self.expected and not (
            self.lost or self.doubled or self.unknown or self.changed
        )

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows for {self.expected:,}: {self.lost:,} lost, "
            f"{self.doubled:,} more than once, {self.unknown:,} of no record, "
            f"{self.changed:,} with other values"
        )


@dataclass(frozen=True)
class Expected:
    """The rows of a workload's output by id: the checksum of row ``n`` at place ``n``, and whether
    there is such a row.
    """

    checksums: NDArray[np.uint64]
    present: NDArray[np.bool_]


def checksums(frame: pl.DataFrame, workload: Workload) -> NDArray[np.uint64]:
    """One number a row, of all the workload's columns."""
    columns = workload.columns
    return frame.select(*columns).cast(pl.Schema(columns)).hash_rows(seed=1).to_numpy()


def expected(workload: Workload, records: int) -> Expected:
    """The rows of records 0 to ``records``, not included; the last one of an id counts."""
    made = Expected(np.zeros(records, np.uint64), np.zeros(records, np.bool_))
    for frame in frames(0, records):
        rows = workload.rows(workload.records(frame))
        ids = rows["id"].to_numpy()
        made.checksums[ids] = checksums(rows, workload)
        made.present[ids] = True
    return made


def compare(output: pl.DataFrame, wanted: Expected, workload: Workload) -> Verdict:
    """``output`` against the rows that there should be.

    Args:
        output: the rows as they were read back from outside, in any order.
        wanted: what :func:`expected` gives.
        workload: whose columns are compared.
    """
    places = len(wanted.present)
    ids = output["id"].cast(pl.Int64).fill_null(-1).to_numpy()
    known = (ids >= 0) & (ids < places)
    known[known] = wanted.present[ids[known]]
    times = np.bincount(ids[known], minlength=places)
    equal = checksums(output, workload)[known] == wanted.checksums[ids[known]]
    return Verdict(
        expected=int(wanted.present.sum()),
        rows=len(output),
        lost=int((times[wanted.present] == 0).sum()),
        doubled=int((times > 1).sum()),
        unknown=int((~known).sum()),
        changed=int((~equal).sum()),
    )

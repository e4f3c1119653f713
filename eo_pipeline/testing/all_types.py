"""A table with a column of every type a result can have."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN

_NOON = datetime(2013, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
_END = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def _naive(instant: datetime) -> datetime:
    return instant.replace(tzinfo=None)


#: A value, another, and null, of every type a sink may be asked to hold.
ALL_TYPES = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "yes": pa.array([True, False, None], pa.bool_()),
        "tiny": pa.array([127, -128, None], pa.int8()),
        "small": pa.array([32767, -32768, None], pa.int16()),
        "whole": pa.array([2**31 - 1, -(2**31), None], pa.int32()),
        "big": pa.array([2**63 - 1, -(2**63), None], pa.int64()),
        "single": pa.array([1.5, float("-inf"), None], pa.float32()),
        "double": pa.array([0.1, float("nan"), None], pa.float64()),
        "money": pa.array([Decimal("1.10"), Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
        "exact": pa.array([Decimal(10**38 - 1), Decimal(0), None], pa.decimal128(38, 0)),
        "text": pa.array(["", "naïve 🛩 \\N \n\t\"quoted\" 'NULL'", None], pa.string()),
        "raw": pa.array([b"", b"\x00\xff\\x", None], pa.binary()),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None], pa.date32()),
        "instant": pa.array(
            [_NOON, datetime(1, 1, 2, tzinfo=UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "wall": pa.array([_naive(_NOON), _naive(_END), None], pa.timestamp("us")),
        "words": pa.array([["a", None, ""], [], None], pa.list_(pa.string())),
        "numbers": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "prices": pa.array([[Decimal("1.10")], [None], None], pa.list_(pa.decimal128(10, 2))),
        "instants": pa.array([[_NOON, None], [], None], pa.list_(pa.timestamp("us", "UTC"))),
        CHECKPOINT_COLUMN: pa.array([1, 1, 1], pa.int64()),
    }
)

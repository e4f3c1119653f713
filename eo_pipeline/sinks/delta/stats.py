"""Statistics of a Parquet file in the form of Delta's log, taken from the file's footer.

Delta protocol, "Per-file Statistics": ``numRecords``, ``minValues``, ``maxValues``, ``nullCount``.
A reader may skip a file by them, so a bound that is not certain is left out:

- floating point: the footer's bounds leave out NaN, which Spark holds to be the largest number;
- timestamps are given in milliseconds, as Delta's own writer does: down for the minimum, up for
  the maximum;
- long text is cut to a prefix: the maximum is followed by the greatest character there is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from eo_pipeline.arrow import pa, pq, pt
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN

#: Columns with statistics: as many as Delta's own writer has (delta.dataSkippingNumIndexedCols).
COLUMNS_MAX = 32

#: Characters of text kept in a bound (delta-spark's default).
PREFIX = 32
_GREATEST = "\U0010ffff"
_MS = timedelta(milliseconds=1)
_LAST_MS = datetime(9999, 12, 31, 23, 59, 59, 999000)  # noqa: DTZ001 - compared without a zone


@dataclass
class _Bounds:
    """What the row groups of a file say about one column. ``None``: not known."""

    nulls: int | None = 0
    low: Any = None
    high: Any = None
    known: bool = True

    def add(self, found: Any, rows: int) -> None:
        nulls = found.null_count if found is not None and found.has_null_count else None
        self.nulls = None if nulls is None or self.nulls is None else self.nulls + nulls
        if nulls == rows:
            return  # nothing but nulls: no bounds in this row group, and none needed
        if found is None or not found.has_min_max:
            self.known = False
            return
        low, high = found.min, found.max
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def stats_json(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """The ``stats`` of an add action for a file with this footer and these columns."""
    low: dict[str, str | None] = {}
    high: dict[str, str | None] = {}
    nulls: dict[str, str | None] = {}
    for name, bounds in _columns(metadata, schema):
        if bounds.nulls is not None:
            nulls[name] = str(bounds.nulls)
        if bounds.known and bounds.low is not None:
            kind = schema.field(name).type
            low[name] = _text(kind, bounds.low, up=False)
            high[name] = _text(kind, bounds.high, up=True)
    return (
        f'{{"numRecords":{metadata.num_rows},"minValues":{_object(low)},'
        f'"maxValues":{_object(high)},"nullCount":{_object(nulls)}}}'
    )


def null_counts(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, int | None]:
    """How many nulls each plain column has, None where the footer does not say."""
    return {name: bounds.nulls for name, bounds in _columns(metadata, schema, len(schema))}


def _columns(
    metadata: pq.FileMetaData, schema: pa.Schema, limit: int = COLUMNS_MAX
) -> Iterator[tuple[str, _Bounds]]:
    wanted = {*schema.names[:limit], CHECKPOINT_COLUMN} & set(schema.names)
    leaves = metadata.schema
    for index in range(len(leaves)):
        leaf = leaves.column(index)
        # a path is not a name once there is a dot in it: then it is a nested column, or may be one
        if leaf.path in wanted and "." not in leaf.path and leaf.max_repetition_level == 0:
            bounds = _Bounds()
            for group in range(metadata.num_row_groups):
                piece = metadata.row_group(group)
                bounds.add(piece.column(index).statistics, piece.num_rows)
            yield leaf.path, bounds


def _text(kind: pa.DataType, value: Any, *, up: bool) -> str | None:
    """``value`` as JSON, None if it makes no certain bound."""
    if pt.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if pt.is_string(kind) and isinstance(value, str):
        return _cut(value, up=up)
    if pt.is_decimal(kind) and isinstance(value, Decimal):
        return f"{value:f}"
    if pt.is_timestamp(kind) and isinstance(value, datetime):
        return _instant(value, zoned=kind.tz is not None, up=up)
    if pt.is_date(kind) and isinstance(value, date):
        return json.dumps(value.isoformat())
    return None


def _cut(text: str, *, up: bool) -> str | None:
    if len(text) <= PREFIX:
        return json.dumps(text)
    if not up:
        return json.dumps(text[:PREFIX])
    return None if text[PREFIX] == _GREATEST else json.dumps(text[:PREFIX] + _GREATEST)


def _instant(value: datetime, *, zoned: bool, up: bool) -> str | None:
    value = value.replace(tzinfo=None)
    whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
    if up and whole != value:
        if whole >= _LAST_MS:
            return None
        whole += _MS
    return json.dumps(whole.isoformat(timespec="milliseconds") + ("Z" if zoned else ""))


def _object(texts: dict[str, str | None]) -> str:
    parts = [f"{json.dumps(name)}:{text}" for name, text in texts.items() if text is not None]
    return "{" + ",".join(parts) + "}"

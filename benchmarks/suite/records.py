"""The records that everybody reads: made from a seed, so that anybody can say what they hold.

A record is one JSON object of exactly :data:`RECORD_BYTES` bytes. Half of it is noise, so that
compression has work and not a gift. Record ``n`` has the id ``n``, in whatever topic.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

RECORD_BYTES = 200
CHUNK = 50_000

#: The fields of a record, as columns.
COLUMNS: dict[str, pl.DataType] = {
    "id": pl.Int64(),
    "customer": pl.String(),
    "country": pl.String(),
    "amount": pl.Float64(),
    "at_ms": pl.Int64(),
    "note": pl.String(),
}
SPARK_SCHEMA = (
    "id BIGINT NOT NULL, customer STRING, country STRING, amount DOUBLE, at_ms BIGINT, note STRING"
)

_COUNTRIES = ["AT", "BR", "DE", "FR", "IN", "JP", "US", "ZA"]
_BEGIN_MS = 1_700_000_000_000
_JSON = '{"id":{},"customer":"{}","country":"{}","amount":{},"at_ms":{},"note":"{}"}'


def frames(start: int, end: int) -> Iterator[pl.DataFrame]:
    """Records ``start`` to ``end``, not included, in whole or cut chunks."""
    for chunk in range(start // CHUNK, -(-end // CHUNK)):
        first = chunk * CHUNK
        yield _chunk(chunk)[max(start - first, 0) : end - first]


def _chunk(chunk: int) -> pl.DataFrame:
    noise = np.random.default_rng(chunk).bytes(CHUNK * RECORD_BYTES // 2).hex()
    ids = pl.int_range(chunk * CHUNK, (chunk + 1) * CHUNK, eager=True).alias("id")
    frame = pl.DataFrame([ids]).with_columns(
        customer=pl.format("c-{}", (pl.col("id") * 7919 % 100_000)),
        country=pl.Series([_COUNTRIES[n % len(_COUNTRIES)] for n in range(CHUNK)]),
        amount=(pl.col("id") * 31 % 400_000) / 4,
        at_ms=_BEGIN_MS + pl.col("id"),
        note=pl.Series([noise[n * RECORD_BYTES : (n + 1) * RECORD_BYTES] for n in range(CHUNK)]),
    )
    room = RECORD_BYTES - _texts(frame.with_columns(note=pl.lit(""))).str.len_bytes()
    return frame.with_columns(note=frame["note"].str.head(room)).cast(pl.Schema(COLUMNS))


def _texts(frame: pl.DataFrame) -> pl.Series:
    parts = _JSON.split("{}")
    pieces: list[pl.Expr] = [pl.lit(parts[0])]
    for name, after in zip(COLUMNS, parts[1:], strict=True):
        pieces += [pl.col(name).cast(pl.String), pl.lit(after)]
    return frame.select(value=pl.concat_str(pieces))["value"]


def values(frame: pl.DataFrame) -> list[bytes]:
    """The JSON of each record, as Kafka holds it."""
    return [text.encode() for text in _texts(frame)]

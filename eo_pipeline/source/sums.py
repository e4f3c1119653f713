"""Whether every offset of some ranges was counted exactly once, told from sums. Lazy expressions.

How many records were counted does not tell: one may be counted twice and another not at all. So
each partition has a weight, and the weighted sums of the offsets and of their squares are compared
with what arithmetic says they are for whole ranges. What could differ and agree in all of them is
not made by accident.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from eo_pipeline.ledger.offsets import OffsetRange

#: A prime; products of two smaller numbers, and sums of billions of them, fit 64 bits.
_PRIME = 2**31 - 1

_WEIGHTS, _FIRSTS, _SQUARES = "weights", "firsts", "squares"


def sums() -> list[Column]:
    """Metrics over records with ``topic``, ``partition`` and ``offset``."""
    name = F.concat(F.col("topic"), F.lit("-"), F.col("partition").cast("string"))
    weight = F.crc32(name) % _PRIME
    offset = F.col("offset") % _PRIME
    terms = {
        _WEIGHTS: weight,
        _FIRSTS: weight * offset % _PRIME,
        _SQUARES: weight * (offset * offset % _PRIME) % _PRIME,
    }
    return [F.coalesce(F.sum(term), F.lit(0)).alias(key) for key, term in terms.items()]


def are_whole(ranges: Sequence[OffsetRange], records: int, counted: Mapping[str, Any]) -> bool:
    """True if ``records`` with these :func:`sums` are all offsets of ``ranges``, each once. False
    also if an offset holds no record: holes are nothing wrong, but prove nothing.
    """
    weights = firsts = squares = 0
    for r in ranges:
        weight = zlib.crc32(f"{r.topic}-{r.partition}".encode()) % _PRIME
        weights += weight * r.span
        firsts += weight * (_sum(r.end) - _sum(r.start))
        squares += weight * (_sum_of_squares(r.end) - _sum_of_squares(r.start))
    return (
        records == sum(r.span for r in ranges)
        and counted[_WEIGHTS] == weights
        and (counted[_FIRSTS] - firsts) % _PRIME == 0
        and (counted[_SQUARES] - squares) % _PRIME == 0
    )


def _sum(end: int) -> int:
    """Of the numbers below ``end``."""
    return end * (end - 1) // 2


def _sum_of_squares(end: int) -> int:
    return end * (end - 1) * (2 * end - 1) // 6

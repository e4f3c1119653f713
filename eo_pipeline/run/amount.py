"""How much a run has to do, before it begins: for Spark, see :mod:`eo_pipeline.spark.little`."""

from __future__ import annotations

from math import inf

from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.spark.little import Amount

#: The most that is little: offsets, and bytes of their values. A cold run of 300,000 records of 200
#: bytes took a quarter less processor time with the first compiler alone, one of a million 5 %.
LITTLE_OFFSETS = 300_000
LITTLE_BYTES = 200_000_000
#: The most for which Spark is to compile nothing: a cold run of 8,000 records took 5.1 s so and 5.7
#: by itself, one of 30,000 the same 5.7 s.
LEAST_OFFSETS = 10_000
LEAST_BYTES = 10_000_000

#: A record's bytes, where none was measured yet: so many offsets are little in a first run.
_ASSUMED_BYTES = LITTLE_BYTES // LITTLE_OFFSETS

#: Records of a batch that may go to the driver as Arrow instead of through files, in bytes.
INLINE_BYTES = 64 * 1024 * 1024

#: What a transform does nobody knows, but how long it took the last time; seconds, with Spark's own
#: start if it was started then.
_LITTLE_S = 30.0
_LEAST_S = 10.0
_ABOUT_AS_MANY = 2


def amount_of(
    entry: LedgerEntry, lag: int | None, measured: Counts, *, transformed: bool
) -> Amount:
    """How much it is to read the ranges of ``entry``, and so many offsets (``lag``) that wait after
    it. ``measured`` are the counts of a checkpoint like it; ``transformed``: the user's own code
    takes part.
    """
    if entry.operation is not Operation.FORWARD or lag is None:
        return Amount.MUCH  # of a replay nobody here knows how many checkpoints follow
    offsets = sum(each.span for each in entry.ranges) + lag
    size = offsets * (measured.bytes / measured.records if measured.records else _ASSUMED_BYTES)
    took_s = _took_s(measured, offsets) if transformed else 0.0
    if offsets <= LEAST_OFFSETS and size <= LEAST_BYTES and took_s <= _LEAST_S:
        return Amount.LEAST
    if offsets <= LITTLE_OFFSETS and size <= LITTLE_BYTES and took_s <= _LITTLE_S:
        return Amount.LITTLE
    return Amount.MUCH


def record_bytes(counts: Counts) -> float | None:
    """Mean size of a value and its key, in bytes, if any record was read."""
    size = counts.bytes + (counts.key_bytes or 0)
    return size / counts.records if counts.records else None


def fits_memory(entry: LedgerEntry, measured: Counts, offsets_max: int) -> bool:
    """Whether the ranges of ``entry`` are few enough to be staged in memory, and their records
    small enough. Nobody knows how large records are that were never ``measured``.
    """
    size, span = record_bytes(measured), sum(each.span for each in entry.ranges)
    return size is not None and span <= offsets_max and span * size <= INLINE_BYTES


def _took_s(measured: Counts, offsets: int) -> float:
    """What staging took, of about as many; for ever, if nobody knows."""
    staged_ms = measured.costs.phases_ms.get("stage") if measured.costs else None
    like_it = measured.records * _ABOUT_AS_MANY >= offsets
    return staged_ms / 1000 if staged_ms is not None and like_it else inf

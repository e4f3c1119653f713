"""How much a run has to do, before it begins: whether it is little for a Spark that is started for
it alone (see :mod:`eo_pipeline.spark.little`).
"""

from __future__ import annotations

from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation

#: The most that is little: offsets, and bytes of their values. A cold run of 300,000 records of 200
#: bytes took a quarter less processor time with the first compiler alone, one of a million 5 %.
LITTLE_OFFSETS = 300_000
LITTLE_BYTES = 200_000_000
#: A record's bytes, where none was measured yet: so many offsets are little in a first run.
_ASSUMED_BYTES = LITTLE_BYTES // LITTLE_OFFSETS

#: What a transform does nobody knows, but how long it took the last time; seconds, with Spark's own
#: start if it was started then.
_LITTLE_S = 30.0
_ABOUT_AS_MANY = 2


def is_little(entry: LedgerEntry, lag: int | None, measured: Counts, *, transformed: bool) -> bool:
    """Whether reading the ranges of ``entry``, and so many offsets (``lag``) that wait after it, is
    little. ``measured`` are the counts of a checkpoint like it; ``transformed``: the user's own
    code takes part.
    """
    if entry.operation is not Operation.FORWARD or lag is None:
        return False  # of a replay nobody here knows how many checkpoints follow
    offsets = sum(each.span for each in entry.ranges) + lag
    size = measured.bytes / measured.records if measured.records else _ASSUMED_BYTES
    few = offsets <= LITTLE_OFFSETS and offsets * size <= LITTLE_BYTES
    return few and (not transformed or _took_little(measured, offsets))


def _took_little(measured: Counts, offsets: int) -> bool:
    staged_ms = measured.costs.phases_ms.get("stage") if measured.costs else None
    like_it = measured.records * _ABOUT_AS_MANY >= offsets
    return staged_ms is not None and like_it and staged_ms <= _LITTLE_S * 1000

"""What every sink asks of an entry before it takes rows back."""

from __future__ import annotations

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import LedgerEntry, Operation


def goes_back(entry: LedgerEntry) -> bool:
    """True for an entry that takes rows out of the table."""
    return entry.operation in (Operation.REWIND, Operation.REPLAY)


def target_of(entry: LedgerEntry) -> int:
    """The version that a rewind or replay aims at.

    Raises:
        RefusedError: it names none, or one that is not older than itself.
    """
    if entry.target is None or not 0 <= entry.target < entry.version:
        raise RefusedError(
            f"version {entry.version}: a {entry.operation} needs an older version as its target, "
            f"and has {entry.target}. Nothing was changed."
        )
    return entry.target

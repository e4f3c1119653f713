"""What goes on in a checkpoint, in words for people."""

from __future__ import annotations

from eo_pipeline.ledger.entry import LedgerEntry


def reading(entry: LedgerEntry) -> str:
    """What goes on while it is staged, for people."""
    offsets = sum(each.span for each in entry.ranges)
    return f"version {entry.version}: reading {offsets:,} offsets and staging their rows"


def staged(entry: LedgerEntry) -> str:
    """What has been."""
    counts = entry.counts
    dead = f" and {counts.dead_letters:,} dead letters" if counts.dead_letters else ""
    return (
        f"version {entry.version}: staged {counts.rows:,} rows{dead} of {counts.records:,} records"
    )

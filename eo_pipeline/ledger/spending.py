"""What entries of a ledger cost together: pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any

from eo_pipeline.ledger.entry import LedgerEntry


@dataclass
class Spent:
    """Sums over ``versions`` entries. Bytes in are of values and keys, out of what was staged; wall
    time is from plan to commit, of which a version that was staged ahead has a part in common with
    the one before. ``measured`` entries say what they cost, and
    ``spark_measured`` of them what their Spark did: the other sums leave the rest out.
    """

    versions: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    wall: timedelta = timedelta()
    cpu: timedelta = timedelta()
    spark_cpu: timedelta = timedelta()
    measured: int = 0
    spark_measured: int = 0

    def add(self, entry: LedgerEntry) -> None:
        """With ``entry``, whether it still stands or not: it has been paid for."""
        counts, costs = entry.counts, entry.counts.costs
        self.versions += 1
        self.records += counts.records
        self.rows += counts.rows
        self.dead_letters += counts.dead_letters
        self.bytes_in += counts.bytes + (counts.key_bytes or 0)
        if entry.committed_at is not None:
            # by two clocks: the store's may be behind
            self.wall += max(timedelta(), entry.committed_at - entry.started_at)
        if costs is not None:
            self.measured += 1
            self.bytes_out += costs.bytes_out
            self.cpu += timedelta(milliseconds=costs.cpu_ms)
            if costs.spark_cpu_ms is not None:
                self.spark_measured += 1
                self.spark_cpu += timedelta(milliseconds=costs.spark_cpu_ms)

    def to_json(self) -> dict[str, Any]:
        """Plain values, seconds; None for what no entry says."""
        return {
            "versions": self.versions,
            "records": self.records,
            "rows": self.rows,
            "dead_letters": self.dead_letters,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out if self.measured else None,
            "wall_seconds": round(self.wall.total_seconds(), 3),
            "cpu_seconds": _seconds(self.cpu, self.measured),
            "cpu_measured_versions": self.measured,
            "spark_cpu_seconds": _seconds(self.spark_cpu, self.spark_measured),
            "spark_cpu_measured_versions": self.spark_measured,
        }


def _seconds(spent: timedelta, measured: int) -> float | None:
    return round(spent.total_seconds(), 3) if measured else None


def day_of(entry: LedgerEntry) -> str:
    """The day of its commit in UTC, as ISO 8601 has it."""
    return (entry.committed_at or entry.started_at).astimezone(UTC).date().isoformat()

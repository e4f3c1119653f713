"""Which rows replace which, in the SQL that databases share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eo_pipeline.sinks.sql.names import quoted
from eo_pipeline.sinks.upsert import UpsertRule


@dataclass(frozen=True)
class SqlUpsertRule(UpsertRule):
    """The rule for staged rows that wait in a table."""

    def newest_first(self, columns: Sequence[str]) -> str:
        """What to order the staged rows of one key by."""
        return ", ".join(f"{quoted(name)} DESC" for name in self.age_columns(columns))

    def refuse_nulls(self, stage: str, select: Callable[[str], Sequence[int]]) -> None:
        """Raise :class:`RefusedError` for rows without a key, or nothing to be sequenced by.

        ``select`` answers a query with its one row; ``stage`` is the quoted table of staged rows.
        """
        counts = ", ".join(f"count(*) - count({quoted(name)})" for name in self.never_null)
        self.check_nulls(select(f"SELECT {counts} FROM {stage}"))

"""Rows that replace their predecessors by key, in a lake table."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from eo_pipeline.sinks.upsert import UpsertRule


@dataclass(frozen=True)
class Upsert(UpsertRule):
    """The rule for staged rows in memory, and for a merge with the rows of a lake table."""

    def newest(self, table: pa.Table) -> pa.Table:
        """One row for each key: the newest.

        Raises:
            ConfigError: a column is absent.
            RefusedError: a row has no key, or nothing to be sequenced by.
        """
        self.check_columns(table.schema.names)
        self.check_nulls(table[name].null_count for name in self.never_null)
        by_key = [(name, "ascending") for name in self.key]
        newest_first = [(name, "descending") for name in self.age_columns(table.schema.names)]
        ordered = table.sort_by([*by_key, *newest_first]).combine_chunks()
        return ordered.filter(self._first_of_each_key(ordered))

    def _first_of_each_key(self, ordered: pa.Table) -> pa.Array:
        if ordered.num_rows < 2:
            return pa.array([True] * ordered.num_rows, pa.bool_())
        above, below = ordered.slice(0, ordered.num_rows - 1), ordered.slice(1)
        differs = None
        for name in self.key:
            column = pc.not_equal(above[name], below[name])
            differs = column if differs is None else pc.or_(differs, column)
        assert differs is not None, "an upsert has a key"
        return pa.concat_arrays([pa.array([True]), *differs.chunks])

    def same_row(self, old: str, new: str) -> str:
        """SQL: two rows have one key."""
        return " AND ".join(f"{old}.{_quoted(n)} = {new}.{_quoted(n)}" for n in self.key)

    def not_older(self, old: str, new: str) -> str | None:
        """SQL: the new row may replace the old one. ``None``: it always may."""
        if not self.sequence_by:
            return None
        pairs = [(f"{old}.{_quoted(n)}", f"{new}.{_quoted(n)}") for n in self.sequence_by]
        within = "true"
        for mine, other in reversed(pairs):
            within = f"({mine} < {other} OR ({mine} = {other} AND {within}))"
        # a row that came from elsewhere may have nothing to be sequenced by: it gives way
        return " OR ".join([within, *(f"{mine} IS NULL" for mine, _ in pairs)])


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'

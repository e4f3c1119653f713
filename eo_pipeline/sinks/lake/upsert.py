"""Rows that replace their predecessors by key, in a lake table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from eo_pipeline.errors import ConfigError, RefusedError

#: Where a record stood in its Kafka partition, if the pipeline writes lineage.
OFFSET_COLUMN = "_eo_offset"


@dataclass(frozen=True)
class Upsert:
    """Which rows are the same row, and which of them is the newest.

    Of several staged rows with one ``key`` the one with the greatest ``sequence_by`` wins, and then
    the one with the greatest Kafka offset. A row already in the table gives way to one of the next
    checkpoint, unless its own ``sequence_by`` is greater. Without ``sequence_by`` the offsets
    decide alone: that is right as long as a key stays in its Kafka partition.
    """

    key: tuple[str, ...]
    sequence_by: tuple[str, ...] = ()

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a result that lacks what an upsert goes by.

        Raises:
            ConfigError: names the field and the column.
        """
        for field, wanted in (("key", self.key), ("sequence_by", self.sequence_by)):
            absent = [name for name in wanted if name not in columns]
            if absent:
                raise ConfigError(f"sink.{field}: the result has no column {', '.join(absent)}")
        if not self.sequence_by and OFFSET_COLUMN not in columns:
            raise ConfigError(
                "sink.sequence_by: an upsert must know which of two rows is the newer one. Name "
                "the columns that tell, or keep the pipeline's lineage on."
            )

    def newest(self, table: pa.Table) -> pa.Table:
        """One row for each key: the newest.

        Raises:
            ConfigError: a column is absent.
            RefusedError: a row has no key, or nothing to be sequenced by.
        """
        self.check_columns(table.schema.names)
        self._refuse_nulls(table)
        offset = (OFFSET_COLUMN,) if OFFSET_COLUMN in table.schema.names else ()
        by_key = [(name, "ascending") for name in self.key]
        newest_first = [(name, "descending") for name in (*self.sequence_by, *offset)]
        ordered = table.sort_by([*by_key, *newest_first]).combine_chunks()
        return ordered.filter(self._first_of_each_key(ordered))

    def _refuse_nulls(self, table: pa.Table) -> None:
        for name in (*self.key, *self.sequence_by):
            if nulls := table[name].null_count:
                raise RefusedError(
                    f"column {name!r}, which an upsert goes by, is null in {nulls} row(s). "
                    "Nothing was written; filter them in the transform or fill the column."
                )

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

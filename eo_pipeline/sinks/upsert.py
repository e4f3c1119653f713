"""Rows that replace their predecessors by key: which are the same row, and which is the newest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eo_pipeline.errors import ConfigError, RefusedError

#: Where a record stood in its Kafka partition, if the pipeline writes lineage.
OFFSET_COLUMN = "_eo_offset"


@dataclass(frozen=True)
class UpsertRule:
    """Which rows are the same row, and which of them is the newest.

    Of several staged rows with one ``key`` the one with the greatest ``sequence_by`` wins, and then
    the one with the greatest Kafka offset. A row already in the table gives way to one of the next
    checkpoint, unless its own ``sequence_by`` is greater. Without ``sequence_by`` the offsets
    decide alone: that is right as long as a key stays in its Kafka partition.
    """

    key: tuple[str, ...]
    sequence_by: tuple[str, ...] = ()

    @property
    def never_null(self) -> tuple[str, ...]:
        """The columns that every row must have a value in."""
        return (*self.key, *self.sequence_by)

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

    def check_nulls(self, counts: Iterable[int]) -> None:
        """Refuse rows without a key, or nothing to be sequenced by.

        ``counts`` are the nulls in each column of :attr:`never_null`.

        Raises:
            RefusedError: names the column.
        """
        for name, nulls in zip(self.never_null, counts, strict=True):
            if nulls:
                raise RefusedError(
                    f"column {name!r}, which an upsert goes by, is null in {nulls} row(s). "
                    "Nothing was written; filter them in the transform or fill the column."
                )

    def age_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """What tells the age of the staged rows of one key, the greatest being the newest."""
        offset = (OFFSET_COLUMN,) if OFFSET_COLUMN in columns else ()
        return (*self.sequence_by, *offset)

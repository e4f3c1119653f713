"""The upsert rule: the columns that identify a row, and those that order its versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eo_pipeline.errors import ConfigError, RefusedError

#: Where a record came from, and where it stood there, if the pipeline writes lineage.
TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN = "_eo_topic", "_eo_partition", "_eo_offset"
#: Offsets of different topics or partitions cannot be compared.
ORIGIN = (TOPIC_COLUMN, PARTITION_COLUMN)


@dataclass(frozen=True)
class UpsertRule:
    """Identity of a row by ``key``, and the order of its versions.

    Of several staged rows with one ``key`` the one with the greatest ``sequence_by`` wins, and then
    the one with the greatest Kafka offset. A row already in the table gives way to one of the next
    checkpoint, unless its own ``sequence_by`` is greater.

    Without ``sequence_by`` the offsets decide alone, and they say nothing across Kafka partitions:
    a key that moved to another partition (partitions were added, say) would be a guess. Two rows of
    one key from different partitions, both staged or one of them in the table, are refused. A row
    of the table that does not say where it came from gives way.
    """

    key: tuple[str, ...]
    sequence_by: tuple[str, ...] = ()

    @property
    def never_null(self) -> tuple[str, ...]:
        """The columns that every row must have a value in."""
        return (*self.key, *(self.sequence_by or (*ORIGIN, OFFSET_COLUMN)))

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a result without the columns that an upsert needs.

        Raises:
            ConfigError: names the field and the column.
        """
        for field, required in (("key", self.key), ("sequence_by", self.sequence_by)):
            absent = [name for name in required if name not in columns]
            if absent:
                raise ConfigError(f"sink.{field}: the result has no column {', '.join(absent)}")
        if not self.sequence_by and not {*ORIGIN, OFFSET_COLUMN} <= set(columns):
            raise ConfigError(
                "sink.sequence_by: an upsert must know which of two rows is the newer one. Name "
                "the columns that tell, or keep the pipeline's lineage on."
            )

    def check_nulls(self, counts: Iterable[int]) -> None:
        """Refuse rows with a null in a key or ordering column.

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

    def refuse_order(
        self, key: Sequence[Any], one: Sequence[Any], other: Sequence[Any]
    ) -> RefusedError:
        """The error of two rows with ``key`` whose :data:`ORIGIN` differs."""
        named = ", ".join(f"{name} = {value!r}" for name, value in zip(self.key, key, strict=True))
        (topic, partition), (second, elsewhere) = sorted((tuple(one), tuple(other)))
        return RefusedError(
            f"cannot tell which of two rows with the key {named} is newer: one came from "
            f"{topic} partition {partition}, the other from {second} partition {elsewhere}, and "
            "offsets of different partitions cannot be compared (were partitions added, so that "
            "keys moved?). Nothing was written. Set sink.sequence_by to columns that decide: a "
            "version or time of the record's own, or Kafka's (_kafka.timestamp in the transform)."
        )

    def age_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Columns that order the staged rows of one key; the greatest value is the newest."""
        offset = (OFFSET_COLUMN,) if OFFSET_COLUMN in columns else ()
        return (*self.sequence_by, *offset)

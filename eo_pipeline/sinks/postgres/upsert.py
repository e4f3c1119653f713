"""Rows that replace their predecessors by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.sinks.postgres.load import conversions, names, stage_rows
from eo_pipeline.sinks.postgres.tables import Column, Connection, Table, columns_list
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.staged import StagedTable

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

    def apply(self, table: Table, staged: StagedTable) -> None:
        """Insert the rows, or update those that are there, within the open transaction.

        Raises:
            ConfigError: the table has no unique constraint on the key, or a column is absent.
            RefusedError: a row has no key, or nothing to be sequenced by.
        """
        self.check_columns(staged.schema.names)
        columns = table.prepare(staged.schema, self.key)
        stage = stage_rows(table, columns, staged)
        self._refuse_nulls(table.connection, stage)
        table.connection.execute(
            f"INSERT INTO {table.name.sql} AS old ({names(columns)}) "
            f"SELECT DISTINCT ON ({columns_list(self.key)}) {conversions(columns)} "
            f"FROM {stage.sql} ORDER BY {self._newest_first(staged.schema.names)} "
            f"ON CONFLICT ({columns_list(self.key)}) {self._conflict(columns)}".encode()
        )

    def _newest_first(self, columns: Sequence[str]) -> str:
        offset = (OFFSET_COLUMN,) if OFFSET_COLUMN in columns else ()
        newest = [f"{quoted(name)} DESC" for name in (*self.sequence_by, *offset)]
        return ", ".join([*map(quoted, self.key), *newest])

    def _conflict(self, columns: Sequence[Column]) -> str:
        rest = [quoted(column.name) for column in columns if column.name not in self.key]
        if not rest:
            return "DO NOTHING"
        updates = ", ".join(f"{name} = excluded.{name}" for name in rest)
        return f"DO UPDATE SET {updates}{self._unless_older()}"

    def _unless_older(self) -> str:
        if not self.sequence_by:
            return ""
        old = [f"old.{quoted(name)}" for name in self.sequence_by]
        new = [f"excluded.{quoted(name)}" for name in self.sequence_by]
        # a row that came from elsewhere may have nothing to be sequenced by: it gives way
        unknown = " OR ".join(f"{name} IS NULL" for name in old)
        return f" WHERE ({', '.join(old)}) <= ({', '.join(new)}) OR {unknown}"

    def _refuse_nulls(self, connection: Connection, stage: TableName) -> None:
        wanted = (*self.key, *self.sequence_by)
        counts = ", ".join(f"count(*) - count({quoted(name)})" for name in wanted)
        found = connection.execute(f"SELECT {counts} FROM {stage.sql}".encode()).fetchone()
        for name, nulls in zip(wanted, found or (), strict=True):
            if nulls:
                raise RefusedError(
                    f"column {name!r}, which an upsert goes by, is null in {nulls} row(s). "
                    "Nothing was written; filter them in the transform or fill the column."
                )

"""Staged rows into tables: straight by one binary COPY, or by way of a temporary table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pgpq
import pyarrow as pa
from pgpq.encoders import StringEncoderBuilder
from pgpq.schema import Jsonb

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.arrow import json_array
from eo_pipeline.sinks.postgres.tables import Column, Connection, Table, columns_list
from eo_pipeline.sinks.postgres.types import conversion, is_direct
from eo_pipeline.sinks.rows import bounded_batches, check_all_sent
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.staging.rows import StagedTable


def append(table: Table, staged: StagedTable) -> None:
    """Add the rows to ``table``, which is created or widened as they need.

    Raises:
        RefusedError: the rows do not fit, or could not be read from staging.
    """
    columns = table.prepare(staged.schema)
    if all(is_direct(column.type, column.wire) for column in columns):
        copy(table.connection, table.name, columns, staged)
        return
    stage = stage_rows(table, columns, staged)
    table.connection.execute(
        f"INSERT INTO {table.name.sql} ({names(columns)}) "
        f"SELECT {conversions(columns)} FROM {stage.sql}".encode()
    )


def stage_rows(table: Table, columns: Sequence[Column], staged: StagedTable) -> TableName:
    """Copy the rows into a new temporary table with the types they are sent in, and name it.

    It vanishes at the end of the transaction.
    """
    stage = TableName("pg_temp", f"eo_{table.name.name}"[:40])
    types = ", ".join(f"{quoted(column.name)} {column.wire.sent}" for column in columns)
    table.connection.execute(f"CREATE TEMP TABLE {stage.sql} ({types}) ON COMMIT DROP".encode())
    copy(table.connection, stage, columns, staged)
    return stage


def copy(
    connection: Connection, target: TableName, columns: Sequence[Column], staged: StagedTable
) -> None:
    """One binary COPY of all rows. The target's types must be exactly what is sent."""
    encoder = _Encoder.of(columns)
    statement = f"COPY {target.sql} ({names(columns)}) FROM STDIN WITH (FORMAT binary)"
    rows = 0
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as stream:
        stream.write(encoder.pgpq.write_header())
        for piece in bounded_batches(staged):
            rows += piece.num_rows
            stream.write(encoder.pgpq.write_batch(encoder.encodable(piece)))
        stream.write(encoder.pgpq.finish())
        check_all_sent(target, rows, staged)


@dataclass(frozen=True)
class _Encoder:
    """A :mod:`pgpq` encoder and the Arrow columns it was made for."""

    pgpq: pgpq.ArrowToPostgresBinaryEncoder
    columns: Sequence[Column]
    schema: pa.Schema

    @classmethod
    def of(cls, columns: Sequence[Column]) -> _Encoder:
        schema = pa.schema([pa.field(column.name, column.wire.arrow) for column in columns])
        builders = {
            field.name: StringEncoderBuilder.new_with_output(field, Jsonb())
            if column.wire.sent == "jsonb"
            else pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
            for field, column in zip(schema, columns, strict=True)
        }
        encoder = pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)
        return cls(encoder, columns, schema)

    def encodable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [_encodable(batch.column(c.name), c) for c in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _encodable(values: pa.Array, column: Column) -> pa.Array:
    try:
        sendable = json_array(values) if column.wire.sent == "jsonb" else values
        return sendable.cast(column.wire.arrow)
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise RefusedError(
            f"column {column.name!r} holds values that PostgreSQL cannot take: {error}. "
            "Nothing was written; correct them in the transform."
        ) from error


def names(columns: Sequence[Column]) -> str:
    """The columns' quoted names."""
    return columns_list([column.name for column in columns])


def conversions(columns: Sequence[Column]) -> str:
    """The columns of a stage, turned into the table's types."""
    return ", ".join(conversion(c.type, c.wire, quoted(c.name)) for c in columns)

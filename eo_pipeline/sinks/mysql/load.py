"""Staged rows into tables: by LOAD DATA LOCAL from a stream, or by statements of many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NoReturn

import pyarrow as pa
import pyarrow.csv as pc
import pymysql

from eo_pipeline.errors import EoPipelineError, RefusedError
from eo_pipeline.sinks.arrow import Kind
from eo_pipeline.sinks.mysql import errors
from eo_pipeline.sinks.mysql.connect import PACKET_BYTES, Connection
from eo_pipeline.sinks.mysql.names import columns_list
from eo_pipeline.sinks.mysql.tables import Column
from eo_pipeline.sinks.mysql.values import literal, readable
from eo_pipeline.sinks.rows import bounded_batches, check_all_sent
from eo_pipeline.sinks.sql.names import TableName, quoted
from eo_pipeline.staging.rows import StagedTable

#: Texts in quotes, null as the bare word NULL: so are null, the text NULL and an empty text told
#: apart. Without ``null_string`` a null would be written as nothing, which MySQL reads as a text.
_CSV = pc.WriteOptions(include_header=False, quoting_style="needed", null_string="NULL")
_CSV_IN_SQL = """
CHARACTER SET utf8mb4
FIELDS TERMINATED BY ',' ENCLOSED BY '"' ESCAPED BY '' LINES TERMINATED BY '\\n'
"""

#: An INSERT is sent when it has grown to this many characters; every server takes four times that.
_INSERT_LENGTH = 256 * 1024


@dataclass
class Loader:
    """Sends rows over ``connection``. Knows whether the server allows LOAD DATA once it asked."""

    connection: Connection
    may_load: bool
    sent: int = field(default=0, init=False)

    def load(self, target: TableName, columns: Sequence[Column], staged: StagedTable) -> None:
        """Add the rows to ``target`` in the open transaction, each exactly or none.

        Raises:
            RefusedError: the rows do not fit, or could not be read from staging.
            SinkUnavailableError: the server could not take them just now.
        """
        if not staged.rows:
            return
        self.sent = 0
        if not (self.may_load and self._load_data(target, columns, staged)):
            self._insert(target, columns, staged)
        check_all_sent(target, self.sent, staged)

    def _load_data(self, target: TableName, columns: Sequence[Column], staged: StagedTable) -> bool:
        """False if the server does not allow it. Then nothing was sent."""
        statement = _statement(target, columns)
        try:
            inserted = self.connection.load(statement, self._csv(columns, staged))
        except pymysql.MySQLError as error:
            if error.args[0] in errors.NOT_ALLOWED:
                self.may_load = False
                return False
            raise
        # LOCAL turns errors into warnings: what does not fit is bent, or the row left out
        self._refuse_warnings(target)
        if inserted != self.sent:
            raise RefusedError(
                f"{target}: MySQL took {inserted} of {self.sent} rows and does not say why. "
                "Nothing was written."
            )
        return True

    def _refuse_warnings(self, target: TableName) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("SHOW WARNINGS LIMIT 5")
            warnings = [errors.Diagnosis(int(n), str(text)) for _, n, text in cursor.fetchall()]
        if warnings:
            refuse(target, warnings)

    def _csv(self, columns: Sequence[Column], staged: StagedTable) -> Iterator[memoryview]:
        """The rows in packets. The next piece is written while the server digests this one."""
        texts = map(_as_csv, self._pieces(columns, staged))
        with ThreadPoolExecutor(1) as writer:
            coming = writer.submit(next, texts, None)
            while (text := coming.result()) is not None:
                coming = writer.submit(next, texts, None)
                for start in range(0, len(text), PACKET_BYTES):
                    yield text[start : start + PACKET_BYTES]

    def _insert(self, target: TableName, columns: Sequence[Column], staged: StagedTable) -> None:
        into = f"INSERT INTO {target.sql} ({_names(columns)}) VALUES "
        for piece in self._pieces(columns, staged):
            for rows in self._values(piece):
                with self.connection.cursor() as cursor:
                    cursor.execute(into + rows)
                # strict mode makes errors of what does not fit, but not of all that is rounded
                self._refuse_warnings(target)

    def _values(self, piece: pa.RecordBatch) -> Iterator[str]:
        """Rows as literals, as many at a time as one statement takes."""
        escape = self.connection.escape
        rows: list[str] = []
        length = 0
        for row in zip(*(column.to_pylist() for column in piece.columns), strict=True):
            rows.append(f"({','.join(literal(value, escape) for value in row)})")
            length += len(rows[-1])
            if length > _INSERT_LENGTH:
                yield ",".join(rows)
                rows, length = [], 0
        if rows:
            yield ",".join(rows)

    def _pieces(self, columns: Sequence[Column], staged: StagedTable) -> Iterator[pa.RecordBatch]:
        for piece in bounded_batches(staged):
            self.sent += piece.num_rows
            yield readable(piece, columns)


def refuse(target: TableName, warnings: Sequence[errors.Diagnosis]) -> NoReturn:
    """Raise what ``warnings`` mean: the first, unless one of them only asks for patience.

    Raises:
        RefusedError: a value did not fit.
        SinkUnavailableError: nothing is said against the rows.
    """
    transient = [found for found in warnings if found.is_transient]
    failure: EoPipelineError = errors.while_publishing((transient or warnings)[0], str(target))
    raise failure


def _statement(target: TableName, columns: Sequence[Column]) -> str:
    """LOAD DATA for rows of :data:`_CSV`. The file's name means nothing: see ``Connection``."""
    places = {c.name: f"@eo{n}" for n, c in enumerate(columns) if c.wire.kind is Kind.BINARY}
    fields = ", ".join(places.get(c.name) or quoted(c.name) for c in columns)
    unhex = ", ".join(f"{quoted(name)} = UNHEX({place})" for name, place in places.items())
    set_clause = f" SET {unhex}" if unhex else ""
    return (
        f"LOAD DATA LOCAL INFILE 'eo-pipeline' INTO TABLE {target.sql} {_CSV_IN_SQL} "
        f"({fields}){set_clause}"
    )


def _as_csv(piece: pa.RecordBatch) -> memoryview:
    text = pa.BufferOutputStream()
    pc.write_csv(_in_hex(piece), text, _CSV)
    return memoryview(text.getvalue())


def _in_hex(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with bytes as hexadecimal digits: a character set has no say in those."""
    arrays = [
        pa.array([None if value is None else value.hex() for value in column.to_pylist()])
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _names(columns: Sequence[Column]) -> str:
    return columns_list(column.name for column in columns)

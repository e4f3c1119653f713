"""Staged rows into MySQL's tables: by LOAD DATA LOCAL from a stream, or by statements of many rows.
Values travel in a form in which MySQL reads them exactly, or are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from pyarrow import csv

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.arrow import Kind, has_common_years, json_array, refusing
from eo_pipeline.sinks.mysql.errors import diagnosis, number_of
from eo_pipeline.sinks.mysql.store import (
    NOT_ALLOWED,
    PACKET_BYTES,
    MySqlStore,
)
from eo_pipeline.sinks.mysql.types import ColumnType, WireType
from eo_pipeline.sinks.rows import bounded_batches, check_all_sent
from eo_pipeline.sinks.sql.dialect import Column
from eo_pipeline.sinks.sql.names import TableName, columns_list, quoted
from eo_pipeline.staging.rows import StagedTable

MySqlColumn = Column[WireType, ColumnType]

_MICROSECOND_DIGITS = 6

#: Texts in quotes, null as the bare word NULL: so are null, the text NULL and an empty text told
#: apart. Without ``null_string`` a null would be written as nothing, which MySQL reads as a text.
_CSV = csv.WriteOptions(include_header=False, quoting_style="needed", null_string="NULL")
_CSV_IN_SQL = """
CHARACTER SET utf8mb4
FIELDS TERMINATED BY ',' ENCLOSED BY '"' ESCAPED BY '' LINES TERMINATED BY '\\n'
"""

#: An INSERT is sent when it has grown to this many characters; every server takes four times that.
_INSERT_LENGTH = 256 * 1024


def load(
    store: MySqlStore,
    target: TableName,
    columns: Sequence[MySqlColumn],
    staged: StagedTable,
    *,
    by_insert: bool = False,
) -> int:
    """Add the rows to ``target`` in the open transaction, each exactly or none. Gives how many the
    server says that it took. ``by_insert`` and not by LOAD DATA.

    Raises:
        RefusedError: the rows do not fit, or could not be read from staging.
        SinkUnavailableError: the server could not take them just now.
    """
    if not staged.rows:
        return 0
    return _Load(store, target, columns, staged, may_load=store.may_load and not by_insert).run()


@dataclass
class _Load:
    """One load; ``sent`` counts its rows, ``taken`` those that the server says it took."""

    store: MySqlStore
    target: TableName
    columns: Sequence[MySqlColumn]
    staged: StagedTable
    may_load: bool = True
    sent: int = 0
    taken: int = 0

    def run(self) -> int:
        if not (self.may_load and self._load_data()):
            self._insert()
        check_all_sent(self.target, self.sent, self.staged)
        if self.taken != self.sent:
            raise RefusedError(
                f"{self.target}: MySQL took {self.taken} of {self.sent} rows and does not say why. "
                "Nothing was written."
            )
        return self.taken

    def _load_data(self) -> bool:
        """False if the server does not allow it. Then nothing was sent."""
        try:
            self.taken = self.store.connection.load(
                _statement(self.target, self.columns), self._csv()
            )
        except pymysql.MySQLError as error:
            if number_of(error) in NOT_ALLOWED:
                self.store.may_load = False
                return False
            raise
        # LOCAL turns errors into warnings: what does not fit is bent, or the row left out
        self._refuse_warnings()
        return True

    def _refuse_warnings(self) -> None:
        """Raise what the warnings mean: the first, unless one of them only asks for patience.

        Raises:
            RefusedError: a value did not fit.
            SinkUnavailableError: nothing is said against the rows.
        """
        count = self.store.connection.warnings
        shown = self.store.rows("SHOW WARNINGS LIMIT 5") if count else []
        warnings = [diagnosis(int(number), str(text)) for _, number, text in shown]
        transient = [found for found in warnings if found.is_transient]
        if warnings:
            raise self.store.while_publishing((transient or warnings)[0], self.target)
        if count:
            raise RefusedError(
                f"{self.target}: MySQL warns of {count} values that do not fit, and does not say "
                "of which: max_error_count is 0. Nothing was written. SET GLOBAL max_error_count "
                "= 64 shows them."
            )

    def _csv(self) -> Iterator[memoryview]:
        """The rows in packets. The next batch is written while the server digests this one."""
        texts = map(_as_csv, self._batches())
        with ThreadPoolExecutor(1) as writer:
            coming = writer.submit(next, texts, None)
            while (text := coming.result()) is not None:
                coming = writer.submit(next, texts, None)
                for start in range(0, len(text), PACKET_BYTES):
                    yield text[start : start + PACKET_BYTES]

    def _insert(self) -> None:
        names = columns_list(column.name for column in self.columns)
        for batch in self._batches():
            for rows in self._values(batch):
                insert = f"INSERT INTO {self.target.sql} ({names}) VALUES {rows}"
                self.taken += self.store.execute(insert).rowcount
                # strict mode makes errors of what does not fit, but not of all that is rounded
                self._refuse_warnings()

    def _values(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Rows as literals, as many at a time as one statement takes."""
        escape = self.store.connection.escape
        rows: list[str] = []
        length = 0
        for row in zip(*map(_python_values, batch.schema.names, batch.columns), strict=True):
            rows.append(f"({','.join(_literal(value, escape) for value in row)})")
            length += len(rows[-1])
            if length > _INSERT_LENGTH:
                yield ",".join(rows)
                rows, length = [], 0
        if rows:
            yield ",".join(rows)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in bounded_batches(self.staged):
            self.sent += batch.num_rows
            yield _readable_batch(batch, self.columns)


def _statement(target: TableName, columns: Sequence[MySqlColumn]) -> str:
    """LOAD DATA for rows of :data:`_CSV`. The file's name means nothing: see ``Connection``."""
    variables = {c.name: f"@eo{n}" for n, c in enumerate(columns) if c.wire.kind is Kind.BINARY}
    fields = ", ".join(variables.get(c.name) or quoted(c.name) for c in columns)
    unhex = ", ".join(f"{quoted(name)} = UNHEX({variable})" for name, variable in variables.items())
    set_clause = f" SET {unhex}" if unhex else ""
    return (
        f"LOAD DATA LOCAL INFILE 'eo-pipeline' INTO TABLE {target.sql} {_CSV_IN_SQL} "
        f"({fields}){set_clause}"
    )


def _as_csv(batch: pa.RecordBatch) -> memoryview:
    text = pa.BufferOutputStream()
    csv.write_csv(_in_hex(batch), text, _CSV)
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


def _readable_batch(batch: pa.RecordBatch, columns: Sequence[MySqlColumn]) -> pa.RecordBatch:
    """``batch`` with booleans as numbers, times in UTC without saying so, nested values as JSON.

    Raises:
        RefusedError: a value that MySQL would bend: NaN, infinity, a part of a second that the
            column does not keep, a null where the column has none.
    """
    arrays = [_readable(batch.column(column.name), column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _readable(values: pa.Array, column: MySqlColumn) -> pa.Array:
    if not column.type.nullable and values.null_count:
        # LOAD DATA would put in zero, the present time or the next number
        raise _refused(column, f"{values.null_count} null(s), and the column is NOT NULL")
    with refusing(column.name, "MySQL"):
        return _converted(values, column)


def _converted(values: pa.Array, column: MySqlColumn) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = column.wire.kind
    if kind is Kind.NESTED:
        return json_array(values)
    if kind is Kind.BOOLEAN:
        return values.cast(pa.int8())
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return _finite(values, column)
    if kind is Kind.TEXT:
        values.validate(full=True)  # an INSERT is made of texts that Python can read
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ):
        values = _in_utc(values, column)
    if not has_common_years(values):
        raise _refused(column, "a year before 1 or after 9999")
    return values


def _finite(values: pa.Array, column: MySqlColumn) -> pa.Array:
    if not pc.all(pc.is_finite(values), min_count=0).as_py():
        raise _refused(column, "NaN or infinity, which MySQL has not")
    # a float's shortest text names another double than the float is
    return values.cast(pa.float64()) if column.type.data_type == "double" else values


def _in_utc(values: pa.Array, column: MySqlColumn) -> pa.Array:
    instants = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.timestamp("us"))
    digits = column.type.digits or 0
    if digits < _MICROSECOND_DIGITS:
        step = 10 ** (_MICROSECOND_DIGITS - digits)
        ticks = instants.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(ticks, step), step), ticks)).as_py():
            raise _refused(
                column, f"parts of a second that {column.type.spelled} does not keep; "
                "round them in the transform, or make the column datetime(6)",
            )  # fmt: skip
    return instants


def _refused(column: MySqlColumn, what: str) -> RefusedError:
    return RefusedError(
        f"column {column.name!r} holds values that MySQL cannot take: {what}. "
        "Nothing was written; correct them in the transform."
    )


def _python_values(name: str, column: pa.Array) -> list[Any]:
    with refusing(name, "MySQL"):
        values: list[Any] = column.to_pylist()
    return values


def _literal(value: Any, quote: Any) -> str:
    """``value`` of a :func:`_readable_batch` column in a statement; ``quote`` encloses a text."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, int | float):
        return repr(value)
    return str(quote(str(value)))

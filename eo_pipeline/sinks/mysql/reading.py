"""How columns of MySQL are read, each as the Arrow type that holds all its values."""

from __future__ import annotations

import pyarrow as pa

from eo_pipeline.sinks.mysql.types import DIGITS_MAX, ColumnType
from eo_pipeline.sinks.sql.names import quoted
from eo_pipeline.sinks.sql.selecting import ReadColumn

_SIGNED = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "mediumint": pa.int32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
}
#: The next wider one.
_UNSIGNED = {
    "tinyint": pa.int16(),
    "smallint": pa.int32(),
    "mediumint": pa.int32(),
    "int": pa.int64(),
    "bigint": pa.decimal128(20, 0),
}
_OTHERS = {
    "double": pa.float64(),
    "varchar": pa.string(),
    "tinytext": pa.string(),
    "text": pa.string(),
    "mediumtext": pa.string(),
    "longtext": pa.string(),
    "varbinary": pa.binary(),
    "tinyblob": pa.binary(),
    "blob": pa.binary(),
    "mediumblob": pa.binary(),
    "longblob": pa.binary(),
    "date": pa.date32(),
}
_TIMES = frozenset({"datetime", "timestamp"})
_MICROSECONDS = 6


def read_as(name: str, kind: ColumnType) -> ReadColumn:
    """How the column ``name`` is read: with all that was written to it, or as text where MySQL
    keeps a form of its own, or less of it.
    """
    if kind.spelled == "tinyint(1)":
        return ReadColumn.exact(name, pa.bool_(), pa.int8())
    whole = (_UNSIGNED if "unsigned" in kind.spelled else _SIGNED).get(kind.data_type)
    arrow = whole or _OTHERS.get(kind.data_type) or _with_digits(kind)
    if arrow is None:
        return ReadColumn.own_form(name, f"CAST({quoted(name)} AS CHAR) AS {quoted(name)}")
    return ReadColumn.exact(name, arrow)


def _with_digits(kind: ColumnType) -> pa.DataType | None:
    if kind.data_type in _TIMES and kind.digits == _MICROSECONDS:
        return pa.timestamp("us")
    if kind.data_type == "decimal" and (kind.precision or DIGITS_MAX + 1) <= DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.digits or 0)
    return None

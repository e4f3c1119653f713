"""Layout of a partitioned table's files: in folders ``name=value``, named as delta-rs names them.

The log says of each file which values its rows have, and most readers go by that. Polars goes by
the folders, and by the file where there are none; files of both kinds in one table it does not
read. What delta-rs writes (a merge, OPTIMIZE) has the folders and not the columns, so every file of
ours lies in them too. Whether it holds the columns as well makes no difference to any reader then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from eo_pipeline._lazy import pa, pt
from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.sinks.columns import Unfit, column
from eo_pipeline.sinks.lake.types import layout_text

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

#: The folder of null, for every reader. A text like this, however it is escaped, Polars reads as
#: null.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

#: Bytes of a folder's name, in every file system there is.
_NAME_MAX = 255

#: Names of Spark's types by which a table is laid out. Not by floating point, where 1e300 makes no
#: folder, nor by bytes, of which no two readers agree.
_TEXT = frozenset({"string", "char", "varchar"})
_WHOLE = frozenset({"boolean", "byte", "short", "integer", "long"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_DECIMAL = "decimal"
_TYPES = _TEXT | _WHOLE | _TIMES | {_DECIMAL}

#: What is escaped, as a regular expression.
_ODD = "[^A-Za-z0-9_.-]"


def partition_value(name: str, value: Any) -> str | None:
    """As the log has it (Delta protocol, "Partition Value Serialization"). An instant with its
    zone: without one Spark takes it for one of the session's.

    Raises:
        RefusedError: a value of this type has no such form.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        if value.tzinfo:
            utc = value.astimezone(UTC).replace(tzinfo=None)
            return f"{utc.isoformat(timespec='microseconds')}Z"
        return value.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, int | str | date):
        return str(value)
    raise RefusedError(
        f"partition column {name!r} is of a type by which a table is not laid out "
        f"({type(value).__name__}). Nothing was written; choose another column."
    )


def folder_of(values: Mapping[str, Any]) -> str:
    """Below which folders a file with these ``values`` lies; empty if there are none."""
    return "/".join(_folder(name, _folder_text(name, value)) for name, value in values.items())


def has_folder(values: Mapping[str, Any]) -> bool:
    """Return whether readers get the ``values`` back from :func:`folder_of`."""
    return not any(_why_not(name, _folder_text(name, value)) for name, value in values.items())


def _folder_text(name: str, value: Any) -> str | None:
    """As delta-rs names the folder. An instant has no zone there, other than in the log: Polars
    takes one form of all folders, those of delta-rs among them.
    """
    if isinstance(value, datetime) and value.tzinfo:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return partition_value(name, value)


def checked_value(name: str, value: Any) -> str | None:
    """As :func:`partition_value`, of rows that are to be written.

    Raises:
        RefusedError: readers would not have it back. Staging looks for such rows; what an earlier
            release staged is refused, and its ranges are read again.
    """
    text = partition_value(name, value)
    is_odd = isinstance(value, Decimal) and value < 0 and value != value.to_integral_value()
    if why := _NEGATIVE if is_odd else _why_not(name, text):
        raise RefusedError(
            f"partition column {name!r} holds {why}. Nothing was written; give it another value in "
            "the transform."
        )
    return text


def refuse_merged(rows: pa.Table, partition_by: Sequence[str]) -> None:
    """Return if delta-rs may merge ``rows``; raises as :func:`checked_value`."""
    for name in partition_by:
        kind = rows.schema.field(name).type
        if pt.is_decimal(kind):
            raise RefusedError(f"partition column {name!r} {_BY_DELTA_RS.format(kind)}")
        for value in rows[name].unique().to_pylist():
            checked_value(name, value)


def _folder(name: str, value: str | None) -> str:
    return f"{name}={NULL_FOLDER if value is None else _escaped(value)}"


def _escaped(value: str) -> str:
    """As delta-rs does, and the tilde as well, below which its own OPTIMIZE finds no file."""
    return quote(value, safe="").replace("~", "%7E")


def _why_not(name: str, value: str | None) -> str | None:
    if value == "":
        return _EMPTY
    if value == NULL_FOLDER:
        return _NULL
    longest = _bytes_left(name)
    return _long(longest) if value and len(_escaped(value)) > longest else None


_EMPTY = "an empty text, which Delta reads back as null"
_NULL = f"the text {NULL_FOLDER}, which stands for null"
_NEGATIVE = "a negative number that is not whole, which delta-rs does not read back"
_BY_DELTA_RS = (
    "is of type {}: delta-rs, which merges the rows, writes negative values in a way that makes "
    "the table unreadable"
)


def _long(longest: int) -> str:
    return (
        f"a text too long for the name of a folder: more than {longest} bytes, where bytes other "
        "than letters, digits and _.- count three times"
    )


def _bytes_left(name: str) -> int:
    """For an escaped value of the column ``name``."""
    return _NAME_MAX - len(f"{name}=".encode())


def refuse_layout(schema: StructType, partition_by: tuple[str, ...], *, merges: bool) -> None:
    """Return if a table can be laid out by the columns ``partition_by`` of ``schema``.

    Raises:
        ConfigError: names one that is absent or of a type that does not do.
    """
    absent = [name for name in partition_by if name not in schema.names]
    if absent:
        raise ConfigError(f"sink.partition_by: the result has no column {', '.join(absent)}")
    for name in partition_by:
        if why := _unusable(name, schema[name].dataType, merges=merges):
            raise ConfigError(
                f"sink.partition_by: {name!r} {why}. Nothing was read; lay the table out by "
                "another column, or by one that the transform makes of it."
            )


def _unusable(name: str, kind: DataType, *, merges: bool) -> str | None:
    if "/" in name:
        return "has a slash in its name, which would make two folders of one"
    if kind.typeName() not in _TYPES:
        return f"is of type {kind.simpleString()}, which does not make the name of a folder"
    if merges and kind.typeName() == _DECIMAL:
        return _BY_DELTA_RS.format(kind.simpleString())
    return None


def unfit_for(schema: StructType, partition_by: tuple[str, ...]) -> Iterator[tuple[str, Unfit]]:
    """Condition of values that have no folder, with the column that holds them."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DecimalType

    for name in partition_by:
        kind = schema[name].dataType if name in schema.names else None
        value = column(name)
        if kind is None:
            continue
        if kind.typeName() in _TEXT:
            yield name, Unfit(value == "", _EMPTY)
            yield name, Unfit(value == NULL_FOLDER, _NULL)
            longest, size = _bytes_left(name), F.octet_length(value)
            kept = F.length(F.regexp_replace(value, _ODD, ""))
            is_dense = (size * 3 > longest) & (size * 3 - kept * 2 > longest)
            yield name, Unfit(is_dense, _long(longest))
        elif isinstance(kind, DecimalType) and kind.scale:
            yield name, Unfit((value < 0) & (value % 1 != 0), _NEGATIVE)


def layout_copy(value: Column, kind: DataType) -> Column:
    """By which Spark lays out the files it stages; see
    :data:`eo_pipeline.sinks.lake.types.LAYOUT_PREFIX`.
    """
    return layout_text(value) if kind.typeName() in _TEXT else value

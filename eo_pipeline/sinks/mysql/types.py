"""Arrow types and MySQL types: what is sent, what a new column gets, what may be widened.

=====================================  ===========================  ==============================
Spark, Arrow                           MySQL                        may also go into
=====================================  ===========================  ==============================
boolean                                tinyint(1)
byte, short                            smallint                     any integer as wide or wider
int                                    int                          (unsigned too), decimal, double
long                                   bigint                       bigint unsigned, decimal
float, double                          double                       a float also into float
decimal(p, s)                          decimal(p, s)                decimal with scale >= s
string                                 longtext, as a key           char, varchar, any text, json,
                                       varchar(255)                 uuid, inet4, inet6
binary                                 longblob, as a key           varbinary, any blob
                                       varbinary(255)
date                                   date                         datetime
timestamp, timestamp_ntz               datetime(6), a timestamp     timestamp; fewer digits only
                                       in UTC                       for values that have no more
struct, map, array                     json                         any text, varchar
=====================================  ===========================  ==============================

Everything else is refused by name. MySQL has no NaN and no infinity: rows with one are
refused. A float becomes a double because clients are shown six digits of a float column,
whatever it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from eo_pipeline.errors import SchemaChangeError

#: Length of a key's text: three such columns fit into InnoDB's index of 3072 bytes.
KEY_LENGTH = 255

#: The most digits behind the point that both MySQL and MariaDB can have.
SCALE_MAX = 30

Check = Callable[[pa.DataType], bool]

_INTEGERS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
_WIDTHS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"})
#: MariaDB's own, read from text and refused if they are not one.
_READ_FROM_TEXT = frozenset({"uuid", "inet4", "inet6"})
_BINARIES = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})

_SCALARS: tuple[tuple[Check, str, str], ...] = (
    (pa.types.is_boolean, "boolean", "tinyint(1)"),
    (pa.types.is_int8, "int8", "smallint"),
    (pa.types.is_int16, "int16", "smallint"),
    (pa.types.is_int32, "int32", "int"),
    (pa.types.is_int64, "int64", "bigint"),
    (pa.types.is_float32, "float", "double"),
    (pa.types.is_float64, "double", "double"),
    (pa.types.is_decimal128, "decimal", "decimal"),
    (pa.types.is_string, "text", "longtext"),
    (pa.types.is_large_string, "text", "longtext"),
    (pa.types.is_binary, "binary", "longblob"),
    (pa.types.is_large_binary, "binary", "longblob"),
    (pa.types.is_date32, "date", "date"),
    (pa.types.is_timestamp, "datetime", "datetime(6)"),
)

#: What text and binary columns get where they are part of a key.
_AS_KEY = {"text": f"varchar({KEY_LENGTH})", "binary": f"varbinary({KEY_LENGTH})"}


@dataclass(frozen=True)
class WireType:
    """What a staged column is: ``meant`` the kind of its values, ``declared`` what a new column
    gets, ``scale`` the digits behind the point of exact numbers.
    """

    meant: str
    declared: str
    scale: int = 0

    @property
    def nullable(self) -> str:
        """What a new column gets."""
        return f"{self.declared} NULL"

    @property
    def as_key(self) -> str:
        """What a new column gets that is part of a key."""
        return _AS_KEY.get(self.meant, self.declared)


@dataclass(frozen=True)
class ColumnType:
    """The type of a table's column, as ``information_schema.columns`` has it.

    ``data_type`` is ``decimal``, ``spelled`` is ``decimal(10,2) unsigned``; ``digits`` are those
    behind the point, of a number or of a second; ``collation`` is ``None`` but for text.
    """

    data_type: str
    spelled: str
    digits: int | None = None
    collation: str | None = None
    nullable: bool = True
    computed: bool = False
    counts: bool = False

    @property
    def declared(self) -> str:
        """The type in a statement that makes a column just like this one, which may be null."""
        collated = f" COLLATE {self.collation}" if self.collation else ""
        return f"{self.spelled}{collated} NULL"


def wire_type(field: pa.Field) -> WireType:
    """How ``field`` travels.

    Raises:
        SchemaChangeError: MySQL has no type for it.
    """
    data_type = field.type
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    found = _scalar(data_type) or _nested(data_type)
    if found is None:
        raise SchemaChangeError(
            f"column {field.name!r}: MySQL has no type for {data_type}. Nothing was written; "
            "cast or drop it in the transform."
        )
    return found


def _scalar(data_type: pa.DataType) -> WireType | None:
    found = next(((m, d) for fits, m, d in _SCALARS if fits(data_type)), None)
    if found is None:
        return None
    meant, declared = found
    if meant != "decimal":
        return WireType(meant, declared)
    if not 0 <= data_type.scale <= SCALE_MAX:
        return None
    return WireType(meant, f"decimal({data_type.precision},{data_type.scale})", data_type.scale)


def _nested(data_type: pa.DataType) -> WireType | None:
    is_json = pa.types.is_nested(data_type) and has_json(data_type)
    return WireType("json", "json") if is_json else None


def has_json(data_type: pa.DataType) -> bool:
    """True if values of ``data_type`` can be written as JSON and be told apart there."""
    if pa.types.is_struct(data_type):
        return all(has_json(field.type) for field in data_type)
    if pa.types.is_map(data_type):
        key = data_type.key_type
        return (pa.types.is_string(key) or pa.types.is_integer(key)) and has_json(
            data_type.item_type
        )
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return has_json(data_type.value_type)
    return any(fits(data_type) for fits, _, _ in _SCALARS)


def takes(column: ColumnType, wire: WireType) -> bool:
    """True if every value of ``wire`` has its exact counterpart in ``column``, or is refused."""
    meant, found = wire.meant, column.data_type
    if meant == "boolean" or column.spelled == "tinyint(1)":
        return meant == "boolean" and column.spelled == "tinyint(1)"
    if meant in _INTEGERS:
        return _takes_integer(found, _INTEGERS[meant])
    if meant == "decimal":
        return found == "decimal" and wire.scale <= (column.digits or 0)
    return found in _TAKEN_BY[meant]


def _takes_integer(found: str, width: int) -> bool:
    if found in ("double", "float"):
        return width <= (4 if found == "double" else 2)
    return found == "decimal" or _WIDTHS.get(found, 0) >= width


_TAKEN_BY = {
    "float": frozenset({"float", "double"}),
    "double": frozenset({"double"}),
    "text": _TEXTS | _READ_FROM_TEXT,
    "binary": _BINARIES,
    "date": frozenset({"date", "datetime"}),
    "datetime": frozenset({"datetime", "timestamp"}),
    "json": _TEXTS - {"char"},
}

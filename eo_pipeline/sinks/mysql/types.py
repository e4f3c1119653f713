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

from dataclasses import dataclass

import pyarrow as pa

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.arrow import WHOLE_DIGITS, Kind, kind_of
from eo_pipeline.sinks.sql.config import NameRules, TableName, quoted
from eo_pipeline.sinks.sql.table import AnyColumnType, ReadColumn

#: MySQL Reference Manual, "Identifier Length ColumnLimits".
NAME_LENGTH_MAX = 64

#: Identifiers are kept in three bytes a character, and end in no blank
#: (MySQL Reference Manual, "Schema Object Names").
_LAST_CHARACTER = "\uffff"


def _check_name(name: str) -> None:
    """Raise ``ValueError`` for what cannot be a name in MySQL."""
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ValueError(f"{name!r} has not between 1 and {NAME_LENGTH_MAX} characters")
    if name.endswith(" ") or any(c == "\0" or c > _LAST_CHARACTER for c in name):
        raise ValueError(f"{name!r} ends in a blank, or holds a character MySQL has not in names")


NAMES = NameRules("MySQL", _check_name, str.lower)


def for_people(name: str | TableName) -> str:
    """As a statement in a message has it, to be run in anybody's session: in backticks."""
    parts = (name.schema, name.name) if isinstance(name, TableName) else (name,)
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts if part)


#: Length of a key's text: three such columns fit into InnoDB's index of 3072 bytes.
KEY_LENGTH = 255

#: The most digits behind the point that both MySQL and MariaDB can have.
SCALE_MAX = 30

#: The most digits that Spark and Arrow have.
DIGITS_MAX = 38

_INTEGERS = {Kind.INT8: 1, Kind.INT16: 2, Kind.INT32: 4, Kind.INT64: 8}
_WIDTHS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_WHOLE = {"tinyint": 3, "smallint": 5, "mediumint": 7, "int": 10, "bigint": 19}
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"})
#: MariaDB's own, read from text and refused if they are not one.
_READ_FROM_TEXT = frozenset({"uuid", "inet4", "inet6"})
_BINARIES = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})

#: What new columns get; decimals see :func:`wire_type`.
_NAMES = {
    Kind.BOOLEAN: "tinyint(1)",
    Kind.INT8: "smallint",
    Kind.INT16: "smallint",
    Kind.INT32: "int",
    Kind.INT64: "bigint",
    Kind.FLOAT: "double",
    Kind.DOUBLE: "double",
    Kind.TEXT: "longtext",
    Kind.BINARY: "longblob",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "datetime(6)",
    Kind.TIMESTAMP_NTZ: "datetime(6)",
    Kind.NESTED: "json",
}

#: What text and binary columns get where they are part of a key.
_AS_KEY = {Kind.TEXT: f"varchar({KEY_LENGTH})", Kind.BINARY: f"varbinary({KEY_LENGTH})"}


@dataclass(frozen=True)
class WireType:
    """Type of a staged column: the ``kind`` of its values, ``declared`` what a new column gets,
    ``scale`` the digits behind the point of exact numbers, ``whole`` those before it at most.
    """

    kind: Kind
    declared: str
    scale: int = 0
    whole: int | None = None

    @property
    def nullable(self) -> str:
        """The declaration of a new column."""
        return f"{self.declared} NULL"

    @property
    def as_key(self) -> str:
        """The declaration of a new column that is part of a key."""
        return _AS_KEY.get(self.kind, self.declared)

    def __str__(self) -> str:
        return f"{self.declared} ({self.kind})"


@dataclass(frozen=True)
class ColumnType(AnyColumnType):
    """The type of a table's column, as ``information_schema.columns`` has it.

    ``data_type`` is ``decimal``, ``spelled`` is ``decimal(10,2) unsigned``; ``digits`` are those
    behind the point, of a number or of a second; ``collation`` is ``None`` but for text. What
    ``is_counted`` gets the next number if it is given none, what ``has_default`` that.
    ``precision`` are all digits of a number; what ``is_special`` has more about it than is said
    here, which a new declaration would drop.
    """

    data_type: str
    spelled: str
    digits: int | None = None
    collation: str | None = None
    nullable: bool = True
    is_computed: bool = False
    is_counted: bool = False
    has_default: bool = False
    precision: int | None = None
    comment: str = ""
    is_special: bool = False

    @property
    def must_be_given(self) -> bool:
        """True if a row has to bring a value: there is nothing to take instead."""
        return not (self.nullable or self.has_default or self.is_computed or self.is_counted)

    @property
    def declared(self) -> str:
        """The type in a statement that makes a column just like this one, which may be null."""
        collated = f" COLLATE {self.collation}" if self.collation else ""
        return f"{self.spelled}{collated} NULL"

    def takes(self, wire: WireType) -> bool:
        """True if every value of ``wire`` has its exact counterpart here, or is refused."""
        kind, data_type = wire.kind, self.data_type
        if kind is Kind.BOOLEAN or self.spelled == "tinyint(1)":
            return kind is Kind.BOOLEAN and self.spelled == "tinyint(1)"
        if kind in _INTEGERS:
            return _takes_integer(data_type, _INTEGERS[kind])
        if kind is Kind.DECIMAL:
            return data_type == "decimal" and wire.scale <= (self.digits or 0)
        return data_type in _TAKEN_BY[kind]

    def room(self, wire: WireType) -> int | None:
        """Digits before the point, if those of ``wire`` may be more."""
        if self.data_type != "decimal" or self.precision is None or wire.whole is None:
            return None
        room = self.precision - (self.digits or 0)
        return room if room < wire.whole else None

    def wider(self, wire: WireType) -> str | None:
        """Return the declaration, without its comment, that takes ``wire`` and every present value
        unchanged. None where more than that would have to be declared.
        """
        if self.is_counted or self.is_computed or self.is_special:
            return None
        type_ = self._wider_type(wire)
        return type_ and f"{type_} {'NULL' if self.nullable else 'NOT NULL'}"

    def _wider_type(self, wire: WireType) -> str | None:
        unsigned = " unsigned" if "unsigned" in self.spelled else ""
        if self.spelled == "tinyint(1)" or "zerofill" in self.spelled:
            return None
        if wire.kind in _INTEGERS and self.data_type in _WIDTHS:
            return f"{_NAMES[wire.kind]}{unsigned}"
        if wire.kind in (Kind.FLOAT, Kind.DOUBLE):
            exact = {"float", *(n for n, width in _WIDTHS.items() if width <= _WIDTHS["int"])}
            return "double" if self.data_type in exact and not unsigned else None
        whole = _WHOLE.get(self.data_type)
        if self.data_type == "decimal" and self.precision is not None:
            whole = self.precision - (self.digits or 0)
        if whole is None or wire.whole is None or unsigned:
            return None
        scale = max(self.digits or 0, wire.scale)
        digits = max(whole, wire.whole) + scale
        fits = digits <= DIGITS_MAX and scale <= SCALE_MAX
        return f"decimal({digits},{scale})" if fits else None

    def __str__(self) -> str:
        return self.spelled


def wire_type(field: pa.Field) -> WireType:
    """Return the type in which ``field`` is sent.

    Raises:
        SchemaChangeError: MySQL has no type for it.
    """
    data_type = field.type
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    kind = kind_of(data_type)
    if kind is Kind.DECIMAL and 0 <= data_type.scale <= SCALE_MAX:
        declared = f"decimal({data_type.precision},{data_type.scale})"
        return WireType(kind, declared, data_type.scale, data_type.precision - data_type.scale)
    if kind is None or kind is Kind.DECIMAL:
        raise SchemaChangeError(
            f"column {field.name!r}: MySQL has no type for {data_type}. Nothing was written; "
            "cast or drop it in the transform."
        )
    return WireType(kind, _NAMES[kind], whole=WHOLE_DIGITS.get(kind))


def _takes_integer(data_type: str, width: int) -> bool:
    if data_type in ("double", "float"):
        return width <= (4 if data_type == "double" else 2)
    return data_type == "decimal" or _WIDTHS.get(data_type, 0) >= width


_TIMES = frozenset({"datetime", "timestamp"})

_TAKEN_BY = {
    Kind.FLOAT: frozenset({"float", "double"}),
    Kind.DOUBLE: frozenset({"double"}),
    Kind.TEXT: _TEXTS | _READ_FROM_TEXT,
    Kind.BINARY: _BINARIES,
    Kind.DATE: frozenset({"date", "datetime"}),
    Kind.TIMESTAMP: _TIMES,
    Kind.TIMESTAMP_NTZ: _TIMES,
    Kind.NESTED: _TEXTS - {"char"},
}

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
_MICROSECONDS = 6


def read_as(name: str, kind: ColumnType) -> ReadColumn:
    """Return the reading of the column ``name``: exact, or as text where MySQL keeps a form of its
    own or loses a part.
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

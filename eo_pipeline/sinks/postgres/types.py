"""Arrow types and PostgreSQL types: what is sent, what a new column gets, what may be widened.

=====================================  ===========================  ==============================
Spark, Arrow                           PostgreSQL                   may also go into
=====================================  ===========================  ==============================
boolean                                boolean
byte, short                            smallint                     any wider number
int                                    integer                      bigint, numeric, double
long                                   bigint                       numeric
float                                  real                         double precision
double                                 double precision
decimal(p, s)                          numeric(p, s)                numeric with scale >= s
string                                 text                         what PostgreSQL reads from
                                                                    text: varchar, enum, uuid,
                                                                    json, inet, tsvector ...; no
                                                                    number, date, boolean, bytea
binary                                 bytea
date                                   date                         timestamp
timestamp                              timestamp with time zone
timestamp_ntz                          timestamp (without)
array of these                         array of these               array of what is said above
struct, map, array of nested values    jsonb                        json, text, varchar
=====================================  ===========================  ==============================

Everything else is refused by name: a string that happens to look like a number is a change of type,
and a double in a numeric column would be rounded without a word. What a table's own column would
cut or round (``varchar(3)``, ``timestamp(3)``) is looked at value by value while rows are staged.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from eo_pipeline._lazy import pa
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.arrow import WHOLE_DIGITS, Kind, is_list, kind_of
from eo_pipeline.sinks.sql.config import NameRules
from eo_pipeline.sinks.sql.table import AnyColumnType

#: PostgreSQL cuts longer names without an error (NAMEDATALEN - 1).
NAME_BYTES_MAX = 63


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise ValueError(f"{name!r} has not between 1 and {NAME_BYTES_MAX} bytes")


NAMES = NameRules("PostgreSQL", _check_name)

_TIMESTAMP = "timestamp without time zone"
_TIMESTAMPTZ = "timestamp with time zone"
_ARRAY = "[]"


@dataclass(frozen=True)
class WireType:
    """Type of values in PostgreSQL's binary COPY format.

    ``sent`` is the type that reads them as they are, and ``meant`` the type they are values of,
    both as ``format_type`` spells them; ``declared`` is what a new column gets; ``scale`` are the
    digits after the point of exact numbers, ``whole`` those before it at most; ``arrow`` is the
    Arrow type that :mod:`pgpq` is given.
    """

    sent: str
    meant: str
    declared: str
    arrow: pa.DataType
    scale: int | None = None
    whole: int | None = None

    @property
    def is_array(self) -> bool:
        return self.sent.endswith(_ARRAY)

    def __str__(self) -> str:
        return self.declared


#: What new columns get. Decimals also have digits.
_NAMES = {
    Kind.BOOLEAN: "boolean",
    Kind.INT8: "smallint",
    Kind.INT16: "smallint",
    Kind.INT32: "integer",
    Kind.INT64: "bigint",
    Kind.FLOAT: "real",
    Kind.DOUBLE: "double precision",
    Kind.DECIMAL: "numeric",
    Kind.TEXT: "text",
    Kind.BINARY: "bytea",
    Kind.DATE: "date",
    Kind.TIMESTAMP: _TIMESTAMPTZ,
    Kind.TIMESTAMP_NTZ: _TIMESTAMP,
}


def wire_type(field: pa.Field) -> WireType:
    """Return the type in which ``field`` is sent.

    Raises:
        SchemaChangeError: PostgreSQL has no type for it.
    """
    data_type = field.type
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    wire = _scalar(data_type) or _list(data_type)
    if wire is None and kind_of(data_type) is Kind.NESTED:
        return WireType("jsonb", "jsonb", "jsonb", pa.string())
    if wire is None:
        raise SchemaChangeError(
            f"column {field.name!r}: PostgreSQL has no type for {data_type}. Nothing was written; "
            "cast or drop it in the transform."
        )
    return wire


def _scalar(data_type: pa.DataType) -> WireType | None:
    kind = kind_of(data_type)
    if kind is None or kind is Kind.NESTED:
        return None
    name = _NAMES[kind]
    if kind is Kind.DECIMAL:
        declared = f"numeric({data_type.precision},{data_type.scale})"
        whole = data_type.precision - data_type.scale
        return WireType(name, name, declared, data_type, data_type.scale, whole)
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ):
        return WireType(name, name, name, pa.timestamp("us", data_type.tz))
    if pa.types.is_integer(data_type):
        return WireType(name, name, name, data_type, 0, WHOLE_DIGITS[kind])
    return WireType(name, name, name, data_type)


def _list(data_type: pa.DataType) -> WireType | None:
    item = _scalar(data_type.value_type) if is_list(data_type) else None
    if item is None:
        return None
    sent, arrow = item.sent, item.arrow
    if sent == _TIMESTAMPTZ:
        # pgpq labels the elements of such an array as timestamps without a zone; sent as what the
        # label says they are right, and PostgreSQL converts
        sent, arrow = _TIMESTAMP, pa.timestamp("us")
    meant, declared = item.meant + _ARRAY, item.declared + _ARRAY
    return WireType(sent + _ARRAY, meant, declared, pa.list_(arrow), item.scale, item.whole)


#: Of Spark's and Arrow's exact numbers.
_DIGITS_MAX = 38

_WIDER: dict[str, frozenset[str]] = {
    "smallint": frozenset({"integer", "bigint", "numeric", "real", "double precision"}),
    "integer": frozenset({"bigint", "numeric", "double precision"}),
    "bigint": frozenset({"numeric"}),
    "real": frozenset({"double precision"}),
    "date": frozenset({_TIMESTAMP}),
    "jsonb": frozenset({"json", "text", "character varying"}),
}

#: What a column of a type can be made: every value stays what it is.
_WIDENED: dict[str, frozenset[str]] = {
    "smallint": frozenset({"integer", "bigint", "real", "double precision"}),
    "integer": frozenset({"bigint", "double precision"}),
    "real": frozenset({"double precision"}),
}
_WHOLE = {
    "smallint": WHOLE_DIGITS[Kind.INT16],
    "integer": WHOLE_DIGITS[Kind.INT32],
    "bigint": WHOLE_DIGITS[Kind.INT64],
}

#: Categories whose types PostgreSQL itself reads from text: strings, enums, network addresses, bit
#: strings, geometry, and user-defined ones (uuid, json, xml, tsvector and extensions' types).
_READ_FROM_TEXT = frozenset("SEIVGU")

#: Types whose binary form is that of text. Enums too.
_SENT_AS_TEXT = frozenset({"text", "character varying", "character", "json"})


@dataclass(frozen=True)
class ColumnType(AnyColumnType):
    """The type of a table's column: a domain is what it is made of.

    ``name`` as ``format_type`` spells it, for people and comparisons; ``cast`` as the catalog has
    it, for statements: ``character`` and ``bit`` in a cast mean a length of one. ``category`` is
    ``pg_type.typcategory``, of the element for an array. ``scale`` and ``precision``, all digits,
    are ``None`` where a numeric column takes any.
    """

    name: str
    cast: str
    category: str
    scale: int | None = None
    is_computed: bool = False
    precision: int | None = None
    is_domain: bool = False

    @property
    def is_array(self) -> bool:
        return self.name.endswith(_ARRAY)

    def takes(self, wire: WireType) -> bool:
        """True if every value of ``wire`` has its exact counterpart here, or is refused."""
        if self.is_array != wire.is_array:
            return False
        name = self.name.removesuffix(_ARRAY)
        meant = wire.meant.removesuffix(_ARRAY)
        if name == "numeric" and self.scale is not None and (wire.scale or 0) > self.scale:
            return False
        if name == meant:
            return True
        if meant == "text":
            return self.category in _READ_FROM_TEXT and name != "bytea"
        return name in _WIDER.get(meant, ())

    def room(self, wire: WireType) -> int | None:
        """Digits before the point, if those of ``wire`` may be more."""
        if self.precision is None or self.scale is None or wire.whole is None or self.is_array:
            return None
        room = self.precision - self.scale
        return room if room < wire.whole else None

    def wider(self, wire: WireType) -> str | None:
        """Return the type that takes ``wire`` and every present value unchanged; None for a domain,
        which the column would leave.
        """
        mine, meant = self.name.removesuffix(_ARRAY), wire.meant.removesuffix(_ARRAY)
        if self.is_domain or self.is_array != wire.is_array:
            return None
        if meant != "numeric":
            return wire.declared if meant in _WIDENED.get(mine, ()) else None
        whole = _WHOLE.get(mine)
        if mine == "numeric" and self.precision is not None and self.scale is not None:
            whole = self.precision - self.scale
        if whole is None or wire.whole is None:
            return None
        scale = max(self.scale or 0, wire.scale or 0)
        digits = max(whole, wire.whole) + scale
        numeric = f"numeric({digits},{scale})" + (_ARRAY if self.is_array else "")
        return numeric if digits <= _DIGITS_MAX else None

    def __str__(self) -> str:
        scale = "" if self.scale is None else f" with {self.scale} digits after the point"
        return f"{self.name}{scale}"


@functools.cache
def _shown() -> dict[str, pa.DataType]:
    """Return the Arrow type of each type that is read back unchanged; without arrays and types
    that PostgreSQL keeps in a form of its own (json, uuid, character).
    """
    return {
        "boolean": pa.bool_(),
        "smallint": pa.int16(),
        "integer": pa.int32(),
        "bigint": pa.int64(),
        "real": pa.float32(),
        "double precision": pa.float64(),
        "text": pa.string(),
        "character varying": pa.string(),
        "bytea": pa.binary(),
        "date": pa.date32(),
        _TIMESTAMPTZ: pa.timestamp("us", "UTC"),
        _TIMESTAMP: pa.timestamp("us"),
    }


def shown_as(name: str, scale: int | None) -> pa.DataType | None:
    """The Arrow type of a column's values, ``None`` if they are not read back; ``scale`` as in
    :class:`ColumnType`.
    """
    if name == "numeric" and scale is not None and 0 <= scale <= _DIGITS_MAX:
        return pa.decimal128(_DIGITS_MAX, scale)
    return _shown().get(name)


def is_direct(column: ColumnType, wire: WireType) -> bool:
    """True if ``column`` reads the binary form of ``wire`` as it is."""
    as_text = wire.sent == "text" and (column.name in _SENT_AS_TEXT or column.category == "E")
    return column.name == wire.sent or (as_text and not column.is_array)


def conversion(column: ColumnType, wire: WireType, name: str) -> str:
    """SQL that turns the quoted column ``name``, of type ``wire.sent``, into ``column``'s type.

    Never to a length or a scale: that is left to the assignment, which raises where an explicit
    cast would cut.
    """
    if column.name == wire.sent:
        return name
    if wire.meant == _TIMESTAMPTZ + _ARRAY:
        elements = f"SELECT t AT TIME ZONE 'UTC' FROM unnest({name}) WITH ORDINALITY AS u (t, i)"
        return f"CASE WHEN {name} IS NOT NULL THEN ARRAY({elements} ORDER BY i) END"
    return f"{name}::{column.cast}"

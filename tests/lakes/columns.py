"""Every type a column can have: as the source's DDL names it, its edge values, and one form of a
value in which a model's row and what a reader gives are compared.
"""

# ruff: noqa: DTZ001 - times without a zone are a type
from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

#: How often a value that may be null is.
_NULLS = 0.15
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Kind:
    """A type: ``edges`` are its values, of which draws are made."""

    name: str
    arrow: pa.DataType
    edges: tuple[Any, ...] = ()
    #: of an array and a map: the element's; of a struct: each field's
    inner: Mapping[str, Kind] = field(default_factory=dict)

    @property
    def ddl(self) -> str:
        """As ``value_schema`` has it."""
        inner = [kind.ddl for kind in self.inner.values()]
        if self.name == "array":
            return f"ARRAY<{inner[0]}>"
        if self.name == "map":
            return f"MAP<STRING, {inner[0]}>"
        if self.name == "struct":
            fields = [f"{name}: {kind.ddl}" for name, kind in self.inner.items()]
            return f"STRUCT<{', '.join(fields)}>"
        return self.name.upper()

    @property
    def is_nested(self) -> bool:
        return bool(self.inner)

    def leaves(self) -> set[str]:
        """The names of all types in it."""
        return {self.name}.union(*(kind.leaves() for kind in self.inner.values()))

    def draw(self, chance: random.Random, *, nulls: float = _NULLS) -> Any:
        if chance.random() < nulls:
            return None
        if self.name == "array":
            (item,) = self.inner.values()
            return [item.draw(chance) for _ in range(chance.choice([0, 1, 2]))]
        if self.name == "map":
            (item,) = self.inner.values()
            keys = chance.sample(["k", "", "ü x", "a/b"], chance.choice([0, 1, 2]))
            return {key: item.draw(chance) for key in keys}
        if self.name == "struct":
            return {name: kind.draw(chance) for name, kind in self.inner.items()}
        return chance.choice(self.edges)

    def fitted(self, value: Any) -> Any:
        """``value`` of a record, written when the type was this one or an earlier one of it."""
        if self.name == "struct" and value is not None:
            return {name: kind.fitted(value.get(name)) for name, kind in self.inner.items()}
        if self.name == "array" and value is not None:
            (item,) = self.inner.values()
            return [item.fitted(each) for each in value]
        return value

    def as_json(self, value: Any) -> Any:
        """As a record has it."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Decimal):
            return f"{value:f}"
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, datetime):
            return value.replace(tzinfo=None).isoformat() + ("Z" if value.tzinfo else "")
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, list):
            (item,) = self.inner.values()
            return [item.as_json(each) for each in value]
        kinds = (
            self.inner if self.name == "struct" else dict.fromkeys(value, self.inner.get("item"))
        )
        return {name: kinds[name].as_json(each) for name, each in value.items()}  # type: ignore[union-attr]

    def as_arrow(self, value: Any) -> Any:
        """As ``pa.array`` takes it."""
        if value is None or not self.inner:
            return value
        if self.name == "struct":
            return {name: kind.as_arrow(value.get(name)) for name, kind in self.inner.items()}
        (item,) = self.inner.values()
        if self.name == "array":
            return [item.as_arrow(each) for each in value]
        return [(key, item.as_arrow(each)) for key, each in value.items()]

    def plain(self, value: Any) -> Any:
        """The form in which values are compared; see :func:`plain_values`."""
        if value is None:
            return None
        if self.name == "array":
            (item,) = self.inner.values()
            return tuple(item.plain(each) for each in value)
        if self.name == "map":
            (item,) = self.inner.values()
            return _sorted_pairs((key, item.plain(each)) for key, each in value.items())
        if self.name == "struct":
            return tuple((n, self.inner[n].plain(value.get(n))) for n in sorted(self.inner))
        return plain_scalar(value)


def plain_scalar(value: Any) -> Any:
    """Equal only for values that are the same: NaN is itself, and -0.0 is not 0.0."""
    if isinstance(value, float):
        return f"{value!r}" if value == value else "nan"
    if isinstance(value, Decimal):
        return f"{value.normalize():f}" if value else "0"
    if isinstance(value, datetime):
        there = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return (there - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date | bool):
        return str(value)
    return value


def _sorted_pairs(pairs: Any) -> tuple[Any, ...]:
    return tuple(sorted(pairs, key=lambda pair: repr(pair[0])))


def plain_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """What a reader gives, in the form of :meth:`Kind.plain`: by Arrow's own type."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # of no chunk
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    kind = array.type
    if pt.is_dictionary(kind):
        return plain_values(array.dictionary_decode())
    if pt.is_timestamp(kind):
        found: list[Any] = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
        return found
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _lists(array, plain_values(array.values), tuple)
    if pt.is_map(kind):
        pairs = list(zip(plain_values(array.keys), plain_values(array.items), strict=True))
        return _lists(array, pairs, _sorted_pairs)
    if pt.is_struct(kind):
        names = sorted(each.name for each in kind)
        parts = dict(zip([each.name for each in kind], array.flatten(), strict=True))
        columns = [plain_values(parts[name]) for name in names]
        rows = zip(*columns, strict=True) if columns else ()
        valid = array.is_valid().to_pylist()
        pairs_of = (tuple(zip(names, row, strict=True)) for row in rows)
        return [row if is_there else None for row, is_there in zip(pairs_of, valid, strict=True)]
    return [plain_scalar(value) for value in array.to_pylist()]


def _lists(array: pa.Array, values: Sequence[Any], made: Any) -> list[Any]:
    offsets, valid = array.offsets.to_pylist(), array.is_valid().to_pylist()
    spans = zip(offsets, offsets[1:], valid, strict=False)
    return [made(values[start:end]) if there else None for start, end, there in spans]


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _whole(bits: int) -> tuple[int, ...]:
    return (0, 1, -1, 7, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))


_MOMENTS = (
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(1582, 10, 4, 12),
    datetime(1883, 11, 18, 12, 3, 58),
    datetime(1677, 9, 21, 0, 12, 43),
    datetime(2262, 4, 11, 23, 47, 17),
    datetime(2024, 3, 31, 1, 30),
    datetime(2013, 1, 1, 5, 15, 0, 125000),
)
_REALS = (0.0, -0.0, 1.5, -0.1, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    *("a", "b", "ü", "a/b", "a b", "a=b", "a%2Fb", "%", "?#", "a:b", "\\", "'", '"', "a\nb"),
    *("null", ".", "..", " x ", "𝄞", "{}", "*", "+", "[a]", "e\u0301", "true", "-1", "1e5", "\t"),
    *("a\0b", "\x7f", "\x1f"),
)

HIVE_NULL, LONG = "__HIVE_DEFAULT_PARTITION__", "x" * 300

PLAIN = {
    kind.name: kind
    for kind in (
        Kind("boolean", pa.bool_(), (True, False)),
        Kind("tinyint", pa.int8(), _whole(8)),
        Kind("smallint", pa.int16(), _whole(16)),
        Kind("int", pa.int32(), _whole(32)),
        Kind("bigint", pa.int64(), _whole(64)),
        Kind(
            "float",
            pa.float32(),
            (*map(_float32, _REALS), 3.4028234663852886e38, 1.401298464324817e-45),
        ),
        Kind("double", pa.float64(), (*_REALS, 1.7976931348623157e308, 5e-324)),
        Kind(
            "decimal(10,2)",
            pa.decimal128(10, 2),
            tuple(
                map(
                    Decimal, ["0", "1.10", "1.05", "-0.01", "-12.34", "99999999.99", "-99999999.99"]
                )
            ),
        ),
        Kind(
            "decimal(38,10)",
            pa.decimal128(38, 10),
            tuple(map(Decimal, ("0.5", "-1", f"{'9' * 28}.{'9' * 10}", f"-{'9' * 28}.{'9' * 10}"))),
        ),
        Kind("string", pa.string(), ("", *TEXTS, "y" * 200, HIVE_NULL, LONG)),
        Kind("binary", pa.binary(), (b"", b"\x00\xff", b"abc", bytes(range(256)))),
        Kind(
            "date",
            pa.date32(),
            tuple(moment.date() for moment in _MOMENTS),
        ),
        Kind(
            "timestamp",
            pa.timestamp("us", "UTC"),
            tuple(moment.replace(tzinfo=UTC) for moment in _MOMENTS),
        ),
        Kind("timestamp_ntz", pa.timestamp("us"), _MOMENTS),
    )
}

#: Of each the next wider one.
WIDER = {
    "int": PLAIN["bigint"],
    "float": PLAIN["double"],
    "decimal(10,2)": Kind(
        "decimal(20,2)", pa.decimal128(20, 2), (*PLAIN["decimal(10,2)"].edges, Decimal("1e17"))
    ),
}


def array_of(kind: Kind) -> Kind:
    return Kind("array", pa.list_(kind.arrow), inner={"item": kind})


def map_of(kind: Kind) -> Kind:
    return Kind("map", pa.map_(pa.string(), kind.arrow), inner={"item": kind})


def struct_of(**kinds: Kind) -> Kind:
    arrow = pa.struct([(name, kind.arrow) for name, kind in kinds.items()])
    return Kind("struct", arrow, inner=kinds)


def with_field(kind: Kind, name: str, more: Kind) -> Kind:
    """A struct with one more field; or an array of such."""
    if kind.name == "array":
        return array_of(with_field(kind.inner["item"], name, more))
    return struct_of(**kind.inner, **{name: more})


def has_struct(kind: Kind) -> bool:
    return kind.name == "struct" or (kind.name == "array" and kind.inner["item"].name == "struct")


def draw_kind(chance: random.Random) -> Kind:
    """A plain type, or one of these in an array, a map, a struct, or an array of structs."""
    one, other = (chance.choice([*PLAIN.values()]) for _ in range(2))
    shape = chance.choices(["plain", "array", "map", "struct", "structs"], [10, 2, 2, 2, 1])[0]
    if shape == "plain":
        return one
    if shape == "array":
        return array_of(one)
    if shape == "map":
        return map_of(one)
    made = struct_of(x=one, y=other)
    return array_of(made) if shape == "structs" else made


@dataclass(frozen=True)
class Column:
    """Of the source's schema: ``required`` makes a record without it a bad one."""

    kind: Kind
    required: bool = False

    def of(self, **changes: Any) -> Column:
        return replace(self, **changes)


Columns = dict[str, Column]


def ddl_of(columns: Columns) -> str:
    needed = {True: " NOT NULL", False: ""}
    return ", ".join(f"{n} {c.kind.ddl}{needed[c.required]}" for n, c in columns.items())


def record_of(columns: Columns, values: Mapping[str, Any]) -> bytes:
    """The JSON text of a record; of what is null, nothing."""
    shown = {n: columns[n].kind.as_json(v) for n, v in values.items() if v is not None}
    return json.dumps(shown, ensure_ascii=False).encode()

"""Checksums of rows: one number that depends on every value and not on the order of the rows.

Each row has a 64-bit hash of its values (Spark's ``xxhash64``, the same on every session and in
every release), and a checksum is their sum, in two halves that cannot overflow, and their
exclusive or. Wherever the same values are, in whatever files and partitions, they have the same
checksum; a value that changed, or changed places with another row's, has another one, but for one
chance in 2^64. It is made for accidents and not for malice: who wants to can find values with the
same checksum.

What makes no difference: the order of the columns and of a map's keys, a wider type that holds the
same number, -0.0 or 0.0, and which NaN it is. A null is told from no null in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from eo_pipeline.batch.counting import CountedColumn, RowCounter
from eo_pipeline.batch.decode import KAFKA_COLUMN, LINEAGE
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Checksum
from eo_pipeline.sinks.config import Sink

#: The rules of this file, by name: another rule gets another name.
ALGORITHM = "xxhash64-1"

_LOW, _HIGH, _XOR = "checksum_low", "checksum_high", "checksum_xor"
_HALF = 2**32 - 1
_WHOLE = 2**64 - 1


class NotComparableError(Exception):
    """A column is not there any more, or has a type in which its values are others."""


def hashed_columns(schema: StructType, holds: Callable[[DataType], bool]) -> dict[str, Any]:
    """The columns of ``schema`` that go into a checksum, with their types as JSON values; those
    for whose type ``holds`` is true.
    """
    return {field.name: field.dataType.jsonValue() for field in schema if holds(field.dataType)}


def row_hash(columns: Mapping[str, Any], typed: Mapping[str, tuple[Column, DataType]]) -> Column:
    """The hash of a row's ``columns``, see :func:`hashed_columns`, as they are ``typed`` now.

    Raises:
        NotComparableError: names a column.
    """
    shape = StructType([_field(name, kind) for name, kind in columns.items()])
    return _hash(_of_fields(shape, typed.get))


def sums(of: Column) -> list[Column]:
    """Metrics, or aggregates, over rows whose hash is ``of``."""
    terms = {
        _LOW: F.sum(of.bitwiseAND(F.lit(_HALF))),
        _HIGH: F.sum(F.shiftrightunsigned(of, 32)),
        _XOR: F.bit_xor(of),
    }
    return [F.coalesce(term, F.lit(0)).alias(name) for name, term in terms.items()]


class Sums(NamedTuple):
    """The :func:`sums` of some rows."""

    low: int
    high: int
    xor: int

    def plus(self, more: Sums) -> Sums:
        """Of these rows and of those."""
        return Sums(self.low + more.low, self.high + more.high, self.xor ^ more.xor)


NO_ROWS = Sums(0, 0, 0)


def summed(metrics: Mapping[str, Any]) -> Sums:
    """As Spark gave them."""
    return Sums(metrics[_LOW], metrics[_HIGH], metrics[_XOR])


def total(parts: Iterable[Sums]) -> Sums:
    """Of the rows of all ``parts``."""
    return reduce(Sums.plus, parts, NO_ROWS)


def digest(of: Sums) -> str:
    """As text: not every store keeps 64 bits of a number."""
    return f"{of.xor & _WHOLE:016x}-{of.high:x}-{of.low:x}"


def checksum(columns: Mapping[str, Any], of: Sums) -> Checksum:
    """Return the checksum as the ledger keeps it; ``columns`` as :func:`hashed_columns` gives
    them.
    """
    return Checksum(ALGORITHM, digest(of), columns)


def _field(name: str, kind: Any) -> StructField:
    return StructField.fromJson({"name": name, "type": kind, "nullable": True, "metadata": {}})


def _hash(values: Iterable[Column]) -> Column:
    """``xxhash64`` passes over a null; a number before each value tells where one was."""
    return F.xxhash64(*(part for n, value in enumerate(values) for part in (F.lit(n), value)))


def _of_fields(
    shape: StructType, find: Callable[[str], tuple[Column, DataType] | None]
) -> Iterator[Column]:
    for field in sorted(shape, key=lambda f: f.name):
        if (column := find(field.name)) is None:
            raise NotComparableError(f"{field.name!r} is missing or has another type")
        try:
            yield from _of_value(*column, field.dataType)
        except NotComparableError as error:
            raise NotComparableError(f"{field.name!r}: {error}") from None


def _of_value(value: Column, actual: DataType, meant: DataType) -> Iterator[Column]:
    """``value``, of the type ``actual``, as one of the type ``meant``; in parts, none of which can
    be mistaken for another.
    """
    if type(actual) is not type(meant) and not _holds_numbers_of(actual, meant):
        raise NotComparableError(f"it was {meant.simpleString()}, and is {actual.simpleString()}")
    if isinstance(meant, StructType) and isinstance(actual, StructType):
        fields = {field.name: field.dataType for field in actual}

        def find(name: str) -> tuple[Column, DataType] | None:
            return (value.getField(name), fields[name]) if name in fields else None

        yield value.isNull()
        yield from _of_fields(meant, find)
    elif isinstance(meant, ArrayType) and isinstance(actual, ArrayType):
        before, after = actual.elementType, meant.elementType
        yield _size(value)
        yield F.transform(value, lambda element: _hash(_of_value(element, before, after)))
    elif isinstance(meant, MapType) and isinstance(actual, MapType):
        yield _size(value)
        yield F.sort_array(F.transform(F.map_entries(value), _of_entry(actual, meant)))
    else:
        yield _of_scalar(value, actual, meant)


def _of_entry(actual: MapType, meant: MapType) -> Callable[[Column], Column]:
    def of_entry(entry: Column) -> Column:
        key = _of_value(entry.getField("key"), actual.keyType, meant.keyType)
        item = _of_value(entry.getField("value"), actual.valueType, meant.valueType)
        return _hash([_hash(key), _hash(item)])

    return of_entry


def _size(value: Column) -> Column:
    return F.coalesce(F.size(value), F.lit(-1))


def _of_scalar(value: Column, actual: DataType, meant: DataType) -> Column:
    if isinstance(meant, StringType):
        # of a text that is compared without case, say, Spark hashes what it is compared by
        plain = {type(actual), type(meant)} == {StringType} and actual == meant == StringType()
        return value if plain else F.collate(value, "UTF8_BINARY")
    if isinstance(meant, IntegralType):
        return value.cast("bigint")
    # a value that does not fit was changed; "null" is not what was hashed
    return value if actual == meant else value.try_cast(meant)


def _holds_numbers_of(actual: DataType, meant: DataType) -> bool:
    if isinstance(meant, IntegralType):
        return isinstance(actual, IntegralType)
    if isinstance(meant, FloatType):
        return isinstance(actual, DoubleType)
    return isinstance(meant, DecimalType) and isinstance(actual, DecimalType)


def column(name: str) -> Column:
    """The column of exactly this name."""
    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


_HASH = "_eo_hash"


@dataclass(frozen=True)
class HashedRows:
    """Rows of which a checksum is made: ``columns`` by :func:`checksums.hashed_columns`, and the
    ``mark`` by which a :class:`RowCounter` makes it.
    """

    columns: Mapping[str, Any]
    mark: CountedColumn

    @classmethod
    def of_result(cls, result: DataFrame, sink: Sink, *, lineage: bool) -> Self | None:
        """``result`` as the table will show it: with where its rows came from; None if ``sink``
        does not show it, or rows replace each other there.
        """
        if not sink.keeps_every_row:
            return None
        typed = _columns(result, but=KAFKA_COLUMN)
        if lineage:
            kafka = result.schema[KAFKA_COLUMN].dataType
            assert isinstance(kafka, StructType), "as the source made it"
            traced = F.col(KAFKA_COLUMN)
            typed |= {n: (traced.getField(f), kafka[f].dataType) for n, f in LINEAGE.items()}
        return cls._of(typed, sink)

    @classmethod
    def of_dead_letters(cls, letters: DataFrame, sink: Sink) -> Self | None:
        """See :meth:`of_result`; dead letters never replace each other."""
        return cls._of(_columns(letters, but=CHECKPOINT_COLUMN), sink)

    @classmethod
    def _of(cls, typed: Mapping[str, tuple[Column, DataType]], sink: Sink) -> Self | None:
        shape = StructType()
        for name, (_, data_type) in typed.items():
            shape.add(name, data_type)
        columns = hashed_columns(shape, sink.gives_back)
        if not columns:
            return None
        value = row_hash(columns, typed)
        return cls(columns, CountedColumn(_HASH, value, sums(F.col(_HASH))))

    def checksum(self, result: RowCounter) -> Checksum:
        """Of ``result``, after it was counted."""
        return checksum(self.columns, summed(result.seen))


def _columns(frame: DataFrame, but: str) -> dict[str, tuple[Column, DataType]]:
    fields = [field for field in frame.schema if field.name != but]
    return {field.name: (column(field.name), field.dataType) for field in fields}

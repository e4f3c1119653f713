"""Call of the Java function that reads ordinary JSON in one pass, see ``OrdinaryJson.java``.

Spark has it if :mod:`eo_pipeline.spark.native_jar` gave it the jar. It leaves all other records to
:mod:`eo_pipeline.batch.decode_json`, which judges them. Lazy expressions only.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from eo_pipeline.batch.json_values import MARKS
from eo_pipeline.config.settings import FUNCTION_CATALOG

_PLAIN = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType),
    *(DecimalType, DateType, TimestampType),
)


@dataclass(frozen=True)
class FastResult:
    """The function's result for a record, a struct."""

    struct: Column

    @property
    def row(self) -> Column:
        """The record; null if it may break a rule."""
        return self.struct.getField("row")

    @property
    def unknown(self) -> Column:
        """Names of unknown fields, an array; null if there are none, or :attr:`row` is null."""
        return self.struct.getField("unknown")

    @property
    def leaves(self) -> Column:
        """If :attr:`row` is null: the struct that from_json makes of :attr:`marks`."""
        return self.struct.getField("leaves")

    @property
    def marks(self) -> Column:
        """If :attr:`row` is null: the :func:`eo_pipeline.batch.json_values.marked` text."""
        return self.struct.getField("marked")


def fast_read(value: Column, wanted: StructType, read: StructType) -> Column | None:
    """Read the bytes ``value`` by the schema ``wanted`` into the struct of a :class:`FastResult`;
    None if the function lacks one of the types. ``read``: leaves and column of corrupt records.
    """
    if not _is_read(wanted):
        return None
    return F.call_function(_function(wanted, read), value)


def trial() -> Column:
    """Return an expression that only a Spark with the function can analyse."""
    schema, read = StructType().add("id", LongType()), StructType().add("id", StringType())
    return F.call_function(_function(schema, read.add("corrupt", StringType())), F.lit(b""))


def _function(wanted: StructType, read: StructType) -> str:
    return f"{FUNCTION_CATALOG}.json.`{named(wanted, read).replace('`', '``')}`"


def named(wanted: StructType, read: StructType) -> str:
    """Return the function's name in its catalog, which carries all of its parameters."""
    return "\n".join([wanted.json(), read.json(), *(text for mark in MARKS for text in mark)])


def is_plain(wanted: StructType) -> bool:
    """Return whether all columns are flat, of types that the function reads."""
    return all(isinstance(f.dataType, _PLAIN) or f.dataType == StringType() for f in wanted)


def _is_read(wanted: DataType) -> bool:
    if isinstance(wanted, StructType):
        return all(_is_read(field.dataType) for field in wanted)
    if isinstance(wanted, ArrayType):
        return _is_read(wanted.elementType)
    if isinstance(wanted, MapType):
        return wanted.keyType == StringType() and _is_read(wanted.valueType)
    # other collations and lengths are subclasses of StringType
    return isinstance(wanted, _PLAIN) or wanted == StringType()

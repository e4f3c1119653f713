"""Most records are ordinary, and one function reads them in one pass; see ``OrdinaryJson.java``.

It is Java, in the Spark that has it (:mod:`eo_pipeline.spark.native_jar`), and leaves whatever is
not ordinary to :mod:`eo_pipeline.batch.decode`, which judges it as ever. Lazy expressions only.
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

from eo_pipeline.batch.decode_json import MARKS
from eo_pipeline.config.settings import FUNCTION_CATALOG

_PLAIN = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType),
    *(DecimalType, DateType, TimestampType),
)


@dataclass(frozen=True)
class Ordinary:
    """What the function gives of a record, a struct."""

    struct: Column

    @property
    def row(self) -> Column:
        """The record; null if something of it may be wrong, by some rule."""
        return self.struct.getField("row")

    @property
    def unknown(self) -> Column:
        """The names of fields that the schema does not have, an array; null if there are none, or
        :attr:`row` is null.
        """
        return self.struct.getField("unknown")

    @property
    def leaves(self) -> Column:
        """By what it is judged if :attr:`row` is null: what from_json makes of :attr:`marks`."""
        return self.struct.getField("leaves")

    @property
    def marks(self) -> Column:
        """Its text, :func:`eo_pipeline.batch.decode_json.marked`, if :attr:`row` is null."""
        return self.struct.getField("marked")


def ordinary(value: Column, wanted: StructType, read: StructType) -> Column | None:
    """``value``, bytes, of the schema ``wanted``, as the struct of an :class:`Ordinary`; ``read``
    are its leaves, with the column for corrupt records. None if there is no function for it.
    """
    if not _is_read(wanted):
        return None
    return F.call_function(_function(wanted, read), value)


def trial() -> Column:
    """What can be analysed by a Spark that has the functions, and by no other."""
    schema, read = StructType().add("id", LongType()), StructType().add("id", StringType())
    return F.call_function(_function(schema, read.add("corrupt", StringType())), F.lit(b""))


def _function(wanted: StructType, read: StructType) -> str:
    return f"{FUNCTION_CATALOG}.json.`{named(wanted, read).replace('`', '``')}`"


def named(wanted: StructType, read: StructType) -> str:
    """The function's name in its catalog: all that it is told."""
    return "\n".join([wanted.json(), read.json(), *(each for mark in MARKS for each in mark)])


def is_plain(wanted: StructType) -> bool:
    """Whether no column of ``wanted`` has parts, and ordinary records of it are read."""
    return all(isinstance(f.dataType, _PLAIN) or f.dataType == StringType() for f in wanted)


def _is_read(wanted: DataType) -> bool:
    if isinstance(wanted, StructType):
        return all(_is_read(field.dataType) for field in wanted)
    if isinstance(wanted, ArrayType):
        return _is_read(wanted.elementType)
    if isinstance(wanted, MapType):
        return wanted.keyType == StringType() and _is_read(wanted.valueType)
    # a text of another collation, or of a length, is a StringType, too
    return isinstance(wanted, _PLAIN) or wanted == StringType()

"""Most records are ordinary, and one function reads them in one pass; see ``OrdinaryJson.java``.

It is Java, in the Spark that has it (:mod:`eo_pipeline.jvm.ordinary`), and leaves whatever is not
ordinary to :mod:`eo_pipeline.source.decode`, which judges it as ever. Lazy expressions only.
"""

from __future__ import annotations

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

from eo_pipeline.jvm.ordinary import CATALOG

#: The last fields of what the function gives.
_UNKNOWN, _JUDGED = "_eo_unknown", "_eo_judged"

_PLAIN = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType),
    *(DecimalType, DateType, TimestampType),
)


def ordinary(value: Column, wanted: StructType, read: StructType) -> Column | None:
    """``value``, bytes, as from_json gives it as ``read``, of which the last column is that for
    corrupt records and the others are those of ``wanted``; and two fields more, see
    :func:`is_judged` and :func:`unknown`. None if there is no function for that schema.
    """
    if not _is_read(wanted):
        return None
    return F.call_function(_function(wanted, read), value)


def is_judged(parsed: Column) -> Column:
    """Whether of a record that :func:`ordinary` gave something may be wrong, by some rule."""
    return F.coalesce(parsed.getField(_JUDGED), F.lit(True))


def unknown(parsed: Column) -> Column:
    """The names of fields that the schema does not have, of a record that need not be judged, an
    array; null if there are none.
    """
    return parsed.getField(_UNKNOWN)


def trial() -> Column:
    """What can be analysed by a Spark that has the functions, and by no other."""
    schema = StructType().add("id", LongType())
    return F.call_function(_function(schema, schema.add("corrupt", StringType())), F.lit(b""))


def _function(wanted: StructType, read: StructType) -> str:
    return f"{CATALOG}.json.`{named(wanted, read).replace('`', '``')}`"


def named(wanted: StructType, read: StructType) -> str:
    """The function's name in its catalog."""
    return f"{wanted.json()}\n{read.json()}"


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

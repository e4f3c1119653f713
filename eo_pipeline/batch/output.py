"""The columns of a transform's result: which names it may have, which types are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from eo_pipeline.batch.decode import KAFKA_COLUMN, LINEAGE
from eo_pipeline.errors import TransformError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.columns import column
from eo_pipeline.spark import (
    interruptible,
    options_of,
    parquet_options,
    path_to_write,
    session_on_server,
    with_known_schema,
)
from eo_pipeline.spark.native_jar import has_format
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import IDS, StagedTable
from eo_pipeline.storage.paths import Place

_RESERVED = "_eo_"
_PARTITION_COLUMN = "_eo_partition"
_ALL_BUT_SIGN = 0x7FFFFFFF


def added_columns(checkpoint: int, *, lineage: bool) -> dict[str, Column]:
    """Columns added to each row of a result: its checkpoint's number and its coordinates in Kafka.

    A number would stand in the code that Spark generates, which each checkpoint would then compile
    anew, and Java would run it without having seen it before. What an array holds does not: its
    first element is asked for by an index that is always zero and that Spark cannot tell before.
    """
    number = F.lit(checkpoint).cast("bigint")
    if not lineage:
        return {CHECKPOINT_COLUMN: number}
    origin = {name: F.col(KAFKA_COLUMN)[field] for name, field in LINEAGE.items()}
    # of any value and of none there is a hash
    zero = F.shiftright(F.hash(origin[_PARTITION_COLUMN]).bitwiseAND(F.lit(_ALL_BUT_SIGN)), 31)
    # never null, and said to be so
    first = F.coalesce(F.get(F.array(number), zero), F.lit(-1).cast("bigint"))
    return {CHECKPOINT_COLUMN: first, **origin}


def types_of(result: StructType, added: Iterable[str]) -> StructType | None:
    """The columns of a result and those ``added`` to them; ``None``: only Spark can tell."""
    origin = result[KAFKA_COLUMN].dataType if KAFKA_COLUMN in result.names else StructType()
    schema = StructType([field for field in result if field.name != KAFKA_COLUMN])
    for name in added:
        if name == CHECKPOINT_COLUMN:
            schema = schema.add(name, LongType(), nullable=False)
        elif isinstance(origin, StructType) and LINEAGE[name] in origin.names:
            schema = schema.add(name, origin[LINEAGE[name]].dataType)
        else:
            return None
    return schema


def own_columns(result: DataFrame) -> StructType:
    """Return the schema of the result without its coordinates in Kafka."""
    return StructType([field for field in result.schema if field.name != KAFKA_COLUMN])


def with_coordinates_alone(result: DataFrame) -> DataFrame:
    """``result`` with only that of ``_kafka`` which says where a row came from: the rest, a
    record's key and its headers, is not in the table, and Spark would hand it on to where rows are
    counted.
    """
    if KAFKA_COLUMN not in result.columns:
        return result
    origin = result.schema[KAFKA_COLUMN].dataType
    kept = [name for name in LINEAGE.values() if name in getattr(origin, "names", ())]
    if not kept:
        return result
    whole = F.col(KAFKA_COLUMN)
    return result.withColumn(KAFKA_COLUMN, F.struct(*(whole[name].alias(name) for name in kept)))


def check_names(columns: list[str], *, lineage: bool) -> None:
    """Return if a result may have these ``columns``.

    Raises:
        TransformError: it may not.
    """
    if lineage and KAFKA_COLUMN not in columns:
        raise TransformError(
            f"the transform dropped the column {KAFKA_COLUMN!r}, which holds where a row came "
            f"from. Keep it (select(..., {KAFKA_COLUMN!r})), or set lineage: false on the "
            "pipeline; audit can then prove less."
        )
    names = [name for name in columns if name != KAFKA_COLUMN]
    reserved = [name for name in names if name.lower().startswith(_RESERVED)]
    if reserved:
        raise TransformError(f"column names starting with {_RESERVED!r} are taken: {reserved}")
    folded = [name.lower() for name in names]
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice or not names:
        raise TransformError(
            f"the transform's result has columns of the same name: {twice}"
            if twice
            else "the transform's result has no columns"
        )


#: As Spark writes it; and with ids of what is in arrays and maps, by ``ParquetWithIds.java``.
PARQUET, WITH_IDS = "parquet", "eo.pipeline.ParquetWithIds"


def marked(
    frame: DataFrame, as_staged: Callable[[StructType], StructType]
) -> tuple[DataFrame, str]:
    """``frame``, whose files say of each column what ``as_staged`` does, and the format to write it
    in. A Spark that has not ours for columns that need it writes files that do not say it. Lazy.
    """
    columns, ours = as_staged(frame.schema), False
    if any(IDS in field.metadata for field in columns):
        if not has_format(frame.sparkSession, WITH_IDS):
            return frame, PARQUET
        ours = True
    # DataFrame.to() does it without an alias, and the optimizer loses what it says
    typed = [_as_type(field).alias(field.name, metadata=field.metadata) for field in columns]
    return with_known_schema(frame.select(*typed), columns), WITH_IDS if ours else PARQUET


def _as_type(field: StructField) -> Column:
    value = column(field.name)
    return value.cast(field.dataType) if isinstance(field.dataType, StructType) else value


def materialize(
    frame: DataFrame,
    attempt: Attempt | None,
    folder: Callable[[Attempt], Place],
    layout: tuple[str, ...] = (),
    mode: str = "error",
    kind: str = PARQUET,
) -> StagedTable:
    """The rows of ``frame``, in files of ``attempt``'s ``folder``, laid out by the columns
    ``layout``; in memory if there is no attempt. ``kind`` is the format of the files.
    """
    if attempt is None:
        return StagedTable.in_memory(interruptible(frame.sparkSession, frame.toArrow))
    target, spark = folder(attempt), frame.sparkSession
    if session := session_on_server(spark):
        attempt.runs_in(session)
    options = {**options_of(target), **parquet_options(spark)}
    write = frame.write.format(kind).mode(mode).options(**options).partitionBy(*layout).save
    interruptible(spark, lambda: write(path_to_write(target)), attempt.name)
    # no rows, no files, where files are laid out by columns: the frame has a schema all the same
    return attempt.collect(target, lambda: frame.drop(*layout).limit(0).toArrow().schema)

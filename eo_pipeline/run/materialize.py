"""The one action of a batch: its rows to this process as Arrow, or to Parquet files.

In files a row is the columns that it has; or, where the sink has a form of its own and Spark can
make it, one value, which publishing hands on as it is (:mod:`eo_pipeline.sinks.packing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from eo_pipeline.arrow import pa
from eo_pipeline.places import Place
from eo_pipeline.sinks.packing import Packing
from eo_pipeline.sinks.unfit import column
from eo_pipeline.spark import (
    interruptible,
    options_of,
    parquet_options,
    path_to_write,
    session_on_server,
    with_known_schema,
)
from eo_pipeline.spark.ordinary import has_format, has_function
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import IDS, PACKED_COLUMN, StagedTable

#: As Spark writes it; and with ids of what is in arrays and maps, by ``ParquetWithIds.java``.
PARQUET, WITH_IDS = "parquet", "eo.pipeline.ParquetWithIds"

#: Values that never come again are not worth a dictionary, nor are their least and their greatest.
OPTIONS_OF_PACKED = {
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
}


@dataclass(frozen=True)
class Packed:
    """``frame``, of rows that are one value each, in ``form``; ``schema`` are their columns."""

    frame: DataFrame
    form: str
    schema: pa.Schema


def packed(frame: DataFrame, packing_of: Callable[[StructType], Packing | None]) -> Packed | None:
    """The rows of ``frame``, which a sink has projected, in the form that its ``packing_of`` (see
    ``Sink.packing``) gives; None: there is none for them, or this Spark cannot make it. Lazy.
    """
    packing = packing_of(frame.schema)
    if packing is None or not has_function(frame.sparkSession, packing.trial):
        return None
    rows = packing.packed(F.struct(*map(column, frame.columns))).alias(PACKED_COLUMN)
    made = frame.select(rows, *map(column, packing.beside))
    return Packed(made, packing.form, to_arrow_schema(frame.schema))


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
    said = [_as_type(field).alias(field.name, metadata=field.metadata) for field in columns]
    return with_known_schema(frame.select(*said), columns), WITH_IDS if ours else PARQUET


def _as_type(field: StructField) -> Column:
    found = column(field.name)
    return found.cast(field.dataType) if isinstance(field.dataType, StructType) else found


def materialize(
    frame: DataFrame,
    attempt: Attempt | None,
    folder: Callable[[Attempt], Place],
    layout: tuple[str, ...] = (),
    mode: str = "error",
    packed: Packed | None = None,
    kind: str = PARQUET,
) -> StagedTable:
    """The rows of ``frame``, in files of ``attempt``'s ``folder``, laid out by the columns
    ``layout``; in memory if there is no attempt. ``packed`` says what they are of, if ``frame`` is
    that; ``kind`` is the format of the files.
    """
    if attempt is None:
        return StagedTable.in_memory(interruptible(frame.sparkSession, frame.toArrow))
    target, spark = folder(attempt), frame.sparkSession
    if session := session_on_server(spark):
        attempt.runs_in(session)
    options = {**options_of(target), **parquet_options(spark)}
    if packed is not None:
        options |= OPTIONS_OF_PACKED
    write = frame.write.format(kind).mode(mode).options(**options).partitionBy(*layout).save
    interruptible(spark, lambda: write(path_to_write(target)), attempt.name)
    if packed is not None:
        staged = attempt.collect(target, lambda: packed.schema)
        return replace(staged, schema=packed.schema, form=packed.form)
    # no rows, no files, where files are laid out by columns: the frame has a schema all the same
    return attempt.collect(target, lambda: frame.drop(*layout).limit(0).toArrow().schema)

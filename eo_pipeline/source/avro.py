"""Avro to columns. Lazy Spark expressions only, one branch for each writer's schema.

Each record is decoded by the schema it was written with into the one that gives the columns, by
Avro's own rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from eo_pipeline.errors import SetupError
from eo_pipeline.source import wire
from eo_pipeline.source.avro_schema import OK_FIELD, field_names, with_ok_field
from eo_pipeline.source.wire import WireSchemas


def parsed(keyed: DataFrame, schemas: WireSchemas, name: str, unknown: str) -> DataFrame:
    """See :class:`eo_pipeline.source.decoders.Decoder`; the struct has :data:`OK_FIELD` besides."""
    options = {"avroSchema": with_ok_field(schemas.reader_text), "mode": "PERMISSIVE"}
    body = wire.body(schemas)

    def read(key: str) -> Column:
        try:
            return from_avro(body, schemas.texts[key], options)
        except TypeError as error:  # what pyspark makes of a class that is not there
            raise SetupError(
                "Spark has nothing that decodes Avro: put spark-avro, of the same release as the "
                "Kafka connector, into the folder that EO_SPARK_JARS names (`make setup` does)."
            ) from error

    values = wire.first_that(
        (wire.writer(schemas) == i, read(key)) for i, key in enumerate(schemas.writers)
    )
    return keyed.withColumn(name, values).withColumn(unknown, wire.left_out(schemas))


def columns(schemas: WireSchemas, struct: Column) -> list[Column]:
    """The reader's fields of what :func:`parsed` made."""
    return [struct.getField(name).alias(name) for name in field_names(schemas.reader_text)]


def errors(schemas: WireSchemas, struct: Column) -> Iterator[tuple[Column, Column]]:
    """The one thing that Spark's decoder tells."""
    part = schemas.part.name
    if schemas.have_keys:
        reason = F.concat(
            F.lit(f"the {part} is cut off, or is not of the schema it names, or that one cannot "),
            F.lit(f"be read as schema {schemas.reader}: schema "),
            wire.key_text(schemas),
        )
    else:
        reason = F.lit(f"the {part} is cut off, or is not of the schema")
    yield struct.getField(OK_FIELD).isNull(), reason

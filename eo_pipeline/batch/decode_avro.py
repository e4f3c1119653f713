"""Avro to columns. Lazy Spark expressions only, one branch for each writer's schema.

Each record is decoded by the schema it was written with into the one that gives the columns, by
Avro's own rules. Where that one cannot hold what the writer has, and policy is to rescue it, the
column gets what it can hold, and a column of JSON the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from eo_pipeline.errors import SetupError
from eo_pipeline.formats import wire_format
from eo_pipeline.formats.avro import (
    OK_FIELD,
    field_names,
    left_out,
    partly,
    shape_of,
    weightless,
    with_ok_field,
    without,
)
from eo_pipeline.formats.schema_diff import Shape, rescaled, unreadable
from eo_pipeline.formats.wire_format import UNKNOWN_COLUMN, WireSchemas, as_json, fitting, is_scalar


def parsed(keyed: DataFrame, schemas: WireSchemas, name: str, unknown: str) -> DataFrame:
    """See :class:`eo_pipeline.batch.decode.Decoder`; the struct has :data:`OK_FIELD` besides,
    and :data:`~eo_pipeline.formats.wire_format.UNKNOWN_COLUMN` if that is to be kept.
    """
    # a column, or each branch would have the whole of it in its code
    body = schemas.part.own("body")
    values = wire_format.first_that(
        (wire_format.writer(schemas) == i, _sure(_Branch.of(schemas, key, F.col(body))))
        for i, key in enumerate(schemas.writers)
    )
    read = keyed.withColumn(body, wire_format.body(schemas)).withColumn(name, values).drop(body)
    return read.withColumn(unknown, wire_format.left_out(schemas))


def _sure(branch: _Branch) -> Column:
    """The record of a writer; null if its schema lets a few bytes take any time to read."""
    value = branch.value()
    return F.when(F.lit(False), value) if weightless(branch.writer) else value


def columns(schemas: WireSchemas, struct: Column) -> list[Column]:
    """The reader's fields of what :func:`parsed` made."""
    names = field_names(schemas.reader_text)
    kept = [UNKNOWN_COLUMN] if schemas.keeps else []
    return [struct.getField(name).alias(name) for name in [*names, *kept]]


def errors(schemas: WireSchemas, struct: Column, _: Column) -> Iterator[tuple[Column, Column]]:
    """The one thing that Spark's decoder tells, and the fields in which schemas differ."""
    part, is_none = schemas.part.name, struct.getField(OK_FIELD).isNull()
    if not schemas.have_keys:
        yield is_none, F.lit(f"the {part} is cut off, or is not of the schema")
        return
    differ = wire_format.first_that(
        (wire_format.writer(schemas) == place, F.lit(f"; they differ: {', '.join(named)}"))
        for place, key in enumerate(schemas.writers)
        if (named := _differences(schemas.texts[key], schemas.reader_text))
    )
    yield (
        is_none,
        F.concat(
            F.lit(f"the {part} is cut off, or is not of the schema it names, or that one cannot "),
            F.lit(f"be read as schema {schemas.reader}: schema "),
            wire_format.key_text(schemas),
            F.coalesce(differ, F.lit("")),
        ),
    )


def _differences(writer: str, reader: str) -> list[str]:
    """For which a record of ``writer`` may be no record of ``reader``."""
    if path := weightless(writer):
        return [f"array {path} whose items take no bytes"]
    changed = map(str, unreadable(shape_of(writer), shape_of(reader)))
    return [*changed, *(f"no field {path}" for path in left_out(reader, writer))]


@dataclass(frozen=True)
class _Branch:
    """The records of one writer. ``rescued`` columns of the reader's cannot hold all of what it
    writes; those ``cast`` hold it in another form; of ``unread`` fields the reader has nothing, or
    not all.
    """

    body: Column
    writer: str
    reader: str
    keeps: bool
    rescued: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @classmethod
    def of(cls, schemas: WireSchemas, key: str, body: Column) -> _Branch:
        writer, reader = schemas.texts[key], schemas.reader_text
        if writer == reader:
            return cls(body, writer, reader, schemas.keeps)
        shapes = shape_of(writer), shape_of(reader)
        decided = schemas.policy.decide(unreadable(*shapes))
        rescued = decided.rescued
        cast = tuple(c for c, can in rescaled(*shapes).items() if can and c not in rescued)
        unread = dict.fromkeys(path.partition(".")[0] for path in left_out(writer, reader))
        return cls(body, writer, reader, schemas.keeps, rescued, cast, tuple(unread))

    def value(self) -> Column:
        """A struct of the reader's fields; those of all branches have one type."""
        if not (self.keeps or self.cast):
            return self._decoded(self.reader)
        whole, own = self._shapes(self.reader), self._shapes(self.writer)
        scalars = [name for name in self.rescued if is_scalar(whole[name], own[name])]
        direct = [*scalars, *self.cast]
        reader = without(self.reader, {*self.rescued} - {*scalars})
        # as it was written, to see whether it fits
        read = self._decoded(partly(self.writer, reader, direct))
        fits = {name: fitting(read.getField(name), own[name], whole[name]) for name in direct}
        nothing = {name: F.lit(None).cast(str(whole[name])) for name in self.rescued}
        made = nothing | fits
        fields = [made.get(name, read.getField(name)).alias(name) for name in whole]
        if self.keeps:
            fields.append(self._kept(fits).alias(UNKNOWN_COLUMN))
        ok = read.getField(OK_FIELD)
        for name in self.cast:  # one that does not fit makes the record a bad one
            ok = F.when(read.getField(name).isNull() | fits[name].isNotNull(), ok)
        return F.when(ok.isNotNull(), F.struct(*fields, ok.alias(OK_FIELD)))

    def _kept(self, fits: dict[str, Column]) -> Column:
        """JSON of the fields that are not in the columns, or not as they are; null if none is."""
        written = from_avro(self.body, self.writer, {"mode": "PERMISSIVE"})
        fields = []
        for name in dict.fromkeys((*self.unread, *self.rescued)):
            value = written.getField(name)
            lost = fits[name].isNull() if name in fits else F.lit(True)
            fields.append(F.when(lost, value).alias(name))
        return as_json(fields)

    def _decoded(self, reader: str) -> Column:
        options = {"avroSchema": with_ok_field(reader), "mode": "PERMISSIVE"}
        try:
            return from_avro(self.body, self.writer, options)
        except TypeError as error:  # what pyspark makes of a class that is not there
            raise SetupError(
                "Spark has nothing that decodes Avro: put spark-avro, of the same release as the "
                "Kafka connector, into the folder that EO_SPARK_JARS names (`make setup` does)."
            ) from error

    @staticmethod
    def _shapes(text: str) -> dict[str, Shape]:
        return shape_of(text).fields
